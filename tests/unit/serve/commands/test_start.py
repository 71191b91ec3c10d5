"""What `start` decides before it starts anything: the environment of Ray's processes, ports, limits, words."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.errors import ConfigError
from serve.commands.launch import announce, open_files, ray_environment, start
from serve.commands.launch.check import changed, settings_of
from serve.commands.launch.open_files import CONNECTIONS, MAXCONN, connections, few_connections, files_for, raise_limit
from serve.commands.launch.processes import members, processes
from serve.commands.launch.ray_environment import Place
from serve.commands.launch.run_log import RunLog
from serve.commands.launch.runs import Run
from serve.commands.launch.settings import Settings
from serve.commands.launch.supervise import Restarts, Service, Signals
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file
from tests.support.ports import free_port
from tests.support.signals import as_in_a_terminal

BOX = PROJECT / "configs/box.yaml"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    begun = Run.begin(tmp_path)
    yield begun
    begun.end()


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    """configs/dev.yaml on a free port."""
    path = tmp_path / "config.yaml"
    text = (PROJECT / "configs/dev.yaml").read_text().replace("port: 8000", f"port: {free_port()}")
    path.write_text(text.replace("source: configs/dev.yaml", f"source: {path}"))
    return settings_of(check_file(path))


def start_it(config: Settings, home: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "serve.commands.launch.start", str(config.path)]
    environment = os.environ | {"CHATTTS_HOME": str(home), "PYTHONPATH": str(PROJECT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("is_plain", [True, False])
def test_ray_asks_for_the_token_of_the_run_and_stays_on_loopback(run: Run, is_plain: bool):
    environment = start.environment_of({}, run, is_plain=is_plain)
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(run.token)
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert run.token.read_text() not in str(environment)


def test_machines_of_ray_start_and_pods_get_what_a_start_gives(run: Run):
    command = 'eval "$("$0" -m serve.commands env)" && env'
    done = subprocess.run(["bash", "-c", command, sys.executable], cwd=PROJECT, capture_output=True, text=True, check=True)
    machines = dict(
        line.split("=", 1) for line in done.stdout.splitlines() if line.startswith(("RAY_", "METRICS_", "OPENBLAS_"))
    )
    here = start.environment_of({}, run, is_plain=False)
    own = {name for name in here if name.startswith(("CHATTTS_", "RAY_AUTH", "no_proxy", "NO_PROXY"))} | set(start.ONE_MACHINE)
    own |= {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"}
    of_the_run = {name for name, value in here.items() if str(run.sockets) in value}
    assert {name: here[name] for name in here if name not in own | of_the_run}.items() <= machines.items()
    assert machines["RAY_AUTH_MODE"] == "token"
    assert os.access(machines["RAY_SERVE_HAPROXY_BINARY_PATH"], os.X_OK)
    pods = ray_environment.environment(Place.PODS)
    differs = {name for name in machines.keys() & pods.keys() if machines[name] != pods[name]}
    assert differs <= {"RAY_SERVE_HAPROXY_BINARY_PATH", "RAY_SERVE_HAPROXY_MAXCONN"}


@pytest.mark.parametrize("is_plain", [True, False])
def test_numpys_threads_leave_the_cores_to_native_code(run: Run, is_plain: bool):
    assert start.environment_of({}, run, is_plain=is_plain)["OPENBLAS_NUM_THREADS"] == "1"
    chosen = {"OPENBLAS_NUM_THREADS": "2"}
    assert chosen.items() <= start.environment_of(chosen, run, is_plain=is_plain).items()


@pytest.mark.parametrize("chosen", [{"RAY_AUTH_TOKEN": "mine"}, {"RAY_AUTH_TOKEN_PATH": "/mine"}])
def test_a_token_chosen_outside_is_kept(run: Run, chosen: dict[str, str]):
    environment = start.environment_of(chosen, run, is_plain=True)
    assert chosen.items() <= environment.items()
    assert environment["RAY_AUTH_MODE"] == "token"
    assert str(run.token) not in environment.values()


def test_a_start_without_token_warns(run: Run):
    environment = start.environment_of({"RAY_AUTH_MODE": "disabled"}, run, is_plain=True)
    assert start.token_of(environment) is None
    with socket.create_server(("0.0.0.0", 0)):
        opened = announce.own_listeners([process for process in processes() if process.pid == os.getpid()])
        lines = list(announce.open_ports(opened, 8000, {}, token=False))
    assert any("everyone who reaches this machine, WITHOUT A TOKEN" in line for line in lines)


def test_the_cluster_named_outside_is_not_joined(run: Run):
    assert "RAY_ADDRESS" not in start.environment_of({"RAY_ADDRESS": "192.0.2.1:6379"}, run, is_plain=True)


@pytest.mark.parametrize(
    ("outside", "expected"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"HTTP_PROXY": "http://proxy:3128"}, "127.0.0.1,localhost,::1"),
        ({"no_proxy": ".example.org,localhost"}, ".example.org,localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "example.org"}, "example.org,127.0.0.1,localhost,::1"),
        ({"NO_PROXY": ""}, "127.0.0.1,localhost,::1"),
    ],
)
def test_no_proxy_stands_between_rays_processes(run: Run, outside: dict[str, str], expected: str):
    environment = start.environment_of(outside, run, is_plain=True)
    assert environment["no_proxy"] == environment["NO_PROXY"] == expected
    assert "no_grpc_proxy" not in environment


def test_grpcs_own_variable_wins_over_the_others_and_is_extended(run: Run):
    environment = start.environment_of({"no_grpc_proxy": "example.org"}, run, is_plain=True)
    assert environment["no_grpc_proxy"] == "example.org,127.0.0.1,localhost,::1"


@pytest.mark.slow
def test_a_taken_port_is_one_sentence_and_nothing_is_started(config: Settings, tmp_path: Path):
    with socket.create_server(("127.0.0.1", config.port)):
        done = start_it(config, tmp_path / "home")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "is taken" in line and "http_options.port" in line]
    assert f"127.0.0.1:{config.port} is taken by " in line
    assert f"process {os.getpid()}" in line
    assert "Page:" not in done.stdout
    assert list((tmp_path / "home/runs").iterdir()) == []


def test_haproxys_ports_are_looked_at_where_there_is_one(config: Settings, run: Run):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        others = {"RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()), "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port())}
        outside = others | {"RAY_SERVE_HAPROXY_METRICS_PORT": str(port)}
        assert list(start.taken_ports(config, start.environment_of(outside, run, is_plain=True))) == []
        (line,) = start.taken_ports(config, start.environment_of(outside, run, is_plain=False))
    assert f":{port} is taken by " in line
    assert "set RAY_SERVE_HAPROXY_METRICS_PORT" in line


@pytest.mark.slow
def test_too_few_open_files_are_one_sentence(config: Settings, tmp_path: Path):
    done = start_it(config, tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("at most 256 files may be open here, and 10500 are needed")


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_one_sentence(config: Settings, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = start_it(config, tmp_path / "file")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"cannot write in {tmp_path / 'file'}: ")


def test_a_service_that_does_not_come_up_is_ended_and_what_is_missing_is_said(config: Settings, run: Run, monkeypatch, capfd):
    monkeypatch.setattr(start, "START_MARGIN_S", -config.start_timeout_s)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    log = RunLog(str(run.folder / "log"))
    service = Service(
        ["sh", "-c", "echo '\033[31mThat\033[0m is wrong'; echo INFO all is well; exec sleep 600"], os.environ, Signals(), log
    )
    try:
        environment = start.environment_of({}, run, is_plain=True)
        assert start.supervise(service, config, run, environment, Console(), log) == 1
    finally:
        service.end()
        for number, handler in before.items():
            signal.signal(number, handler)
    output = capfd.readouterr().err
    assert "not ready after 0 s" in output
    assert output.endswith("\n  That is wrong\n"), "of the log, what is not routine"
    assert (run.folder / "log").read_text().splitlines() == ["That is wrong", "INFO all is well"]
    assert f"{announce.address_here(config.host, config.port)}/ready does not answer (ConnectionError)" in output


def test_a_full_disk_costs_lines_of_the_log_alone(capfd: pytest.CaptureFixture[str]):
    log = RunLog("/dev/full")
    log.write("That is wrong")
    assert log.latest() == ["That is wrong"]
    assert capfd.readouterr() == ("", "")


def test_a_stranger_on_the_port_is_not_taken_for_the_service(config: Settings):
    """Somebody may have come between the look at the ports and the start."""

    class NotOurs:
        def processes(self):
            return []

    with socket.create_server(("127.0.0.1", config.port)):
        assert not start.is_ready(NotOurs(), announce.address_here(config.host, config.port), config.port)


def test_ray_gets_a_python_whose_path_a_shell_can_read(tmp_path: Path, monkeypatch):
    (tmp_path / "a venv").symlink_to(sys.prefix)
    spaced = tmp_path / "a venv" / Path(sys.executable).relative_to(sys.prefix)
    assert start.interpreter(tmp_path) == sys.executable, "as long as there is nothing in the way"
    monkeypatch.setattr(sys, "executable", str(spaced))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a venv"))
    path = start.interpreter(tmp_path)
    assert " " not in path
    result = subprocess.run(
        ["bash", "-c", f"{path} -c 'import sys, ray; print(sys.executable)'"], capture_output=True, text=True
    )
    assert result.stdout.strip() == path, result.stderr


def test_the_settings_arrive_as_they_were_sent(config: Settings):
    assert Settings.from_json(config.as_json()) == config
    assert (config.host, config.checkpoint, config.longest_stream_s) == ("127.0.0.1", "demo", 60.0)


@pytest.mark.slow
def test_the_process_that_waits_holds_no_ray():
    """It waits for days: 19 MB of its own instead of 105."""
    heavy = "{'ray', 'fastapi', 'numpy', 'pydantic'}"
    code = f"import sys, serve.commands.launch.start; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_command_line_wins_over_the_file(config: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))
    assert changed(config.path, None, None, None) == config.path
    path = changed(config.path, "::1", "8123", "small-random")
    settings = settings_of(check_file(path))
    assert (settings.host, settings.port, settings.checkpoint) == ("::1", 8123, "small-random")
    assert settings_of(check_file(changed(BOX, None, "8123", None))).is_one_process
    assert check_file(BOX).port == 8000, "the file itself stays as it is"
    with pytest.raises(ConfigError, match="--port must be a number, found x"):
        changed(BOX, None, "x", None)


@pytest.mark.slow
def test_a_wrong_file_is_one_answer(config: Settings, tmp_path: Path):
    config.path.write_text(config.path.read_text().replace("slots: 8", "slotz: 8"))
    done = start_it(config, tmp_path / "home")
    assert (done.returncode, done.stdout.strip()) == (1, "")
    assert "slotz" in done.stderr
    assert "Traceback" not in done.stderr


# The supervisor, over programs that bear the names of Ray's: what it notices, and that it always ends all.

# `serve run` as far as the supervisor sees it: two children, and a deaf ear where that is asked for.
COMMAND = """
import os, signal, subprocess, sys, time
folder, manner = sys.argv[1:]
if manner == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen([f"{folder}/{name}", "600"]) for name in ("gcs_server", "raylet")]
print("command", os.getpid(), *[child.pid for child in children], flush=True)
try:
    time.sleep(2 if manner == "short" else 600)
