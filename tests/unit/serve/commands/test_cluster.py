"""Scripts that work on a running cluster say in a sentence that there is none."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serve.commands.launch.processes import end_session, is_free, listeners, members, process, sessions_with
from serve.commands.launch.runs import Run, end_leftovers, running, services
from serve.commands.operate import cluster as connection
from serve.commands.operate import keys, leave_node
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file
from tests.support.ports import free_port
from tests.support.services import RedisServer

SCRIPTS = (["serve.commands.operate.leave_node"], ["serve.commands.operate.drain", "configs/dev.yaml"])
ADVICE = "give HOST:PORT, or leave it out for the one that runs here"
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "1", "RAY_gcs_rpc_server_connect_timeout_s": "1"}


def last_words(address: str) -> list[tuple[int, str]]:
    """Exit code and last line of each script, of all that Ray itself logs before."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *script, "--address", address],
            cwd=PROJECT,
            env=os.environ | IMPATIENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for script in SCRIPTS
    ]
    outputs = [process.communicate(timeout=120)[1] for process in started]
    return [(process.returncode, lines.splitlines()[-1]) for process, lines in zip(started, outputs, strict=True)]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_named_in_a_sentence():
    assert last_words(f"127.0.0.1:{free_port()}") == [(1, "the cluster does not answer: ConnectionError")] * len(SCRIPTS)


@pytest.mark.slow
def test_what_is_no_address_is_named_in_a_sentence():
    for address in ("nowhere", "auto", "local", "ray://there:10001"):  # Ray's own words for any cluster, for a new one, a proxy
        with pytest.raises(ValueError, match=f"^{address} is no address of a Ray cluster: {ADVICE}$"):
            connection.address_of(address, [], set)
    assert last_words("auto") == [(1, f"auto is no address of a Ray cluster: {ADVICE}")] * len(SCRIPTS)


HANGS = """
import sys
from serve.commands.operate import cluster as connection
connection.CONNECT_S = 1.0
with connection.connected(sys.argv[1], 1.0):
    pass
"""


@pytest.mark.slow
def test_a_cluster_that_takes_connections_and_answers_nothing_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        command = [sys.executable, "-c", HANGS, f"127.0.0.1:{deaf.getsockname()[1]}"]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "the cluster did not answer within 2 s"


def last_words_in(home: Path, *options: str, **variables: str) -> str:
    """What serve.commands.operate.drain writes, without an address unless an option gives one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "RAY_ADDRESS"))}
    done = subprocess.run(
        [sys.executable, "-m", "serve.commands.operate.drain", "configs/dev.yaml", *options],
        cwd=PROJECT,
        env=environment | IMPATIENT | {"CHATTTS_HOME": str(home)} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    return done.stderr


def begin_run(home: Path, address: str) -> Run:
    run = Run.begin(home)
    run.note("http://127.0.0.1:8000", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(run.token), "RAY_ADDRESS": address})
    return run


@pytest.mark.slow
def test_the_one_service_of_this_machine_is_found_with_its_token(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    run = begin_run(tmp_path, address)
    assert f"the Ray cluster at {address}\n" in last_words_in(tmp_path)
    elsewhere = f"127.0.0.1:{free_port()}"
    assert f"the Ray cluster at {elsewhere}\n" in last_words_in(tmp_path, RAY_ADDRESS=elsewhere)
    run.end()


@pytest.mark.slow
def test_of_several_services_none_is_guessed_and_each_can_be_chosen(tmp_path: Path):
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    runs = [begin_run(tmp_path, address) for address in addresses]
    words = last_words_in(tmp_path).splitlines()[-1]
    assert words == f"several Ray clusters run here ({', '.join(sorted(addresses))}): choose one with --address"
    assert f"the Ray cluster at {addresses[1]}\n" in last_words_in(tmp_path, "--address", addresses[1])
    for run in runs:
        run.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "services", "clusters", "chosen"),
    [
        ("10.0.0.1:6379", ["10.0.0.2:1"], {"10.0.0.3:1"}, "10.0.0.1:6379"),
        (None, ["10.0.0.2:1"], {"10.0.0.2:1", "10.0.0.3:1"}, "10.0.0.2:1"),  # its own, whatever runs beside it
        (None, [], {"10.0.0.3:1"}, "10.0.0.3:1"),
        (None, [], {"10.0.0.3:1", "10.0.0.4:1"}, "several Ray clusters run here (10.0.0.3:1, 10.0.0.4:1)"),
        (None, ["10.0.0.2:1", "10.0.0.5:1"], set(), "several Ray clusters run here (10.0.0.2:1, 10.0.0.5:1)"),
        (None, [], set(), "no service runs here"),
    ],
)
def test_a_command_acts_on_its_own_cluster(named, services, clusters, chosen):
    try:
        address = connection.address_of(named, services, lambda: clusters)
    except ValueError as error:
        address = str(error)
    assert address.startswith(chosen)


def node(address: str, *resources: str) -> dict[str, object]:
    return {"NodeManagerAddress": address, "Resources": dict.fromkeys(resources, 1.0)}


@pytest.mark.slow
def test_the_node_that_leaves_is_this_machines():
    away = node("203.0.113.7", leave_node.HEAD)  # an address of no machine: RFC 5737
    assert leave_node.node_here({"a": away, "b": node("127.0.0.1")}) == "b"
    with pytest.raises(ValueError, match=r"^none of the cluster's nodes .*--node: a at 203.0.113.7 \(the head\)$"):
        leave_node.node_here({"a": away})
    with pytest.raises(ValueError, match=r"^2 of the cluster's nodes .*--node: b at 127.0.0.1; c at 127.0.0.1$"):
        leave_node.node_here({"b": node("127.0.0.1"), "c": node("127.0.0.1")})


@pytest.mark.slow
@pytest.mark.parametrize("words", ["ray" + " stop", "address" + " auto", "address=" + '"auto"'])
def test_nothing_here_ends_or_finds_somebody_elses_cluster(words: str):
    """Ray's own command to stop ends every cluster of a machine, and its word for "any" finds somebody else's."""
    listed = subprocess.run(["git", "grep", "-lF", words], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert listed.returncode == 1, f"{words}: {listed.stdout or listed.stderr}"


# Sessions are ended whole, whoever the parent of a process is; open ports are those of the kernel.

# A parent that ends and leaves a child behind, which is then nobody's; neither heeds SIGTERM.
LEAVES_A_CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    print("ready", flush=True)
    time.sleep(600)
"""


