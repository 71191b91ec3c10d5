"""No process of the service loads a library that it does not use with configs/dev.yaml: there are many of them, and each would
hold it for as long as the service runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADED = "import sys, {modules}; print(*{{name.partition('.')[0] for name in sys.modules}})"
# jsonschema, which every process of Ray loads, takes this parser of addresses along where a test tool has installed it.
FOR_TESTS = {"rfc3987_syntax", "lark"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        ("serve.deployments.text_normalizer", {"redis", "tokenizers", "safetensors", "av", "opencc"}),
        ("serve.deployments.vocoder", {"redis", "tokenizers", "av", "opencc"}),
        ("serve.deployments.acoustic_model", {"redis", "tokenizers", "av", "opencc"}),
        ("serve.deployments.ingress", {"redis", "tokenizers"}),
        ("pipeline.text.isolation.worker", {"redis", "ray", "safetensors", "av"}),
    ],
)
def test_a_process_loads_what_it_uses(modules: str, unused: set[str]):
    code = LOADED.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert modules.partition(".")[0] in loaded
    assert not (unused | FOR_TESTS) & loaded
