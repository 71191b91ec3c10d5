"""The import table: which room may know which. One failure message a broken line."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = {"ray", "fastapi", "starlette", "uvicorn", "requests", "serve", "scripts", "tests"}
TORCH = {"torch", "torchaudio", "ChatTTS", "transformers", "vocos"}

FORBIDDEN: dict[str, set[str]] = {  # files below this prefix: modules they never import
    "pipeline": WEB | {"transformers", "ChatTTS", "vocos", "torchaudio"},
    "pipeline/types": TORCH,
    "pipeline/errors.py": TORCH,
    "pipeline/config.py": TORCH,
    "pipeline/protocols.py": TORCH,
    "pipeline/checkpoint/locate.py": TORCH,
    "pipeline/checkpoint/manifest.py": TORCH,
    "pipeline/checkpoint/capabilities.py": TORCH,
    "pipeline/checkpoint/random_model.py": TORCH,
    "pipeline/checkpoint/random_weights.py": TORCH,
    "pipeline/yaml_loader.py": TORCH,
    "pipeline/ewma.py": TORCH | {"numpy"},
    "pipeline/store": TORCH | {"pipeline.engine", "pipeline.model", "pipeline.vocoder", "pipeline.voices", "numpy"},
    "pipeline/cache": TORCH
    | {f"pipeline.{room}" for room in ("engine", "model", "vocoder", "audio", "voices", "native", "synthesizer")},
    "pipeline/voices": TORCH | {"pipeline.engine", "pipeline.vocoder", "pipeline.text", "pipeline.synthesizer"},
    "pipeline/text": TORCH | {"pipeline.engine", "pipeline.vocoder", "pipeline.audio", "pipeline.synthesizer"},
    "pipeline/audio": TORCH | {"pipeline.engine", "pipeline.vocoder", "pipeline.text", "pipeline.synthesizer"},
    "pipeline/native": {
        "pipeline.model",
        "pipeline.engine",
        "pipeline.vocoder",
        "pipeline.text",
        "pipeline.audio",
        "pipeline.synthesizer",
    },
    "pipeline/model": {"pipeline.engine", "pipeline.vocoder", "pipeline.text", "pipeline.audio", "pipeline.synthesizer"},
    "pipeline/engine": {"pipeline.vocoder", "pipeline.text", "pipeline.audio", "pipeline.synthesizer", "pipeline.voices"},
    "pipeline/vocoder": {"pipeline.engine", "pipeline.text", "pipeline.audio", "pipeline.synthesizer", "pipeline.voices"},
    "pipeline/engine/scheduler.py": {"torch", "numpy"},
    "pipeline/vocoder/windowed/windows.py": {"torch", "numpy"},
    "pipeline/vocoder/stream.py": TORCH,
    "pipeline/synthesizer.py": TORCH | {"pipeline.engine", "pipeline.model.gpt", "pipeline.vocoder.vocoder"},
    "pipeline/engine/waiting_queue.py": {"torch", "numpy"},
    "serve": TORCH | {"scripts", "tests"},
    "serve/access": {"ray", "fastapi", "serve.http", "serve.observability", "serve.speech"},
    "serve/http/api.py": {"ray"},
    "serve/http/routes": {"ray"},
    "serve/http/middleware.py": {"ray", "fastapi"},
    "serve/http/route_access.py": {"ray", "fastapi", "serve.observability"},
    "serve/http/error_reply.py": {"ray", "fastapi", "serve.access"},
    "serve/http/dependencies.py": {"ray"},
    "serve/speech": {"ray", "fastapi", "starlette", "serve.http", "serve.remote"},
    "serve/http/speech_response.py": {"ray"},
    "serve/http/speech_writers.py": {"ray"},
    "serve/http/request_context.py": {"ray"},
    "serve/http/body_reader.py": {"ray"},
    "serve/http/openapi.py": {"ray"},
    "serve/remote/code_cache.py": {"ray"},
    "serve/errors.py": {"ray"},
    "serve/http/error_envelope.py": {"ray"},
    "serve/http/early_refusal.py": {"ray"},
    "serve/config/hosts.py": {"ray", "fastapi", "starlette", "pydantic"},
    "serve/http/haproxy.py": {"ray", "fastapi", "starlette", "pydantic"},
    "serve/observability/stage_timings.py": {"ray"},
    "serve/resilience/autoscaling.py": {"ray", "numpy"},
    "serve/observability/tracing.py": {"ray"},
    "serve/observability/request_log.py": {"ray"},
    "serve/config/app_config.py": {"ray"},
    "scripts": {"tests"},
    "scripts/launch/processes.py": {"ray"},
    "scripts/launch/runs.py": {"ray"},
    "scripts/launch/supervise.py": {"ray"},
    "scripts/launch/announce.py": {"ray"},
}


def imports(path: Path) -> list[str]:
    """Every module a file names, submodules included."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def broken_lines(source: Path, forbidden: set[str]) -> list[str]:
    return [
        f"{source.relative_to(ROOT)} imports {name}"
        for name in imports(source)
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


@pytest.mark.parametrize("prefix", FORBIDDEN)
def test_rooms_import_only_what_they_may(prefix):
    place = ROOT / prefix
    sources = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
    assert sources, f"{prefix} has moved: change the table"
    assert not [line for source in sources for line in broken_lines(source, FORBIDDEN[prefix])]


def test_the_table_catches_a_broken_line(tmp_path):
    bad = tmp_path / "scheduler.py"
    bad.write_text("from torch import nn\nimport numpy.random\n")
    assert [name for name in imports(bad) if name.split(".")[0] in {"torch", "numpy"}] == ["torch.nn", "numpy.random"]


def test_nothing_is_imported_inside_a_function():
    for folder in ("pipeline", "serve", "scripts"):
        for source in sorted((ROOT / folder).rglob("*.py")):
            for function in ast.walk(ast.parse(source.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    inner = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                    assert not inner, f"{source.relative_to(ROOT)}:{inner[0].lineno} imports inside a function"


def test_no_future_annotations():
    """They silently turn annotations into strings, which Ray's and FastAPI's factories cannot read."""
    for source in ROOT.rglob("*.py"):
        if ".venv" not in source.parts:
            assert "from __future__ import " + "annotations" not in source.read_text(), source


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        "serve.deployments.ingress, pipeline.synthesizer",
        "serve.deployments.text_normalizer",
        "serve.config.config_file, serve.http.proxy_middleware",
    ],
)
def test_cpu_processes_never_load_torch(modules):
    code = f"import {modules}, sys; assert 'torch' not in sys.modules, 'torch was loaded'"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_named_files_do_the_named_things():
    def files_with(text: str) -> set[str]:
        sources = [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "serve").rglob("*.py")]
        return {str(source.relative_to(ROOT)) for source in sources if text in source.read_text()}

    assert files_with(".remote(") <= {"serve/remote/remote_stages.py"}
    assert files_with("threading.Thread(") <= {"pipeline/engine/engine.py", "pipeline/vocoder/vocoder.py"}
    assert files_with("os.environ") <= {"pipeline/paths.py"}
    # The time of day jumps: it dates and counts days, and measures nothing that somebody waits for.
    assert files_with("time.time") <= {
        "pipeline/checkpoint/locate.py",
        "serve/access/quotas.py",
        "serve/observability/tracing.py",
    }
    assert files_with("datetime.now") <= {"serve/access/api_keys.py", "serve/voices/voice_maker.py"}
