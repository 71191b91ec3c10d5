"""Capabilities: what a checkpoint was trained for, so that the service offers nothing else.

In:    a checkpoint's folder
Out:   Capabilities
Never: torch, weights

asset/taught.json is this project's file, and optional: ChatTTS's own checkpoint has none and supports everything.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from pipeline.checkpoint.layout import CAPABILITIES_FILE
from pipeline.checkpoint.manifest import read_manifest, read_verified
from pipeline.config import StrictModel, words_of
from pipeline.errors import CheckpointError
from pipeline.spec import CONTROL_TAGS, SPEED_TAGS

Language = Literal["zh", "en"]


class Alignment(StrictModel):
    """Heads of attention that follow the text, found and judged by scripts/evaluate/alignment_heads.py."""

    heads: tuple[tuple[int, int], ...] = Field(min_length=1, description="(layer, head), from 0")
    words: int | None = Field(None, description="words that were judged by forced alignment; null: not judged")
    median_ms: float | None = Field(None, description="median error of their starts [ms]")
    within_100_ms: float | None = Field(None, description="share of them within 100 ms")


class Capabilities(StrictModel):
    """What a checkpoint was trained for; the defaults are ChatTTS's own."""

    languages: tuple[Language, ...] = Field(("zh", "en"), min_length=1, description="languages it speaks")
    control_tags: tuple[str, ...] = Field(tuple(sorted(CONTROL_TAGS)), description="control tags that change its speech")
    speed_tokens: bool = Field(True, description="false: [speed_0] to [speed_9] have no effect")
    refine: bool = Field(True, description="false: it has no refine pass")
    ends_with_text: bool = Field(
        True, description="false: its speech ends anywhere, as that of random weights, so short audio is no mistake"
    )
    alignment: Alignment | None = Field(None, description="null: the times of words are estimated")

    @field_validator("control_tags")
    @classmethod
    def _are_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [tag for tag in tags if tag not in CONTROL_TAGS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: not a control tag; allowed are {', '.join(sorted(CONTROL_TAGS))}")
        return tags

    @property
    def tags(self) -> frozenset[str]:
        """The control tags that have an effect: without speed tokens those of speed have none."""
        return frozenset(self.control_tags) if self.speed_tokens else frozenset(self.control_tags) - SPEED_TAGS


ALL_CAPABILITIES = Capabilities()


def capabilities_file(capabilities: Capabilities) -> bytes:
    """Returns the content of asset/taught.json."""
    return f"{capabilities.model_dump_json(indent=2)}\n".encode()


def read_capabilities(root: Path) -> Capabilities:
    """Returns what the checkpoint in this folder was trained for.

    Raises:
        CheckpointError: the file is not the one in the manifest, or has unknown content.
    """
    manifest = read_manifest(root)
    if not (root / CAPABILITIES_FILE).exists() and CAPABILITIES_FILE not in (manifest or {}):
        return ALL_CAPABILITIES
    try:
        return Capabilities.model_validate_json(read_verified(root, CAPABILITIES_FILE))
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the file'}: {words_of(item)}" for item in error.errors())
        allowed = ", ".join(Capabilities.model_fields)
        raise CheckpointError(f"{root / CAPABILITIES_FILE}: {mistakes}; allowed are {allowed}") from error
