"""The plan of the house: which folder may know which, what a card promises, how long a file may be.

Each rule is checked on the sources alone, and one failure names one line to change.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("pipeline", "serve", "scripts")

FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    # From the ground up. A folder imports from floors below its own, never from its own floor or above.
    "pipeline": (
        ("bfloat16", "child", "durable_file", "errors", "ewma", "paths", "spec", "types"),
        ("config", "protocols", "with_torch", "yaml_loader"),
        ("audio", "checkpoint", "native", "store"),
        ("model",),
        ("cache", "engine", "takes", "text", "vocoder", "voices"),
        ("books", "timing"),
        ("synthesizer",),
    ),
    "serve": (
        ("errors",),
        ("config",),
        ("access", "resilience"),
        ("observability", "voices"),
        ("stages",),
        ("simulation",),
        ("speech",),
        ("jobs",),
        ("http",),
        ("page",),
        ("protocols",),
        ("ingress",),
        ("edge",),
        ("local", "remote"),
        ("deployments",),
        ("app",),
        ("commands",),
    ),
}

TORCH = {"torch", "torchaudio", "ChatTTS", "transformers", "vocos"}
WEB = {"ray", "fastapi", "starlette", "uvicorn", "requests"}
PARSERS = {"lxml", "markdown_it", "mdit_py_plugins"}  # in the process that reads documents alone
NEVER_REACHED: dict[str, set[str]] = {  # files below this path: libraries that none of them reaches, however indirectly
    "pipeline": WEB | {"serve", "scripts", "tests", "transformers", "ChatTTS", "vocos", "torchaudio"},
    "pipeline/types": TORCH,
    "pipeline/errors.py": TORCH | {"numpy"},
    "pipeline/config.py": TORCH,
    "pipeline/protocols.py": TORCH,
    "pipeline/ewma.py": TORCH | {"numpy"},
    "pipeline/store": TORCH | {"numpy"},
    "pipeline/cache": TORCH,
    "pipeline/voices": TORCH,
    "pipeline/audio": TORCH,
    "pipeline/books": TORCH,
    "pipeline/synthesizer.py": TORCH,
    # Native code serves a CPU without torch; what needs it is loaded by pipeline/with_torch.py.
    "pipeline/native": TORCH,
    "pipeline/model/cpu": TORCH,
    "pipeline/engine/engine.py": TORCH,
    "pipeline/engine/engine_fingerprint.py": TORCH,
    "pipeline/vocoder/vocoder.py": TORCH,
    "pipeline/vocoder/vocoder_fingerprint.py": TORCH,
    "pipeline/vocoder/incremental": TORCH,
    "pipeline/vocoder/windowed/windows.py": TORCH,
    "pipeline/vocoder/stream.py": TORCH,
    "pipeline/takes": TORCH,
    "pipeline/timing": TORCH,
    "serve": {"scripts", "tests", *TORCH},
    "serve/errors.py": {"ray"},
    "serve/access": {"ray", "fastapi"},
    "serve/resilience": {"ray"},
    "serve/voices": {"ray"},
    "serve/observability": {"ray"},
    "serve/config": {"ray"},
    "serve/local": {"ray", "aiomqtt", "cryptography", *PARSERS},
    "serve/edge": {"ray", "fastapi", *PARSERS},
    "serve/stages": {"ray", "fastapi"},
    "serve/simulation": {"ray", "fastapi"},
    "serve/ingress": {"ray"},
    "serve/speech": {"ray", "fastapi"},
    "serve/jobs": {"ray", "fastapi", *PARSERS},
    "serve/http": {"ray", *PARSERS},
    "serve/page": {"ray"},
    "serve/protocols": {"ray", *PARSERS},
    "serve/deployments": PARSERS,
    "pipeline/text": {*TORCH, *PARSERS},
    "scripts": {"tests"},
}
MAY_REACH = {
    "serve/protocols/proxy_middleware.py": {"ray"},  # Serve's proxy loads it, and it speaks of Serve's own headers
    # Commands of the extra `torch`.
    "serve/commands/doctor_gpu.py": {"torch"},
    "serve/commands/operate/size.py": {"torch"},
    "serve/commands/weights/convert_voice.py": {"torch"},
}

LONGEST = 500  # lines of a file
SHORT = 60  # a module with fewer is a part of its only user, unless it is one of these
ALONE = {
    "pipeline/engine/engine_fingerprint.py": "the engine's, used by a deployment",
    "pipeline/model/gpu/kernels/interpreter.py": "hashed, and the only place of Triton's interpreter",
    "pipeline/store/reserve.py": "disk space of more than one store",
    "serve/protocols/": "one module a protocol, or a role in one",
    "serve/deployments/": "one module a deployment",
}

DEFINITIONS = {"pipeline.errors", "pipeline.protocols", "pipeline.spec"}  # nothing goes in or out

CARD_LIBRARIES = {"Ray": "ray", "torch": "torch", "FastAPI": "fastapi", "numpy": "numpy"}
"""what a card's `Never:` may name -> the library that is then never reached"""


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file."""
    paths = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            paths[name.removesuffix(".__init__")] = path
    return paths


@functools.cache
def imports(name: str) -> frozenset[str]:
    """What a module imports: our modules by their full name, others as written."""
    names = set()
    for node in ast.walk(syntax_tree(modules()[name])):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {candidate if candidate in modules() else str(node.module) for candidate in full}
    return frozenset(names)


@functools.cache
def reached(name: str) -> dict[str, tuple[str, ...]]:
    """Libraries a module loads, directly or through ours -> the way there."""
    libraries: dict[str, tuple[str, ...]] = {}
    ways = {name: (name,)}
    todo = [name]
    while todo:
        module = todo.pop()
        parts = module.split(".")
        parents = {".".join(parts[:length]) for length in range(1, len(parts))} & modules().keys()
        for target in imports(module) | parents:
            if target not in modules():
                libraries.setdefault(target.split(".")[0], (*ways[module], target))
            elif target not in ways:
                ways[target] = (*ways[module], target)
                todo.append(target)
    return libraries


def floor_of(module: str) -> int | None:
    """The floor of a module's folder; None where it has none: a package's own `__init__`."""
    top, _, rest = module.partition(".")
    folder = rest.split(".")[0]
    for floor, folders in enumerate(FLOORS[top]):
        if folder in folders:
            return floor
    assert not rest, f"{module}: {folder} stands on no floor; give it one in FLOORS"
    return None


def below(place: str) -> Iterator[str]:
    """The modules at or below a path."""
    for name, path in modules().items():
        if (ROOT / place) in (path, *path.parents):
            yield name


def summary_and_card(path: Path) -> tuple[str, dict[str, str]]:
    """First paragraph of a module's docstring, and its card: In, Out, Owns, Never."""
    text = ast.get_docstring(syntax_tree(path)) or ""
    entries = re.findall(r"^(In|Out|Owns|Never): +(.*(?:\n +.*)*)", text, re.MULTILINE)
    return text.split("\n\n")[0], dict(entries)


