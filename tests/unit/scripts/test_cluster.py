"""Scripts that work on a running cluster say in a sentence that there is none."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.launch.runs import Run
from serve.config.app_config import PROJECT
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

SCRIPTS = (["scripts.operate.leave_node"], ["scripts.operate.drain", "configs/dev.yaml"])
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
    assert last_words("nowhere") == [(1, "Invalid address format: nowhere")] * len(SCRIPTS)


HANGS = """
import sys
from scripts.operate import cluster as connection
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


def last_words_in(home: Path, **variables: str) -> str:
    """What scripts.operate.drain ends with, told no address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "RAY_ADDRESS"))}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.operate.drain", "configs/dev.yaml"],
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
    assert f"Using address {address} " in last_words_in(tmp_path)
    elsewhere = f"127.0.0.1:{free_port()}"
    assert f"Using address {elsewhere} " in last_words_in(tmp_path, RAY_ADDRESS=elsewhere)
    run.end()


def test_of_several_services_none_is_guessed(tmp_path: Path):
    runs = [begin_run(tmp_path, f"127.0.0.1:{port}") for port in (1, 2)]
    said = last_words_in(tmp_path).splitlines()[-1]
    assert said.startswith("several services run here (127.0.0.1:")
    for run in runs:
        run.end()
