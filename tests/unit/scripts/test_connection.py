"""Scripts that work on a running cluster say in a sentence that there is none."""

import os
import subprocess
import sys

from serve.config import PROJECT
from tests.ports import free_port

SCRIPTS = (["scripts.leave"], ["scripts.drain", "configs/dev.yaml"])
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
