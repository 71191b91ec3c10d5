"""Where native code runs, a CPU is served without torch: here it cannot even be imported."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.generate.constraints import direct_requirements, needed
from tests.support.machine import WHY_NOT_NATIVE, needs_native
from tests.support.services import needed_program
from tests.support.syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
NO_TORCH = """
import sys

NAMES = ("torch", "torchaudio", "ChatTTS", "vector_quantize_pytorch", "transformers", "vocos", "triton")

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NAMES:
            raise ModuleNotFoundError(f"{name} is imported", name=name)

sys.meta_path.insert(0, Blocked())
"""
SPEAK = """
import asyncio
from contextlib import aclosing

import numpy as np

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.engine.engine_fingerprint import engine_fingerprint
from pipeline.errors import ConfigError, InvalidRequest, ReferenceRejected
from pipeline.paths import cache_home
from pipeline.timing.following import Following
from pipeline.types import Head, Prompt, SamplingParams, SeedMode, Segment, SynthesisRequest
from pipeline.vocoder.beside import chunks_of, with_samples
from pipeline.vocoder.encode_apart import encode_apart
from pipeline.vocoder.vocoder_fingerprint import vocoder_fingerprint
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from serve.commands.say import open_pipeline

checkpoint = open_checkpoint(resolve("demo", cache_home()))


async def speak(config):
    async with open_pipeline(config) as local:
        def request(mode):
            sampling = SamplingParams(seed=1, seed_mode=mode)
            return SynthesisRequest("r", "Five one one.", "default", sampling=sampling, timeout_s=250)

        samples = np.concatenate([chunk.samples async for chunk in local.synthesizer.stream(request(SeedMode.COUNTER))])
        try:
            async for _ in local.synthesizer.stream(request(SeedMode.UPSTREAM)):
                raise AssertionError("spoken")
        except InvalidRequest as error:
            assert error.param == "seed_mode" and "allowed here is counter" in error.message, error
        return samples


async def beside(config):
    ids = np.full((16, 4), 7, np.int64)
    prompt = Prompt(ids, np.ones(16, np.bool_), Head.CODE, Segment("", 0, is_last=True), max_steps=80)
    engine, vocoder = Engine(config.engine, checkpoint), Vocoder(config.vocoder, checkpoint)
    steps = engine.generate(prompt, SamplingParams(seed=1, min_steps=80), timeout_s=250)
    codes, samples = [], []
    async with aclosing(with_samples(steps, StreamDecoder(vocoder))) as blocks:
        async for block in blocks:
            codes.append(block.codes)
            samples.append(block.samples)
    codes = np.concatenate(codes)
    followed = await Following(checkpoint, positions=512).follow(prompt, codes, (2, 14), ended=True)
    assert len(followed.path) == len(codes)
    engine.close()
    vocoder.close()
    return codes, np.concatenate(samples)


def refused(kind, call):
    try:
        call()
    except kind as error:
        assert "pip install 'chattts-serve[torch]'" in str(error), error
    else:
        raise AssertionError(f"{kind} expected")


for engine, vocoder in (({}, {}), ({"dtype": "bfloat16", "weights": "int8", "kv": "int8"}, {"use_decoder": False})):
    settings = {"checkpoint": "demo", "engine": {"threads": 1, "slots": 2, **engine}, "vocoder": {"threads": 1, **vocoder}}
    config = PipelineConfig.model_validate(settings)
    samples = asyncio.run(speak(config))
    assert len(samples) > 12_000 and np.abs(samples).max() > 0.01, "a sentence was spoken"
    codes, samples = asyncio.run(beside(config))
    assert codes.shape == (80, 4) and len(samples) == 512 * 80 - 256
    engine_fingerprint(config.engine, checkpoint), vocoder_fingerprint(config.vocoder, checkpoint)
