"""The demo checkpoint of the package: whole, small, described, and part of what is installed."""

import tomllib
from pathlib import Path

import numpy as np
from safetensors import safe_open

from pipeline.checkpoint.capabilities import capabilities_file, read_capabilities
from pipeline.checkpoint.layout import CAPABILITIES_FILE, FILES, PRONUNCIATION_FILE, SPEAKERS_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER, resolve
from pipeline.checkpoint.manifest import read_manifest, verify_files
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.seeds import read_statistics
from scripts.train_demo.corpus import EVENTS
from scripts.train_demo.export import CAPABILITIES, STAND_INS

ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES, MOST_BYTES_OF_A_FILE = 40 << 20, 20 << 20
FOUND = [path for path in sorted(DEMO_FOLDER.rglob("*")) if path.is_file()]


def test_every_file_is_there_and_vouched_for(tmp_path: Path):
    root = resolve("demo", tmp_path / "unused")
    assert {*FILES, SPEAKERS_FILE, CAPABILITIES_FILE, PRONUNCIATION_FILE} == set(read_manifest(root)) == set(verify_files(root))
    assert not (tmp_path / "unused").exists(), "nothing is generated, nothing is copied"


def test_its_capabilities_are_those_an_export_writes():
    found = read_capabilities(DEMO_FOLDER)
    assert (DEMO_FOLDER / CAPABILITIES_FILE).read_bytes() == capabilities_file(found)
    assert found == CAPABILITIES.model_copy(update={"languages": found.languages, "alignment": found.alignment})
    speeds = {f"[speed_{level}]" for level in range(10)}
    assert {STAND_INS[tag] for tag in {*found.control_tags} - speeds - {*EVENTS}} == {","}, "its other tags are pauses"


def test_it_is_small_and_in_half_precision():
    assert sum(path.stat().st_size for path in FOUND) <= MOST_BYTES
    assert max(path.stat().st_size for path in FOUND) <= MOST_BYTES_OF_A_FILE
    for path in FOUND:
        if path.suffix == ".safetensors":
            with safe_open(path, "np") as file:
                assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}, path  # noqa: SIM118


def test_an_installed_wheel_has_it():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pipeline"]
    packed = {path for pattern in patterns for path in (ROOT / "pipeline").glob(pattern)}
    assert {ROOT / "pipeline" / path.relative_to(DEMO_FOLDER.parents[1]) for path in FOUND} <= packed


def test_its_card_and_the_notice_name_the_teacher():
    for text in ((DEMO_FOLDER / "README.md").read_text(), (ROOT / "NOTICE").read_text()):
        assert "flite" in text
        assert "rms" in text
        assert "slt" in text


def test_the_catalogue_holds_deep_and_high_voices_and_some_between():
    """The taught voices lie on a line; a seed's voice lies where the statistics of the taught ones put it."""
    width = open_checkpoint(DEMO_FOLDER).gpt_spec.width
    catalogue = VoiceCatalogue.load(ROOT / "configs/voices.yaml", width, read_statistics(DEMO_FOLDER, width))
    voices = [catalogue.get(info.name).embedding for info in catalogue.list()]
    places = sorted(float(np.arctan2(*one[:2].astype(np.float32))) for one in voices if one is not None)
    assert places[0] < -0.5 < 0.5 < places[-1]
    assert any(-0.3 < place < 0.3 for place in places)
