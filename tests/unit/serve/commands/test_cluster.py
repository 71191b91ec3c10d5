"""Scripts that work on a running cluster say in a sentence that there is none."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serve.commands.launch.runs import Run
from serve.commands.operate import cluster as connection
from serve.commands.operate import leave_node
from serve.config.app_config import PROJECT
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

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
    said = [process.communicate(timeout=120)[1] for process in started]
    return [(process.returncode, lines.splitlines()[-1]) for process, lines in zip(started, said, strict=True)]


def test_a_cluster_that_is_not_there_is_named_in_a_sentence():
    assert last_words(f"127.0.0.1:{free_port()}") == [(1, "the cluster does not answer: ConnectionError")] * len(SCRIPTS)


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
    run.note({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(run.token), "RAY_ADDRESS": address})
    return run


def test_the_one_service_of_this_machine_is_found_with_its_token(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    run = begin_run(tmp_path, address)
    assert f"the Ray cluster at {address}\n" in last_words_in(tmp_path)
    elsewhere = f"127.0.0.1:{free_port()}"
    assert f"the Ray cluster at {elsewhere}\n" in last_words_in(tmp_path, RAY_ADDRESS=elsewhere)
    run.end()


def test_of_several_services_none_is_guessed_and_each_can_be_chosen(tmp_path: Path):
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    runs = [begin_run(tmp_path, address) for address in addresses]
    words = last_words_in(tmp_path).splitlines()[-1]
    assert words == f"several Ray clusters run here ({', '.join(sorted(addresses))}): choose one with --address"
    assert f"the Ray cluster at {addresses[1]}\n" in last_words_in(tmp_path, "--address", addresses[1])
    for run in runs:
        run.end()


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
        found = connection.address_of(named, services, lambda: clusters)
    except ValueError as error:
        found = str(error)
    assert found.startswith(chosen)


def node(address: str, *resources: str) -> dict[str, object]:
    return {"NodeManagerAddress": address, "Resources": dict.fromkeys(resources, 1.0)}


def test_the_node_that_leaves_is_this_machines():
    away = node("203.0.113.7", leave_node.HEAD)  # an address of no machine: RFC 5737
    assert leave_node.node_here({"a": away, "b": node("127.0.0.1")}) == "b"
    with pytest.raises(ValueError, match=r"^none of the cluster's nodes .*--node: a at 203.0.113.7 \(the head\)$"):
        leave_node.node_here({"a": away})
    with pytest.raises(ValueError, match=r"^2 of the cluster's nodes .*--node: b at 127.0.0.1; c at 127.0.0.1$"):
        leave_node.node_here({"b": node("127.0.0.1"), "c": node("127.0.0.1")})


@pytest.mark.parametrize("words", ["ray" + " stop", "address" + " auto", "address=" + '"auto"'])
def test_nothing_here_ends_or_finds_somebody_elses_cluster(words: str):
    """Ray's own command to stop ends every cluster of a machine, and its word for "any" finds somebody else's."""
    listed = subprocess.run(["git", "grep", "-lF", words], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert listed.returncode == 1, f"{words}: {listed.stdout or listed.stderr}"