@pytest.mark.parametrize("top", FLOORS)
def test_every_arrow_points_down(top):
    upward = []
    for name in below(top):
        for target in imports(name):
            if target.split(".")[0] != top or name.split(".")[1:2] == target.split(".")[1:2]:
                continue
            here, there = floor_of(name), floor_of(target)
            if here is not None and there is not None and there >= here:
                upward.append(f"{name} imports {target}")
    assert not upward


@pytest.mark.parametrize("place", NEVER_REACHED)
def test_no_file_reaches_a_library_it_must_not(place):
    names = list(below(place))
    assert names, f"{place} has moved: change the table"
    wrong = []
    for name in names:
        forbidden = NEVER_REACHED[place] - MAY_REACH.get(str(modules()[name].relative_to(ROOT)), set())
        ours = {target.split(".")[0]: (name, target) for target in imports(name) if target in modules()}
        wrong += [" -> ".join(way) for library, way in (reached(name) | ours).items() if library in forbidden]
    assert not wrong


def test_the_rules_catch_what_breaks_them():
    way = reached("pipeline.engine.gpu_runner")["torch"]
    assert way[0] == "pipeline.engine.gpu_runner", "the way is told from its beginning"
    assert way[-1].startswith("torch")
    assert floor_of("serve.protocols.api") > floor_of("serve.access.quotas") > floor_of("serve.errors")
    with pytest.raises(AssertionError, match="attic"):
        floor_of("serve.attic.box")


def test_every_module_has_its_card():
    wrong = []
    for top in ("pipeline", "serve"):
        for name in below(top):
            path = modules()[name]
            summary, card = summary_and_card(path)
            if path.name == "__init__.py":
                wrong += [] if summary else [f"{name}: a sentence on what the folder is for"]
            elif name not in DEFINITIONS and "Out" not in card:
                wrong.append(f"{name}: a card with Out:")
    wrong += [f"{name}: a docstring" for name in below("scripts") if not summary_and_card(modules()[name])[0]]
    assert not wrong


