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
    "pipeline/types.py": TORCH,
    "pipeline/errors.py": TORCH,
    "pipeline/config.py": TORCH,
    "pipeline/protocols.py": TORCH,
    "pipeline/checkpoints.py": TORCH,
    "pipeline/manifest.py": TORCH,
    "pipeline/taught.py": TORCH,
    "pipeline/recipes.py": TORCH,
    "pipeline/strict_yaml.py": TORCH,
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
    "pipeline/vocoder/windows.py": {"torch", "numpy"},
    "pipeline/vocoder/stream.py": TORCH,
    "pipeline/synthesizer.py": TORCH | {"pipeline.engine", "pipeline.model.gpt", "pipeline.vocoder.vocoder"},
    "pipeline/engine/line.py": {"torch", "numpy"},
    "serve/gate.py": {"ray"},
    "serve/keys.py": {"ray"},
    "serve/quotas.py": {"ray"},
    "serve": TORCH | {"scripts", "tests"},
    "serve/api.py": {"ray"},
    "serve/schemas.py": {"ray"},
    "serve/body.py": {"ray"},
    "serve/body_reader.py": {"ray"},
    "serve/cross_origin.py": {"ray"},
    "serve/overload.py": {"ray", "starlette", "fastapi"},
    "serve/described.py": {"ray"},
    "serve/text_api.py": {"ray"},
    "serve/text_schemas.py": {"ray"},
    "serve/cache.py": {"ray"},
    "serve/cache_api.py": {"ray"},
    "serve/idempotency.py": {"ray"},
    "serve/source_api.py": {"ray"},
    "serve/errors.py": {"ray"},
    "serve/envelope.py": {"ray"},
    "serve/early_refusal.py": {"ray"},
    "serve/hosts.py": {"ray", "fastapi", "starlette", "pydantic"},
    "serve/haproxy.py": {"ray", "fastapi", "starlette", "pydantic"},
    "serve/stages.py": {"ray"},
    "serve/scaling.py": {"ray", "pydantic", "numpy"},
    "serve/tracing.py": {"ray"},
    "serve/request_log.py": {"ray"},
    "serve/config.py": {"ray"},
    "scripts": {"tests"},
    "scripts/processes.py": {"ray"},
    "scripts/runs.py": {"ray"},
    "scripts/supervise.py": {"ray"},
    "scripts/announce.py": {"ray"},
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


@pytest.mark.parametrize("modules", ["serve.ingress, pipeline.synthesizer", "serve.text", "serve.config_file, serve.edge"])
def test_cpu_processes_never_load_torch(modules):
    code = f"import {modules}, sys; assert 'torch' not in sys.modules, 'torch was loaded'"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_named_files_do_the_named_things():
    def files_with(text: str) -> set[str]:
        sources = [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "serve").rglob("*.py")]
        return {str(source.relative_to(ROOT)) for source in sources if text in source.read_text()}

    assert files_with(".remote(") <= {"serve/handles.py"}
    assert files_with("threading.Thread(") <= {"pipeline/engine/engine.py", "pipeline/vocoder/vocoder.py"}
    assert files_with("os.environ") <= {"pipeline/checkpoints.py"}
    # The time of day jumps: it dates and counts days, and measures nothing that somebody waits for.
    assert files_with("time.time") <= {"pipeline/checkpoints.py", "serve/quotas.py", "serve/tracing.py"}
    assert files_with("datetime.now") <= {"serve/keys.py", "serve/voice_desk.py"}
