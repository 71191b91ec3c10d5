"""Start: checks a configuration, runs it under `serve run` and reports when and where it listens. `make serve` calls it.

In:    a configuration file
Out:   a running service, until Ctrl-C, or until SIGTERM has let every stream end; exit code 1 when it could not start or died;
       with --restart, when it died too often
Never: Ray, which the process that waits would hold for nothing (check.py); joining a Ray cluster that runs already: what is
       started here is ended here
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import requests
from rich.console import Console

from pipeline.paths import cache_home
from serve.commands.config_path import CONFIG_HELP, DEFAULT, config_path
from serve.commands.launch import announce, open_files, ray_environment, readiness
from serve.commands.launch.processes import is_free, listeners, process
from serve.commands.launch.ray_environment import Place
from serve.commands.launch.run_log import LOG_HELP, RunLog, log_place
from serve.commands.launch.runs import Run, end_leftovers
from serve.commands.launch.settings import Settings
from serve.commands.launch.supervise import Restarts, Service, ServiceDied, Signals, StopRequested, logged
from serve.http import haproxy

# Ray's switch for clusters of one machine, named after the two systems where it is the default: Ray's own
# address is then 127.0.0.1, so GCS, raylet, workers and agents listen on loopback only.
ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
HAPROXY_PORTS = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": (9101, "HAProxy's metrics"),
    "RAY_SERVE_HAPROXY_STATS_PORT": (8404, "HAProxy's statistics"),
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": (8500, "Serve's fallback proxy"),
}
SERVE = "from ray.serve.scripts import cli; cli()"  # the `serve` command, of the Python that runs this
START_MARGIN_S = 120.0  # on top of limits.start_timeout_s: Ray's own start and all imports on a busy machine
DRAIN_MARGIN_S = 60.0  # to connect to the cluster and to get its answer
STOP_MARGIN_S = 30.0
READY_S = 2.0
CHANGES = ("host", "port", "checkpoint")


def main(arguments: list[str] | None = None) -> int:
    """Checks the configuration, prepares the checkpoint and runs the service until it ends or is stopped."""
    parser = argparse.ArgumentParser(prog="chattts-serve start", description="Start the service and run it until Ctrl-C.")
    parser.add_argument("config", type=config_path, nargs="?", default=DEFAULT, help=CONFIG_HELP)
    parser.add_argument("--plain", action="store_true", help="use Serve's default data path, without HAProxy")
    parser.add_argument(
        "--restart", action="store_true", help=f"start it again where it dies, up to {Restarts.MOST} times in ten minutes"
    )
    parser.add_argument("--host", help="listen there, in place of http_options.host")
    parser.add_argument("--port", help="listen there, in place of http_options.port")
    parser.add_argument("--checkpoint", help="serve it, in place of pipeline.checkpoint")
    parser.add_argument("--log", metavar="FILE", help=LOG_HELP)
    args = parser.parse_args(arguments)
    signals, console = Signals(), Console()
    try:
        with console.status("checking the configuration and its checkpoint; the first time, compiling native code"):
            settings = checked(args.config, {name: getattr(args, name) for name in CHANGES})
        if settings is None:
            return 0 if signals.first is not None else 1
        place = log_place(args.log, settings.port)
        if settings.is_one_process:
            if obstacle := why_not_one_process(settings, is_plain=args.plain, restarts=args.restart):
                print(obstacle, file=sys.stderr)
                return 1
            os.execv(sys.executable, [sys.executable, "-m", "serve.commands.launch.one_process", str(settings.path), place])
        if ended := end_leftovers(cache_home()):
            print(f"ended what an earlier start has left running: {', '.join(ended)}", file=sys.stderr)
        run = Run.begin(cache_home())
    except OSError as error:
        print(f"cannot write in {cache_home()}: {error.strerror}; CHATTTS_HOME names another folder", file=sys.stderr)
        return 1
    try:
        return start(settings, run, signals, console, place, is_plain=args.plain, restarts=args.restart)
    finally:
        run.end()


def why_not_one_process(settings: Settings, *, is_plain: bool, restarts: bool) -> str | None:
    """Returns why this process cannot become the service; None if it can."""
    if is_plain or restarts:
        option = "--plain chooses how Ray Serve passes data" if is_plain else "--restart watches over Ray"
        return f"{option}, and {settings.path} has runtime: process: leave it out (systemd restarts a process)"
    if not is_free(settings.host, settings.port):
        return f"{port_conflict(settings.host, settings.port)}, or change http_options.port in {settings.path}"
    return None


def checked(config: Path, changes: Mapping[str, str | None]) -> Settings | None:
    """Checks a configuration in a process of its own, which says what is wrong; returns what a start needs of it, or None.

    Args:
        changes: what the command line says in place of the file, by the names in CHANGES.
    """
    options = [f"--{name}={value}" for name, value in changes.items() if value is not None]
    command = [sys.executable, "-m", "serve.commands.launch.check", str(config), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return Settings.from_json(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def start(
    settings: Settings, run: Run, signals: Signals, console: Console, place: str, *, is_plain: bool, restarts: bool
) -> int:
    """Runs the service if its ports and its limit of open files allow it. Returns the exit code.

    Args:
        place: of the log.
        restarts: where it dies of what Ray cannot replace, it is started again.
    """
    environment = environment_of(os.environ, run, is_plain=is_plain)
    files = open_files.raise_limit(environment, with_haproxy=bool(haproxy_ports(environment)))
    if obstacles := [*taken_ports(settings, environment), *files]:
        print("\n".join(obstacles), file=sys.stderr)
        return 1
    if signals.first is not None:
        return 0
    log = RunLog(place)
    print(f"starting Ray, loading, warming up: half a minute; all that is printed: {place}" * log.is_file, flush=True)
    for sentence in open_files.few_connections(environment):
        log.write(sentence)
    if os.environ.get("RAY_ADDRESS"):
        print("RAY_ADDRESS is ignored: this command starts its own Ray cluster; use `serve deploy` for a running one")
    command = [interpreter(run.sockets), "-c", SERVE, "run", "--address", "local", str(settings.path)]
    again = Restarts()
    while True:
        service = Service(command, environment, signals, log)
        try:
            return supervise(service, settings, run, environment, console, log)
        except StopRequested as request:
            return stop(service, request, settings, run, environment, log)
        except ServiceDied as error:
            if not (restarts and run.access.exists() and again.may()):  # without that file it has never been ready
                print(*log.latest(), f"{error}: ending the service", sep="\n", file=sys.stderr)
                return 1
            print(f"{error}: starting the service again", file=sys.stderr)
        finally:
            service.end()


def stop(
    service: Service, request: StopRequested, settings: Settings, run: Run, environment: Mapping[str, str], log: RunLog
) -> int:
    """Stops the service as the signal demands. Returns the exit code."""
    grace_s = settings.longest_stream_s if run.access.exists() else 0.0  # without it, no request has been served
    if request.number == signal.SIGTERM and grace_s:
        drain(service, settings.path, grace_s, environment, log)
    return 0 if service.interrupt(grace_s + STOP_MARGIN_S) else 1


def supervise(
    service: Service, settings: Settings, run: Run, environment: Mapping[str, str], console: Console, log: RunLog
) -> int:
    """Announces the service once it is ready, then watches it until it ends. Returns the exit code.

    Raises:
        StopRequested: this process received a signal.
        ServiceDied: a process that Ray cannot replace has ended.
    """
    url, port = announce.address_here(settings.host, settings.port), settings.port
    limit_s = settings.start_timeout_s + START_MARGIN_S
    with console.status("starting Ray, loading, warming up"):
        is_up = service.watch(lambda: is_ready(service, url, port), limit_s=limit_s)
    opened = announce.own_listeners(service.processes())
    token, dashboard = token_of(environment), announce.dashboard_url(opened)
    if not is_up:
        why = (*readiness.missing(url, dashboard, token), *log.latest())
        print(f"not ready after {limit_s:g} s:", *why, sep="\n  ", file=sys.stderr)
        return 1
    run.note(url, access_of(environment, announce.gcs_address(service.processes()), dashboard))
    ports = list(announce.open_ports(opened, port, haproxy_ports(environment), token is not None))
    for line in ports:
        log.write(f"open: {line}")
    text = announce.announcement(url, settings.checkpoint, log.place, announce.ray_details(ports, run.access))
    console.print(text, highlight=False, soft_wrap=True, markup=False)
    service.watch(lambda: False, port=port)
    return 1


def interpreter(folder: Path) -> str:
    """Returns a path of this Python without white space: Ray passes it to a shell unquoted to start its workers."""
    if not any(letter.isspace() for letter in sys.executable):
        return sys.executable
    link = folder / "python"
    link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def environment_of(outside: Mapping[str, str], run: Run, *, is_plain: bool) -> dict[str, str]:
    """Returns the environment of Ray's processes. Variables of `outside` win, except those that name another cluster.

    The service works without the fast data path (is_plain), but that alone has back-pressure to the generator.
    """
    fast = {} if is_plain else haproxy.environment(run.sockets) | open_files.environment()
    environment = (
        ray_environment.environment(Place.START, is_fast=not is_plain)
        | fast
        | ONE_MACHINE
        | token_access(outside, run.token)
        | dict(outside)
    )
    environment.pop("RAY_ADDRESS", None)
    environment |= without_proxy(outside)
    name, _, value = run.variable.partition("=")
    return environment | {name: value}


def token_access(outside: Mapping[str, str], token: Path) -> dict[str, str]:
    """Returns the variables that make Ray require a token: the run's own, unless `outside` names one or turns tokens off."""
    if "RAY_AUTH_TOKEN" in outside or "RAY_AUTH_TOKEN_PATH" in outside:
        return {"RAY_AUTH_MODE": "token"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def without_proxy(outside: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that keep calls on this machine off a proxy: Ray's own HTTP and gRPC calls obey them."""
    chosen = outside.get("no_proxy") or outside.get("NO_PROXY") or ""
    hosts = [host for host in chosen.split(",") if host.strip()]
    value = ",".join([*hosts, *(host for host in LOCAL_HOSTS if host not in hosts)])
    variables = {"no_proxy": value, "NO_PROXY": value}
    return variables | ({"no_grpc_proxy": f"{outside['no_grpc_proxy']},{value}"} if "no_grpc_proxy" in outside else {})


def token_of(environment: Mapping[str, str]) -> str | None:
    """Returns the token that Ray's ports require; None if they require none."""
    if environment["RAY_AUTH_MODE"].lower() != "token":
        return None
    return environment.get("RAY_AUTH_TOKEN") or Path(environment["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="utf-8").strip()


def access_of(environment: Mapping[str, str], gcs: str | None, dashboard: str | None) -> dict[str, str]:
    """Returns the variables with which Ray's commands reach this cluster."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", *ONE_MACHINE)
    variables = {name: environment[name] for name in names if name in environment}
    return variables | ({"RAY_ADDRESS": gcs} if gcs else {}) | ({"RAY_DASHBOARD_ADDRESS": dashboard} if dashboard else {})


def haproxy_ports(environment: Mapping[str, str]) -> dict[int, str]:
    """Returns HAProxy's ports besides the service's own, and what each is for."""
    if environment.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
        return {}
    return {int(environment.get(name, port)): use for name, (port, use) in HAPROXY_PORTS.items()}


def taken_ports(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each port that another process holds."""
    if not is_free(settings.host, settings.port):
        yield f"{port_conflict(settings.host, settings.port)}, or change http_options.port in {settings.path}"
    variables = {use: name for name, (_, use) in HAPROXY_PORTS.items()}
    for port, use in haproxy_ports(environment).items():
        if not is_free(announce.ANY_HOST, port):
            yield f"{port_conflict(announce.ANY_HOST, port)}, set {variables[use]} ({use}), or start with --plain"


def port_conflict(host: str, port: int) -> str:
    """Returns a sentence that names the process on a port, if it can be seen."""
    pid = next((listener.pid for listener in listeners() if listener.port == port), None)
    holder = process(pid) if pid is not None else None
    whose = f"by {holder.name}, process {holder.pid}" if holder is not None else "already"
    return f"{host}:{port} is taken {whose}: stop that"


def drain(service: Service, config: Path, grace_s: float, environment: Mapping[str, str], log: RunLog) -> None:
    """Waits until the streams have ended. In a process of its own: Ray reads its environment when it is imported."""
    address = announce.gcs_address(service.processes())
    if address is None:
        return
    command = [sys.executable, "-m", "serve.commands.operate.drain", str(config), "--grace", str(grace_s), "--address", address]
    draining = logged(command, environment, log)
    if not service.wait_for(draining, grace_s + DRAIN_MARGIN_S):
        print("some streams have not ended in time: stopping anyway", file=sys.stderr)
        draining.kill()
        draining.wait()


def is_ready(service: Service, url: str, port: int) -> bool:
    """True if /ready answers 200 and one of our own processes listens on the port."""
    if not any(listener.port == port for _, listener in announce.own_listeners(service.processes())):
        return False
    try:
        with readiness.session_here() as session:
            return session.get(f"{url}/ready", timeout=READY_S).status_code == 200
    except requests.RequestException:
        return False


if __name__ == "__main__":
    sys.exit(main())
