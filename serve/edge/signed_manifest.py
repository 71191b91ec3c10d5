"""Signed manifest: which variants of a model one box should have, in the order in which it fetches them.

In:    a message and the center's public key; at the center, a manifest and the private key
Out:   a Manifest whose signature is right; at the center, the message
Owns:  the form of the message: a signature in base64, a line feed, canonical JSON
Never: JSON of a message before its signature is right; a path that is none of a checkpoint's
"""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import AfterValidator, Field, ValidationError, model_validator

from pipeline.checkpoint.layout import (
    CAPABILITIES_FILE,
    FILES,
    PRONUNCIATION_FILE,
    SMALL_FILES,
    SPEAKERS_FILE,
)
from pipeline.config import PipelineConfig, StrictModel
from pipeline.errors import ConfigError
from pipeline.spec import VocoderSize
from serve.config.edge import BOX_NAME

CONTEXT = b"chattts manifest 1\n"  # signed too, so that a signature means nothing else
MOST_MESSAGE_BYTES = 64 << 10
MOST_FILE_BYTES = 4 << 30
MOST_SERIAL = 1 << 53
ALLOWED_FILES = frozenset({*FILES, SPEAKERS_FILE, CAPABILITIES_FILE, PRONUNCIATION_FILE, *SMALL_FILES})
Name = Annotated[str, Field(pattern=BOX_NAME)]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+$", max_length=300)]
Weights = Literal["bf16", "int8", "int4"]


class ManifestRefused(Exception):
    """A message is no manifest for this box; it stays as it is."""


def checkpoint_file(path: str) -> str:
    """Returns the path of a file of a checkpoint, for pydantic.

    Raises:
        ValueError: a checkpoint has no such file.
    """
    if path not in ALLOWED_FILES:
        raise ValueError(f"a checkpoint has {', '.join(sorted(ALLOWED_FILES))}")
    return path


class FileEntry(StrictModel):
    """A file of a checkpoint."""

    path: Annotated[str, AfterValidator(checkpoint_file)]
    size: int = Field(ge=0, le=MOST_FILE_BYTES)
    """bytes"""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Variant(StrictModel):
    """One form of the model."""

    name: Name
    weights: Weights
    vocoder: VocoderSize
    files: tuple[FileEntry, ...] = Field(min_length=1, max_length=len(ALLOWED_FILES))

    @property
    def id(self) -> str:
        """The hash of all of it but its name."""
        return hashlib.sha256(canonical(self.model_copy(update={"name": "-"}))).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)

    def settings(self, base: PipelineConfig, folder: Path) -> PipelineConfig:
        """Returns the settings of a box for this variant, whose files are in a folder.

        Raises:
            ValidationError: the box's own settings do not allow it.
        """
        engine, vocoder = base.engine.model_dump(), base.vocoder.model_dump() | {"size": self.vocoder}
        engine |= {"weights": "dtype"} if self.weights == "bf16" else {"dtype": "bfloat16", "weights": self.weights}
        own = base.model_dump() | {"checkpoint": str(folder), "engine": engine, "vocoder": vocoder}
        return PipelineConfig.model_validate(own)


class Manifest(StrictModel):
    """What one box should have."""

    box: Name
    serial: int = Field(ge=1, le=MOST_SERIAL)
    url: Url
    """of the center, which serves `/files/<sha256>`"""
    variants: tuple[Variant, ...] = Field(min_length=1, max_length=8)
    """the lightest first; the last one is to stay"""

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Manifest":
        sizes: dict[str, int] = {}
        for variant in self.variants:
            if len({file.path for file in variant.files}) < len(variant.files):
                raise ValueError(f"{variant.name} has a file twice")
            if any(sizes.setdefault(file.sha256, file.size) != file.size for file in variant.files):
                raise ValueError(f"{variant.name} has a file of two sizes")
        return self


def canonical(model: StrictModel) -> bytes:
    """Returns the bytes that stand for a model: JSON with sorted keys, without blanks, in ASCII."""
    return json.dumps(model.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode("ascii")


def sign(manifest: Manifest, key: Ed25519PrivateKey) -> bytes:
    """Returns the message of a manifest."""
    body = canonical(manifest)
    return base64.b64encode(key.sign(CONTEXT + body)) + b"\n" + body


def open_manifest(message: bytes, key: Ed25519PublicKey, box: str) -> Manifest:
    """Returns the manifest of a message.

    Raises:
        ManifestRefused: it is too long, not signed with the center's key, not for this box, or no manifest.
    """
    if len(message) > MOST_MESSAGE_BYTES:
        raise ManifestRefused(f"a manifest of {len(message)} bytes; at most {MOST_MESSAGE_BYTES} are read")
    signature, _, body = message.partition(b"\n")
    try:
        decoded = base64.b64decode(signature, validate=True)
        key.verify(decoded, CONTEXT + body)
    except (InvalidSignature, ValueError):
        decoded = b""
    if not decoded or base64.b64encode(decoded) != signature:  # a signature has one form
        raise ManifestRefused("a manifest without the signature of edge.key")
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        raise ManifestRefused(f"a signed manifest of another form: {error.errors()[0]['msg'][:200]}") from None
    if canonical(manifest) != body or manifest.box != box:
        raise ManifestRefused(f"a signed manifest for {manifest.box}, or not in canonical form; this box is {box}")
    return manifest


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Returns the center's key.

    Raises:
        ConfigError: there is none in the file.
    """
    key = _read_key(path, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path}: no public Ed25519 key in PEM; `chattts-serve center --new-key FILE` writes FILE.pub")
    return key


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Returns the key with which a center signs.

    Raises:
        ConfigError: there is none in the file.
    """
    key = _read_key(path, lambda content: load_pem_private_key(content, None))
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: no private Ed25519 key in PEM; `chattts-serve center --new-key FILE` writes it")
    return key


def _read_key(path: Path, load: Callable[[bytes], object]) -> object:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError):
        return None