def begin(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | variables, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_an_orphan_that_ignores_sigterm_is_ended():
    with begin(LEAVES_A_CHILD, WHOSE="theirs") as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.wait()
        (orphan,) = members(parent.pid)
        assert orphan.parent != parent.pid
        assert sessions_with("WHOSE=theirs") == {parent.pid}
        assert sessions_with("WHOSE=their") == set(), "a part of a value is not the value"
        assert end_session(parent.pid, 0.2) == [orphan.name]
        assert members(parent.pid) == []
        assert process(orphan.pid) is None


def test_a_process_that_heeds_sigterm_ends_by_itself():
    heeds = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('ready', flush=True); time.sleep(600)"
    with begin(f"import signal, sys, time; {heeds}") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert end_session(child.pid, 60.0)
        assert child.wait() == 7


def test_nobody_ends_his_own_session():
    with pytest.raises(ValueError, match="its own session"):
        end_session(os.getsid(0), 0.0)


@pytest.mark.parametrize(
    ("family", "host", "is_local"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "127.0.0.9", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::", False),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
    ],
)
def test_an_open_port_is_found_with_its_owner_and_its_reach(family, host, is_local):
    with socket.socket(family) as server:
        try:
            server.bind((host, port := free_port()))  # which nobody has in the other family either
        except OSError:
            pytest.skip(f"this machine has no {host}")
        server.listen()
        (listener_found,) = [listener for listener in listeners() if listener.port == port]
        assert listener_found.is_local == is_local
        assert listener_found.pid == os.getpid()
        assert not is_free("0.0.0.0" if family == socket.AF_INET else "::", port)
    assert is_free(host, port)
    assert not [listener for listener in listeners() if listener.port == port]


def test_a_process_name_may_hold_what_separates_columns(tmp_path: Path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as child:
        try:
            info = process(child.pid)
            assert info is not None
            assert (info.parent, info.session) == (os.getpid(), os.getsid(0))
        finally:
            child.kill()


# A run's folder: private, told from a dead one by its lock, and the way back to what a dead one left running.

# A supervisor with a service: a child in a session of its own, with the run's variable. Both stay.
SUPERVISOR = """
import os, subprocess, sys, time
from pathlib import Path
from serve.commands.launch.runs import Run
run = Run.begin(Path(sys.argv[1]))
name, _, value = run.variable.partition("=")
child = subprocess.Popen(["sleep", "600"], env=os.environ | {name: value}, start_new_session=True)
run.note("http://127.0.0.1:8000", {"RAY_ADDRESS": "127.0.0.1:1"})
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path):
    """A supervisor and its service's session."""
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        yield process, session
        process.kill()
    end_leftovers(tmp_path)


def test_only_its_owner_can_read_it(tmp_path: Path):
    before = os.umask(0)
    try:
        run = Run.begin(tmp_path / "a home")
    finally:
        os.umask(before)
    run.note("http://127.0.0.1:8000", {"RAY_AUTH_TOKEN_PATH": str(run.token)})
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.folder.iterdir()}
    assert modes == {"token": 0o600, "lock": 0o600, "env": 0o600, "sockets": 0o700}
    assert run.folder.stat().st_mode & 0o777 == run.folder.parent.stat().st_mode & 0o777 == 0o700
    sockets = run.sockets
    assert len(str(sockets)) < 30, "however long the path of the home is"
    run.end()
    assert not run.folder.exists()
    assert not sockets.exists()


def test_each_run_has_a_token_of_its_own(tmp_path: Path):
    runs = [Run.begin(tmp_path) for _ in range(2)]
    tokens = {run.token.read_text() for run in runs}
    assert len(tokens) == 2
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}
    for run in runs:
        run.end()