except KeyboardInterrupt:
    for child in children:
        child.kill()
    print("interrupted", flush=True)
    sys.exit(0)
sys.exit(3)
"""
SUPERVISOR = """
import os, sys
from serve.commands.launch import supervise
from serve.commands.launch.run_log import RunLog
from serve.commands.launch.supervise import ServiceDied, Service, Signals, StopRequested
supervise.LAST_STEPS_S = supervise.TERM_PATIENCE_S = 1.0
signals = Signals()
service = Service([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], os.environ, signals, RunLog("-"))
try:
    service.watch(lambda: len(service._vital) == 2)
    print("watching", flush=True)
    service.watch(lambda: print("look", flush=True))
except StopRequested as asked:
    print("asked", asked, flush=True)
    print("in time", service.interrupt(600.0), flush=True)
except ServiceDied as error:
    print("died:", error, flush=True)
finally:
    service.end()
    print("left", len(service.processes()), flush=True)
"""


def as_in_the_background() -> None:
    as_in_a_terminal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Supervised:
    """A supervisor in a process of its own, started as a shell starts a background command: SIGINT is ignored.

    SIGHUP is not, whatever the tests themselves have inherited (`nohup make test`).
    """

    def __init__(self, folder: Path, manner: str) -> None:
        for name in ("gcs_server", "raylet"):
            (folder / name).symlink_to("/bin/sleep")
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", SUPERVISOR, COMMAND, str(folder), manner],
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=as_in_the_background,
        )
        _, *pids = self.until("command").split()
        self.session, self.gcs, self.raylet = map(int, pids)
        self.until("watching")

    def until(self, word: str) -> str:
        """The first line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"it ended without {word!r}")

    def end(self) -> None:
        with self.process:
            assert self.until("left") == "left 0"
        assert self.process.returncode == 0
        assert members(self.session) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_cluster_without_its_raylet_or_gcs_is_dead(tmp_path: Path, name: str):
    supervised = Supervised(tmp_path, "long")
    os.kill(supervised.raylet if name == "raylet" else supervised.gcs, signal.SIGKILL)
    assert supervised.until("died") == f"died: Ray's {name} ended"
    supervised.end()