def test_what_a_card_never_knows_is_never_reached():
    wrong, promises = [], 0
    for name, path in modules().items():
        never = summary_and_card(path)[1].get("Never", "")
        for word in re.split(r"[:;.(]", never)[0].split(","):
            library = CARD_LIBRARIES.get(word.strip())
            if library:
                promises += 1
                wrong += (
                    [f"{name}: never {word}, but {' -> '.join(reached(name)[library])}"] if library in reached(name) else []
                )
    assert not wrong
    assert promises > 50, "the cards are no longer read"


def test_a_file_is_read_in_one_sitting():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules().values()}
    assert not {name: length for name, length in lengths.items() if length > LONGEST}


def test_a_small_module_has_more_than_one_user():
    users: dict[str, set[str]] = {}
    for name in modules():
        for used in imports(name):
            users.setdefault(used, set()).add(name)
    small = {
        str(path.relative_to(ROOT)): users.get(name, set())
        for name, path in modules().items()
        if not name.startswith("scripts") and path.name != "__init__.py" and len(path.read_text().splitlines()) < SHORT
    }
    parts = [f"{path} is a part of {min(used)}" for path, used in small.items() if len(used) == 1]
    assert not [part for part in parts if not part.startswith(tuple(ALONE))]
    assert not [place for place in ALONE if not any(part.startswith(place) for part in parts)]


def test_the_domain_names_its_floors():
    shown = re.findall(
        r"^    \d  (.+)$", ast.get_docstring(syntax_tree(ROOT / "pipeline/__init__.py"), clean=False) or "", re.MULTILINE
    )
    assert tuple(tuple(line.split()) for line in reversed(shown)) == FLOORS["pipeline"]


def test_serve_has_few_folders():
    shown = [path.name for path in (ROOT / "serve").iterdir() if not path.name.startswith(("_", ".", "py.typed"))]
    assert len(shown) <= 20, shown


def test_nothing_is_imported_inside_a_function():
    for folder in ("pipeline", "serve", "scripts"):
        for source in sorted((ROOT / folder).rglob("*.py")):
            for function in ast.walk(ast.parse(source.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    inner = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                    assert not inner, f"{source.relative_to(ROOT)}:{inner[0].lineno} imports inside a function"


def test_no_future_annotations():
    """They silently turn annotations into strings, which Ray's and FastAPI's factories cannot read."""
    for folder in (*TOPS, "tests"):
        for source in (ROOT / folder).rglob("*.py"):
            assert "from __future__ import " + "annotations" not in source.read_text(), source


def test_only_the_named_files_do_the_named_things():
    def files_with(text: str) -> set[str]:
        sources = [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "serve").rglob("*.py")]
        sources = [source for source in sources if ROOT / "serve/commands" not in source.parents]  # programs of their own
        return {str(source.relative_to(ROOT)) for source in sources if text in source.read_text()}

    assert files_with(".remote(") <= {"serve/remote/remote_handle.py"}
    for private in ("ray._", "serve._private", "serve.context", "ray.core.generated", "._router", "._fetch_replica"):
        assert files_with(private) <= {"serve/remote/ray_private.py"}, private
    assert files_with("threading.Thread(") <= {"pipeline/engine/loop.py", "pipeline/vocoder/vocoder.py"}
    assert files_with("os.environ") <= {
        "serve/ingress/ingress_records.py",
        "pipeline/model/gpu/identity.py",
        "pipeline/native/instructions.py",
        "pipeline/native/thread_count.py",
        "pipeline/paths.py",
        "pipeline/store/redis_link.py",
    }
    # The time of day jumps: it dates and counts days, and measures nothing that somebody waits for.
    assert files_with("time.time") <= {
        "pipeline/checkpoint/locate.py",
        "serve/access/claims.py",
        "serve/access/quotas.py",
        "serve/access/resume_tokens.py",
        "serve/access/single_use_tokens.py",
        "serve/jobs/records.py",
        "serve/observability/tracing.py",
    }
    dated = {"pipeline/store/store.py", "serve/access/api_keys.py", "serve/voices/voice_maker.py"}
    assert files_with("datetime.now") <= dated
