"""Taught: what a checkpoint says it was taught, so that nobody asks it in vain.

In:    a checkpoint's folder
Out:   Taught
Owns:  nothing
Never: torch, weights

asset/taught.json is ours, and optional: ChatTTS's own checkpoint has none and was taught everything.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from pipeline.checkpoint.layout import TAUGHT_FILE
from pipeline.checkpoint.manifest import read_manifest, read_verified
from pipeline.config import StrictModel
from pipeline.errors import CheckpointError
from pipeline.spec import CONTROL_TAGS

Language = Literal["zh", "en"]


class Taught(StrictModel):
    """What a checkpoint was taught; the defaults are ChatTTS's own."""

    languages: tuple[Language, ...] = Field(("zh", "en"), min_length=1, description="it speaks")
    control_tags: tuple[str, ...] = Field(tuple(sorted(CONTROL_TAGS)), description="[laugh] and the like that are heard")
    speed_tokens: bool = Field(True, description="false: [speed_0] to [speed_9] sound alike")
    refine: bool = Field(True, description="false: it has no refine pass")

    @field_validator("control_tags")
    @classmethod
    def _are_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [tag for tag in tags if tag not in CONTROL_TAGS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no control tag; there are {', '.join(sorted(CONTROL_TAGS))}")
        return tags


EVERYTHING = Taught()


def taught_file(taught: Taught) -> bytes:
    """asset/taught.json of a checkpoint."""
    return f"{taught.model_dump_json(indent=2)}\n".encode()


def read_taught(root: Path) -> Taught:
    """What the checkpoint in this folder was taught.

    Raises:
        CheckpointError: the file is not what the manifest vouches for, or says something nobody understands.
    """
    manifest = read_manifest(root)
    if not (root / TAUGHT_FILE).exists() and TAUGHT_FILE not in (manifest or {}):
        return EVERYTHING
    try:
        return Taught.model_validate_json(read_verified(root, TAUGHT_FILE))
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors())
        raise CheckpointError(f"{root / TAUGHT_FILE}: {mistakes}; allowed are {', '.join(Taught.model_fields)}") from error