refused(ConfigError, lambda: Engine(EngineConfig(decode="torch"), checkpoint))
refused(ConfigError, lambda: Vocoder(VocoderConfig(method="windows"), checkpoint))
refused(ReferenceRejected, lambda: asyncio.run(encode_apart(checkpoint.root, np.zeros(24_000, np.float32))))
"""


def run_without_torch(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_TORCH + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        "serve.deployments.ingress, pipeline.synthesizer",
        "serve.deployments.text_normalizer, pipeline.text.isolation.worker",
        "serve.deployments.acoustic_model, serve.stages.vocoder_beside",
        "serve.deployments.vocoder",
        "serve.app, serve.config.config_file, serve.protocols.proxy_middleware",
        "serve.commands.launch.start, serve.commands.app",
    ],
)
def test_no_process_of_the_service_imports_torch(modules):
    run_without_torch(f"import {modules}")


@needs_native
@pytest.mark.slow
def test_a_sentence_is_spoken_and_what_needs_torch_is_refused_with_what_to_do():
    run_without_torch(SPEAK)


def test_the_block_blocks():
    with pytest.raises(AssertionError, match="torch is imported"):
        run_without_torch("import torch")


# No process of the service loads a library that it does not use with configs/dev.yaml: there are many of them, and each would

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


# Clean machine: every list that one installs from is complete and names nothing that nobody uses.

PACKAGES = ROOT / "tests/debian-packages.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"pipeline", "serve", "scripts", "tests"}

# What imports torch; pipeline/with_torch.py loads it, where it is needed.
IN_TORCH = (
    "pipeline/checkpoint/in_torch.py",
    "pipeline/engine/gpu_prompts.py",
    "pipeline/engine/gpu_runner.py",
    "pipeline/engine/gpu_state.py",
    "pipeline/engine/tensor_cache.py",
    "pipeline/engine/torch_model.py",
    "pipeline/model/embedding.py",
    "pipeline/model/gpt.py",
    "pipeline/model/gpu",
    "pipeline/model/linear.py",
    "pipeline/model/quantise.py",
    "pipeline/model/sampling.py",
    "pipeline/vocoder/reference_encoder.py",
    "pipeline/vocoder/windowed",
    "serve/commands/doctor_gpu.py",
    "scripts/evaluate",
    "serve/commands/operate/size.py",
    "serve/commands/weights/convert_voice.py",
)
# What imports Ray: a service in one process has none.
IN_RAY = (
    "serve/app.py",
    "serve/commands/operate/cluster.py",
    "serve/commands/operate/drain.py",
    "serve/commands/operate/leave_node.py",
    "serve/deployments",
    "serve/protocols/proxy_middleware.py",
    "serve/remote",
)
# Sources -> the extras that are installed wherever they run; the longest prefix counts.
EXTRAS: dict[str, tuple[str, ...]] = {
    "pipeline": (),
    "serve": (),
    **dict.fromkeys(IN_RAY, ("ray",)),
    "serve/protocols/mcp": ("mcp",),
    **dict.fromkeys(("serve/edge", "serve/commands/operate/run_center.py"), ("edge",)),
    "scripts": (),
    **dict.fromkeys(IN_TORCH, ("torch",)),
    "scripts/bench": ("bench",),
    "scripts/chaos": ("bench",),
    "scripts/fleet": ("bench",),
    "scripts/evaluate/alignment_heads.py": ("judge",),
    "scripts/evaluate/intelligibility.py": ("judge",),
    "scripts/evaluate/listening.py": ("judge",),
    "scripts/distill_vocoder.py": ("dev",),
    "scripts/train_demo": ("dev",),
    "scripts/generate/pinyin_table.py": ("dev",),
    "scripts/generate/__main__.py": ("dev",),
    "tests": ("dev",),
}
ELSEWHERE = ROOT / "tests/foreign"  # runs in an environment of its own, whose list has its own test
# Imported, not declared: it comes with what is, and in the release that one wants.
BROUGHT = {
    "click": "ray",
    "paho-mqtt": "aiomqtt",
    "httpx2": "mcp",
    "triton": "torch",
    "transformers": "ChatTTS",
    "vocos": "ChatTTS",
    "opentelemetry-api": "opentelemetry-sdk",
    "opentelemetry-proto": "opentelemetry-exporter-otlp-proto-http",
}
# Where this or another project was written or built is nobody's business; each pattern is written so as not to find itself.
TRACES = (r"(?<![\w.])/wor[k]/", r"(?<![\w.])/roo[t]/", r"/opt/whee[l]s", r"(?i)artifactor[y]", r"(?i)\bindex-ur[l]\b")


def packages_named_by(trees: list[ast.Module]) -> set[str]:
    """The Debian packages of every call `needed_program(name, package)`."""
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    needed = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "needed_program"]
    return {ast.literal_eval(call.args[1]) for call in needed}


@pytest.mark.slow
def test_the_list_of_packages_is_what_the_tests_need():
    named = packages_named_by([syntax_tree(path) for path in sorted((ROOT / "tests").rglob("*.py"))])
    assert PACKAGES.read_text().split("\n") == [*sorted(named), ""]


def test_the_list_is_installed_and_described():
    assert "$(cat tests/debian-packages.txt)" in (ROOT / ".ci/run").read_text()
    assert "(tests/debian-packages.txt)" in (ROOT / "CONTRIBUTING.md").read_text()


def test_a_program_that_is_not_listed_is_found():
    sources = ['flite = needed_program("flite", "flite")', 'run([needed_program("ip", "iproute2")])']
    assert packages_named_by([ast.parse(source) for source in sources]) == {"flite", "iproute2"}


def test_the_native_code_is_compiled():
    needed_program("c++", "g++")
    assert WHY_NOT_NATIVE is None or "AVX-512" in WHY_NOT_NATIVE


def test_the_checkout_knows_its_commit():
    """What a benchmark writes beside its figures."""
    git = needed_program("git", "git")
    done = subprocess.run([git, "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_serving_on_a_cpu_needs_no_torch():
    """Nor anything of CUDA: not by way of another package either."""
    brought = needed(map(Requirement, PROJECT["dependencies"]))
    assert {"numpy", "av", "tokenizers", "uvloop"} <= brought
    heavy = re.compile(r"ray\b|torch|triton|nvidia|cuda|chattts|transformers|vocos|numba|llvmlite|scipy|silero")
    assert not set(filter(heavy.match, brought))
    assert not set(filter(re.compile("torch|triton|nvidia|cuda").match, needed(direct_requirements(("ray",)))))
    extras = {name: names_in(lines) for name, lines in PROJECT["optional-dependencies"].items()}
    assert (
        {"torch", "torchaudio", "chattts", "vector-quantize-pytorch"} <= extras["upstream"] <= extras["bench"] <= extras["dev"]
    )


def names_in(requirements: list[str]) -> set[str]:
    """The distributions of requirements, those of this project's own extras included."""
    parsed = [Requirement(line) for line in requirements]
    inner = [extra for requirement in parsed if requirement.name == PROJECT["name"] for extra in requirement.extras]
    names = {canonicalize_name(requirement.name) for requirement in parsed if requirement.name != PROJECT["name"]}
    return names.union(*(names_in(PROJECT["optional-dependencies"][extra]) for extra in inner))


