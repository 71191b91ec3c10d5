"""Settings: the configuration a system under test is started with.

In:    a file of configs/, what a scenario changes in it
Out:   a whole document, as YAML would give it
Owns:  nothing
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.yaml_loader import parse_yaml
from scripts.bench.workload import TEXT


@dataclass(frozen=True)
class Settings:
    """What the service under test is started with."""

    base: Path
    """a file of configs/; only what measuring needs is changed, see `document`"""
    checkpoint: str
    path: str
    """fast: as `make serve`; plain: Serve's default data path"""
    changes: dict[str, Any] = field(default_factory=dict)
    """dotted path below args: value"""


def document(settings: Settings, port: int, source: Path | None) -> dict[str, Any]:
    """The configuration, with lengths that follow from the text and patience for slow machines."""
    found: dict[str, Any] = copy.deepcopy(parse_yaml(settings.base.read_text()))
    found["http_options"] |= {"host": "127.0.0.1", "port": port}
    args = found["applications"][0]["args"]
    args["source"] = None if source is None else str(source)
    patience = {"first_audio_timeout_s": 600.0, "chunk_timeout_s": 600.0, "total_timeout_s": 3600.0}
    changes = {
        "pipeline.checkpoint": settings.checkpoint,
        "pipeline.engine.ignore_eos": True,
        **{f"pipeline.text.{key}": value for key, value in TEXT.items()},
        **{f"limits.{key}": value for key, value in patience.items()},
        **settings.changes,
    }
    for path, value in changes.items():
        *parents, key = path.split(".")
        section = args
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = value
    return found
