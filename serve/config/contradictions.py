"""Contradictions: numbers of a configuration of which one makes another meaningless.

In:    AppConfig, as far as each number alone is allowed
Out:   a sentence per contradiction
Owns:  the table of pairs that bound each other
Never: Serve's own limits (config_file.py); a pair that only costs something
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pipeline.config import PipelineConfig, StrictModel
from serve.config.model_versions import versions_of

JOB_BYTES_PER_CHAR = 4096  # of speech as a job keeps it: 14 characters a second, 24,000 samples of 2 bytes
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Pair:
    """Two numbers, of which one must not be above the other."""

    lesser: str
    """dotted path below the args"""
    greater: str
    otherwise: str
    """what would happen"""
    times: int = 1
    """the lesser one counts so often"""
    unit: int = 1
    """of the greater one"""
    only_written: bool = False
    """True: the lesser one would only have no effect, which is no mistake where the file does not name it"""


PAIRS = (
    Pair("limits.first_audio_timeout_s", "limits.total_timeout_s", "no request lasts so long", only_written=True),
    Pair("limits.chunk_timeout_s", "limits.total_timeout_s", "no request lasts so long", only_written=True),
    Pair("limits.stall_timeout_s", "limits.total_timeout_s", "no request lasts so long", only_written=True),
    Pair("lanes.interactive_timeout_s", "limits.total_timeout_s", "no request lasts so long", only_written=True),
    Pair("lanes.bulk_timeout_s", "limits.total_timeout_s", "no request lasts so long", only_written=True),
    Pair("lanes.interactive_timeout_s", "lanes.bulk_timeout_s", "bulk requests would be given up before urgent ones"),
    Pair(
        "lanes.interactive_timeout_s",
        "limits.first_audio_timeout_s",
        "standard requests would be given up before urgent ones",
        only_written=True,
    ),
    Pair("jobs.max_chars", "jobs.disk_mib", "the disk could not hold such a job", times=JOB_BYTES_PER_CHAR, unit=MIB),
    Pair("jobs.max_jobs_per_key", "jobs.max_jobs", "no key could have so many", only_written=True),
    Pair("jobs.parallel", "limits.max_in_flight", "jobs would take every place", only_written=True),
    Pair("pipeline.engine.prefill_rows", "pipeline.engine.slots", "there are never so many prompts"),
    Pair("pipeline.engine.round_timeout_s", "limits.chunk_timeout_s", "its client would be gone", only_written=True),
    Pair(
        "limits.resume_s",
        "cache.idempotency_ttl_s",
        "an Idempotency-Key would be forgotten before its reply",
        only_written=True,
    ),
)
"""Checked for every model version, whose own sections stand in place of `pipeline`."""


def contradictions(app: Any) -> Iterator[str]:
    """Yields a sentence for each pair that an AppConfig has the wrong way round, in any of its model versions."""
    versions = versions_of(app.pipeline, app.models)
    yield from dict.fromkeys(says for version in versions for pair in PAIRS if (says := _checked(pair, app, version.pipeline)))


def _checked(pair: Pair, app: Any, pipeline: PipelineConfig) -> str:
    """Returns what is wrong with a pair; empty: nothing."""
    lesser, is_written = _number(app, pipeline, pair.lesser)
    greater, _ = _number(app, pipeline, pair.greater)
    if not isinstance(lesser, int | float):
        return ""  # a word in its place: it follows the other one
    if lesser * pair.times <= greater * pair.unit or (pair.only_written and not is_written):
        return ""
    counted = f", {pair.times} bytes each," if pair.times > 1 else ""
    return f"{pair.lesser} {lesser}{counted} must not be above {pair.greater} {greater}: {pair.otherwise}"


def _number(app: Any, pipeline: PipelineConfig, path: str) -> tuple[float, bool]:
    """Returns the number at a path, and whether the file names it."""
    *sections, key = path.split(".")
    section: StrictModel = reduce(getattr, sections[1:], pipeline if sections[0] == "pipeline" else getattr(app, sections[0]))
    return getattr(section, key), key in section.model_fields_set