@pytest.mark.slow
def test_a_command_that_ends_by_itself_leaves_nothing(tmp_path: Path):
    supervised = Supervised(tmp_path, "short")
    assert supervised.until("died") == "died: `serve run` ended with exit code 3"
    supervised.end()


@pytest.mark.slow
def test_stopped_processes_are_no_dead_ones(tmp_path: Path):
    """A debugger, a benchmark's turn, a machine that sleeps."""
    supervised = Supervised(tmp_path, "long")
    for pid in (supervised.gcs, supervised.raylet):
        os.kill(pid, signal.SIGSTOP)
    for _ in range(8):  # none of the supervisor's looks may end anything
        supervised.until("look")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.until("asked") == "asked SIGTERM"
    supervised.end()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_is_interrupted_though_the_supervisor_was_started_deaf_to_it(tmp_path: Path, number: signal.Signals):
    supervised = Supervised(tmp_path, "long")
    supervised.process.send_signal(number)
    assert supervised.until("asked") == f"asked {number.name}"
    assert supervised.until("interrupted")
    assert supervised.until("in time") == "in time True"
    supervised.end()


@pytest.mark.slow
def test_a_second_signal_ends_what_does_not_heed_the_first(tmp_path: Path):
    supervised = Supervised(tmp_path, "deaf")
    for number in (signal.SIGTERM, signal.SIGINT):  # at once: `make` passes on what the whole group has received
        supervised.process.send_signal(number)
    supervised.until("asked")
    time.sleep(2.0)
    assert supervised.process.poll() is None, "two at once are one"
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.until("in time") == "in time False"
    supervised.end()