def test_what_is_noted_can_be_read_by_a_shell_and_by_scripts(tmp_path: Path):
    run = Run.begin(tmp_path / "it's a home")
    noted = {"RAY_AUTH_TOKEN_PATH": str(run.token), "RAY_ADDRESS": "127.0.0.1:6379"}
    run.note("http://127.0.0.1:8000", noted)
    done = subprocess.run(["sh", "-c", f'. "{run.access}"; cat "$RAY_AUTH_TOKEN_PATH"'], capture_output=True, text=True)
    assert done.stdout == run.token.read_text()
    assert running(tmp_path / "it's a home") == [noted]
    assert [(service.port, service.pid) for service in services(tmp_path / "it's a home")] == [(8000, os.getpid())]
    run.end()
    assert running(tmp_path / "it's a home") == []


def test_a_service_whose_supervisor_lives_is_left_alone(tmp_path: Path, supervisor):
    _, session = supervisor
    assert end_leftovers(tmp_path) == []
    assert [member.name for member in members(session)] == ["sleep"]
    assert running(tmp_path) == [{"RAY_ADDRESS": "127.0.0.1:1"}]


def test_a_service_whose_supervisor_was_killed_is_ended(tmp_path: Path, supervisor):
    process, session = supervisor
    process.kill()
    process.wait()
    assert members(session), "nobody told it to end"
    assert running(tmp_path) == []
    (link,) = (tmp_path / "runs").glob("*/sockets")
    sockets = link.readlink()
    assert end_leftovers(tmp_path) == ["sleep"]
    assert not sockets.exists()
    assert members(session) == []
    assert list((tmp_path / "runs").iterdir()) == []


# The command for keys: a service that stays open says so, and `--close` closes its file and changes nothing else.

FILES = ("k8s-dev.yaml", "gpu.yaml", "dev.yaml")


def configuration(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text((PROJECT / "configs" / name).read_text().replace(f"source: configs/{name}", f"source: {path}"))
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", FILES)
def test_a_key_on_an_open_service_protects_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    path = configuration(tmp_path, name)
    before = path.read_text()
    assert keys.main(["add", "anna", "--config", str(path)]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("ck-")
    assert ("WARNING" in output.err) == ("keys.open: false ends that" in output.err) == (name == "k8s-dev.yaml")
    assert path.read_text() == before


@pytest.mark.parametrize("name", FILES)
def test_closing_changes_one_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    path = configuration(tmp_path, name)
    before = path.read_text()
    assert keys.main(["add", "anna", "--close", "--config", str(path)]) == 0
    assert path.read_text() == before.replace("{open: true}", "{open: false}")
    assert check_file(path).app.keys.open is {"dev.yaml": None}.get(name, False)
    assert "WARNING" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("applications:\n- args:\n    keys: {open: true, open_lists: true}\n", "{open: false, open_lists: true}"),
        ("applications:\n- args:\n    keys:\n      open_lists: true\n      open: yes  # why\n", "open: false  # why"),
        ('{"applications": [{"args": {"x": "é", "keys": {"open": true}}}]}', '{"x": "é", "keys": {"open": false}}'),
    ],
)
def test_whatever_the_file_looks_like(text: str, after: str):
    assert after in keys.closed(text)


@pytest.mark.parametrize(("name", "warns"), [("gpu.yaml", False), ("dev.yaml", True)])
def test_a_home_that_cannot_be_written_matters_where_the_file_does_not_close_the_service(
    name: str, warns: bool, tmp_path: Path, own_redis: RedisServer, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "home").touch()
    assert keys.main(["add", "anna", "--store", own_redis.url, "--config", str(configuration(tmp_path, name))]) == 0
    assert ("cannot be written" in capsys.readouterr().err) is warns


def test_closing_needs_a_file(capsys: pytest.CaptureFixture[str]):
    assert keys.main(["add", "anna", "--close"]) == 2
    assert "--config" in capsys.readouterr().err
