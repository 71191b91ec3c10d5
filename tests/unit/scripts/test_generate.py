"""Generated files are committed as they are generated, the reference explains every key, a request passes few files."""

import asyncio
from pathlib import Path

from scripts.generate.__main__ import all_files, outdated
from scripts.generate.architecture_page import TERMS, imports_of, meaning
from scripts.generate.trace_request import names, trace_request
from serve.commands.operate.config_reference import markdown, sections

SECTIONS = list(sections())
ROWS = [(section, row) for section in SECTIONS for row in section.rows]
UNITS = {
    "_s": "s",
    "_bytes": "bytes",
    "_mib": "MiB",
    "_steps": "steps",
    "_chars": "characters",
    "_percent": "%",
    "_lufs": "LUFS",
}
OTHER_UNIT = {"body_min_bytes_per_s"}


def test_every_generated_file_is_up_to_date():
    assert outdated(all_files()) == [], "run python -m scripts.generate"


def test_a_missing_and_a_changed_file_are_found(tmp_path: Path):
    same, other, missing = (tmp_path / name for name in ("same", "other", "missing"))
    same.write_text("text")
    other.write_text("old text")
    assert outdated({same: "text", other: "text", missing: "text"}) == [other, missing]


def test_every_section_stands_once():
    paths = [section.path for section in SECTIONS]
    assert len(set(paths)) == len(paths)
    assert {"args.limits", "args.pipeline.engine", "args.degrade", "user_config.probe", "policy_kwargs"} <= set(paths)
    assert "args.models.<name@version>.compat" in paths


def test_every_key_has_a_type_a_default_and_a_meaning():
    for section, row in ROWS:
        name = f"{section.path}.{row.key}"
        assert all((row.type, row.default, row.meaning)), name
        unit = next((unit for suffix, unit in UNITS.items() if row.key.endswith(suffix)), None)
        if unit is not None and row.type[0] not in "`tlb" and row.key not in OTHER_UNIT:
            assert row.unit == unit, name


def test_bounds_defaults_and_units_are_written_out():
    page = markdown()
    assert "| `slots` | integer 1 to 512 | `8` |" in page
    assert "| `loudness_lufs` | -40 to -10 or null | `-20` LUFS |" in page
    assert "| `method` | `auto` or `incremental` or `windows` | `auto` |" in page


def test_the_glossary_is_short():
    assert len(TERMS) <= 40
    assert {term: text for term, place in TERMS.items() if len((text := meaning(*place)).split()) > 40} == {}


def test_the_lists_follow_from_the_imports():
    rooms = imports_of("serve")
    assert {"http", "jobs", "speech"} <= rooms.keys()
    assert "speech" in rooms["jobs"]
    assert "protocols" not in rooms["http"]


# What one streamed request passes on its way: fewer files and relays are welcome, more of them need a reason.

MOST_FILES, MOST_FUNCTIONS, MOST_RELAYS = 123, 623, 16


def test_a_streamed_request_passes_no_more_code_than_today():
    recorder, ((first_s, last_s, audio),) = asyncio.run(trace_request(times=1))
    functions, relays = names(recorder.functions), names(recorder.relays)
    assert 0 < first_s < last_s
    assert audio[:3] == b"ID3"
    assert "serve/http/speech_response.py write_reply" in relays, "a task's own coroutine is one"
    assert "pipeline/engine/loop.py EngineLoop._deliver" in functions, "the engine's thread is recorded"
    figures = len({name.split()[0] for name in functions}), len(functions), len(relays)
    assert all(have <= most for have, most in zip(figures, (MOST_FILES, MOST_FUNCTIONS, MOST_RELAYS), strict=True)), figures