@pytest.mark.slow
def test_a_command_that_hangs_in_a_dead_cluster_is_not_waited_for(tmp_path: Path):
    supervised = Supervised(tmp_path, "deaf")
    supervised.process.send_signal(signal.SIGTERM)
    supervised.until("asked")
    os.kill(supervised.raylet, signal.SIGKILL)
    assert supervised.until("in time") == "in time False"
    supervised.end()


@pytest.mark.slow
def test_a_service_that_dies_again_and_again_is_not_started_for_ever():
    now = 0.0
    again = Restarts(lambda: now)
    assert all(again.may() for _ in range(Restarts.MOST))
    now = Restarts.WINDOW_S - 1.0
    assert not again.may()
    now = Restarts.WINDOW_S
    assert again.may(), "the first of them is long ago"


# Open files: HAProxy gets as many connections as the system's limit allows, and who has too few is told what to do.

Limit = Callable[[int, int], list[tuple[int, int]]]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets what the system says about its limit; returns what it is asked to set."""

    def set_to(now: int, most: int) -> list[tuple[int, int]]:
        limits_set: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: (now, most))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: limits_set.append(limits))
        return limits_set

    return set_to


@pytest.mark.parametrize(
    ("now", "most", "connections_held"),
    [
        (1024, 65_536, CONNECTIONS),
        (1024, resource.RLIM_INFINITY, CONNECTIONS),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, CONNECTIONS),
        (24_100, 24_100, CONNECTIONS),
        (1024, 20_000, 9950),
        (1024, 10_500, 5200),
        (256, 256, 5200),  # and raise_limit refuses
    ],
)
def test_as_many_connections_as_files_allow_and_12000_at_most(limit: Limit, now: int, most: int, connections_held: int):
    limit(now, most)
    assert connections() == connections_held
    warnings = list(few_connections(open_files.environment()))
    assert [warning.split(" at a time")[0] for warning in warnings] == (
        [] if connections_held == CONNECTIONS else [f"HAProxy holds {connections_held} connections"]
    )


def test_the_limit_is_raised_and_that_is_enough(limit: Limit):
    limits_set = limit(1024, 20_000)
    assert list(raise_limit(open_files.environment(), with_haproxy=True)) == []
    assert limits_set == [(20_000, 20_000)]


@pytest.mark.parametrize(
    ("most", "chosen", "with_haproxy", "sentence"),
    [
        (8192, {}, True, "at most 8192 files may be open here, and 10500 are needed: raise the limit"),
        (20_000, {MAXCONN: "10000"}, True, "and 20100 are needed: raise the limit (`ulimit -Hn 20100`"),
        (20_000, {MAXCONN: "10000"}, True, f"lower {MAXCONN}"),
        (256, {}, False, "at most 256 files may be open here, and 1024 are needed"),
    ],
)
def test_a_limit_that_is_too_low_is_one_sentence(
    limit: Limit, most: int, chosen: dict[str, str], with_haproxy: bool, sentence: str
):
    limit(256, most)
    (error,) = raise_limit(open_files.environment() | chosen, with_haproxy=with_haproxy)
    assert sentence in error


def test_a_number_of_the_operators_own_is_not_called_few(limit: Limit):
    limit(1024, 20_000)
    assert list(few_connections({MAXCONN: "6000"})) == []
    assert files_for(6000) == 12_100
