"""Fleet: the table from which a center picks the variants of each box.

In:    a YAML file; the state that a box has published
Out:   the variants that a box should have, the lightest first
Owns:  the rules of the choice
Never: what a box says of other boxes; a state that was not checked
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.checkpoint.manifest import file_sha256
from pipeline.config import StrictModel
from pipeline.errors import ConfigError
from pipeline.spec import VocoderSize
from pipeline.yaml_loader import parse_yaml
from serve.config.edge import EdgeConfig
from serve.config.messages import explain
from serve.edge.signed_manifest import ALLOWED_FILES, MOST_SERIAL, FileEntry, Name, Url, Variant, Weights

HEADROOM = 0.5  # a heavier variant is slower: a box gets it while its factor is below this share of the row's


class Row(StrictModel):
    """A variant, and what a box needs to get it."""

    folder: Path
    """as `chattts-serve pack` makes it; relative to the file"""
    weights: Weights
    vocoder: VocoderSize
    link_kib_per_s: float = Field(0, ge=0)
    """least rate of its latest download"""
    memory_mib: int = Field(0, ge=0)
    """least memory of the machine"""
    rtf: float = Field(0.8, gt=0, le=10)
    """greatest real-time factor with it"""


class FleetFile(EdgeConfig):
    """The file of a center; `key` is the private one, `options.client_id` the center's name."""

    url: Url
    """at which boxes reach the center"""
    host: str = "0.0.0.0"
    port: int = Field(8100, ge=1, le=65535)
    variants: dict[Name, Row] = Field(min_length=1, max_length=8)
    """the lightest first"""


class BoxState(BaseModel):
    """What a box says of itself, as far as the choice depends on it."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    online: bool
    serial: int = Field(0, ge=0, lt=MOST_SERIAL)
    variant_id: str = Field("", max_length=16)
    failed: tuple[str, ...] = Field((), max_length=64)
    rtf: float | None = Field(None, ge=0, le=1e6)
    memory_mib: int = Field(0, ge=0)
    link_kib_per_s: float | None = Field(None, ge=0)


def read_fleet(path: Path) -> FleetFile:
    """Returns the table of a file.

    Raises:
        ConfigError: names every mistake.
    """
    try:
        fleet = FleetFile.model_validate(parse_yaml(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {sentence}" for sentence in explain(FleetFile, error, ""))) from error
    if fleet.broker is None:
        raise ConfigError(f"{path}: broker: a center needs one, mqtt://user:password@host:port")
    return fleet


def read_variants(fleet: FleetFile, beside: Path) -> tuple[tuple[Variant, ...], dict[str, Path]]:
    """Returns the variants of the table, with their files from small to large, and SHA-256 -> file. Blocking: it hashes them.

    Args:
        beside: the folder of the table.

    Raises:
        ConfigError: a folder is no checkpoint's.
    """
    variants, places = [], {}
    for name, row in fleet.variants.items():
        root = beside / row.folder.expanduser()
        paths = sorted(
            (path for file in ALLOWED_FILES if (path := root / file).is_file()), key=lambda path: path.stat().st_size
        )
        if not paths:
            raise ConfigError(f"variants.{name}.folder: {root} holds no checkpoint; `chattts-serve pack` makes one")
        files = []
        for path in paths:
            digest = file_sha256(path)
            places[digest] = path
            files.append(FileEntry(path=str(path.relative_to(root)), size=path.stat().st_size, sha256=digest))
        variants.append(Variant(name=name, weights=row.weights, vocoder=row.vocoder, files=tuple(files)))
    return tuple(variants), places


def choose(rows: Sequence[Row], variants: Sequence[Variant], state: BoxState) -> tuple[Variant, ...]:
    """Returns the variants that a box should have, up to the heaviest one that it can bear. At least the lightest."""
    allowed = [
        (row, variant)
        for row, variant in zip(rows, variants, strict=True)
        if variant.id not in state.failed and state.memory_mib >= row.memory_mib
    ] or [(rows[0], variants[0])]
    current = next((index for index, (_, variant) in enumerate(allowed) if variant.id == state.variant_id), -1)

    def fits(index: int) -> bool:
        row, rtf = allowed[index][0], state.rtf or 0.0
        if index > current:
            return (state.link_kib_per_s or 0.0) >= row.link_kib_per_s and rtf <= HEADROOM * row.rtf
        return index < current or rtf <= row.rtf

    heaviest = next((index for index in reversed(range(len(allowed))) if fits(index)), 0)
    return tuple(variant for _, variant in allowed[: heaviest + 1])