def declared_for(source: str) -> set[str]:
    """The distributions that are there wherever this file runs, by pyproject.toml."""
    prefix = max((prefix for prefix in EXTRAS if source.startswith(prefix)), key=len)
    extras = [line for extra in EXTRAS[prefix] for line in PROJECT["optional-dependencies"][extra]]
    return names_in([*PROJECT["dependencies"], *extras])


def imported(tree: ast.Module) -> set[str]:
    """Modules of other people's that a file names."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.split(".")[0] not in sys.stdlib_module_names | OURS}


INSTALLED = cache(packages_distributions)  # it reads the metadata of every package there is


def distributions_of(module: str) -> set[str]:
    """Who installs it; of a namespace that many share, whoever is named after it the most."""
    names = {canonicalize_name(name) for name in INSTALLED().get(module.split(".")[0], [])}
    parts = module.split(".")
    named = [canonicalize_name("-".join(parts[:length])) for length in range(len(parts), 1, -1)]
    return next(({name} for name in named if name in names), names)


def undeclared(source: str, tree: ast.Module) -> list[str]:
    """Imports that nothing declared for this file installs."""
    declared = declared_for(source)
    installed = declared | {name for name, by in BROUGHT.items() if canonicalize_name(by) in declared}
    return [module for module in sorted(imported(tree)) if not distributions_of(module) & installed]


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(OURS))
def test_every_import_is_of_something_that_is_declared(folder):
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if ELSEWHERE not in path.parents]
    sources = {str(path.relative_to(ROOT)): syntax_tree(path) for path in paths}
    missing = {source: modules for source, tree in sources.items() if (modules := undeclared(source, tree))}
    assert not missing, "declare it in pyproject.toml, in the extra this file is run with"


def test_an_import_that_is_not_declared_is_found():
    def undeclared_in(source: str, text: str) -> list[str]:
        return undeclared(source, ast.parse(text))

    wrong = "import pytest\nimport aiohttp.web\nfrom numpy import array\nimport json"
    assert undeclared_in("serve/x.py", wrong) == ["aiohttp.web", "pytest"]
    assert undeclared_in("scripts/bench/x.py", "import aiohttp, pytest") == ["pytest"]
    assert undeclared_in("tests/x.py", "import aiohttp, pytest, not_installed_anywhere") == ["not_installed_anywhere"]


@pytest.mark.parametrize(("name", "by"), BROUGHT.items())
def test_what_is_not_declared_comes_with_what_is(name, by):
    (declared,) = [
        requirement
        for line in [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]
        if canonicalize_name((requirement := Requirement(line)).name) == canonicalize_name(by)
    ]
    requirements = [Requirement(line) for line in requires(by) or []]
    environments = [{"extra": extra} for extra in ("", *declared.extras)]
    assert any(
        canonicalize_name(requirement.name) == name
        and (requirement.marker is None or any(map(requirement.marker.evaluate, environments)))
        for requirement in requirements
    )


def traces_in(text: str) -> list[str]:
    return [match[0] for pattern in TRACES for match in re.finditer(pattern, text)]


def test_no_text_tells_where_it_was_made():
    git = needed_program("git", "git")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    paths = [ROOT / name for name in listed.split("\0") if name and (ROOT / name).exists()]
    assert len(paths) > 300
    files = {}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights, pictures
        if traces := traces_in(text):
            files[str(path.relative_to(ROOT))] = traces
    assert not files


def test_no_tools_cache_is_committed():
    git = needed_program("git", "git")
    command = [git, "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


def test_a_trace_is_found():
    folder = "/".join(["", "work", "somewhere"])
    assert traces_in(f"see {folder}") == ["/".join(["", "work", ""])]
    below_another = folder.removeprefix("/")
    assert not traces_in(f"a command {below_another}; a/{below_another}; ./{below_another}")
