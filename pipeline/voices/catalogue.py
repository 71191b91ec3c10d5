"""Catalogue: the shipped voices by name, and the voices of seeds, which need no file.

In:    a name: `default`, one of the catalogue's names or aliases, a public name of another service's voice, or
       seed:<0 .. 4294967295>; in upper or lower case
Out:   Voice
Owns:  the catalogue (read-only once loaded)
Never: torch, requests, the checkpoint: the caller passes the width of an embedding
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from pipeline.config import StrictModel
from pipeline.errors import ConfigError, UnknownVoice
from pipeline.types import MAX_SEED, Voice
from pipeline.voices.persons import Persons
from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import decode_embedding, decode_sample
from pipeline.yaml_loader import parse_yaml

DEFAULT = "default"
MAX_CATALOGUE_BYTES = 4 * 2**20

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SEED_NAME = re.compile(r"seed:(0|[1-9][0-9]{0,9})")
_SHOWN_CHARACTERS = 64

PublicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """Metadata of a voice."""

    name: str
    """the name in a request"""
    aliases: tuple[str, ...]
    languages: tuple[str, ...]
    description: str
    origin: str
    """built-in, seed:<n> or embedding; for a stored voice one of records.ORIGINS"""
    title: str = ""
    """display name if it differs from the name"""
    version: int | None = None
    """None: a voice of the catalogue, which has no versions and cannot be changed over HTTP"""
    licence: str = ""
    consent: bool = False
    created_at: str = ""
    gain_db: float = 0.0
    loudness_lufs: float | None = None
    stability: float | None = None
    """0 .. 1 as measure.stability computes it; None: not measured"""
    labels: Mapping[str, str] = field(default_factory=dict)
    """how it sounds, in words (persons.py); empty: not measured"""


class _VoiceEntry(StrictModel):
    """One entry of the catalogue file."""

    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    embedding: str | None = Field(None, description="a speaker string of ChatTTS")
    sample: str | None = Field(None, description="a prompt string of ChatTTS: the codes of a reference recording")
    sample_text: str = Field("", max_length=1000, description="transcript of the reference recording")
    languages: tuple[str, ...] = ()
    description: str = ""
    aliases: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_one_voice(self) -> "_VoiceEntry":
        if (self.seed is None) == (self.embedding is None):
            raise ValueError("give either seed or embedding")
        if (self.sample is None) == bool(self.sample_text):
            raise ValueError("sample and sample_text belong together")
        return self


class _CatalogueFile(StrictModel):
    voices: dict[str, _VoiceEntry] = Field(default_factory=dict)
    public_names: dict[str, dict[str, tuple[PublicName, ...]]] = Field(
        default_factory=dict, description="protocol or program -> voice -> the names of its own voices that mean this one"
    )


class VoiceCatalogue:
    """The shipped voices and the seed voices, by name."""

    def __init__(
        self,
        voices: dict[str, Voice],
        infos: tuple[VoiceInfo, ...],
        width: int,
        statistics: NDArray[np.float16] | None = None,
        public: Mapping[str, Voice] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            voices: by name and by alias.
            width: numbers per embedding.
            statistics: the checkpoint's own speaker statistics.
            public: by the names of other services' voices, in lower case.
        """
        self._voices = voices
        self._public = public
        self._infos = infos
        self.width = width
        self._statistics = statistics

    @classmethod
    def load(
        cls, path: Path | None, width: int, statistics: NDArray[np.float16] | None = None, persons: Persons | None = None
    ) -> "VoiceCatalogue":
        """Reads a catalogue file; without a path there are `default` and the seed voices.

        Args:
            persons: the names and labels that were measured on the checkpoint, as read_persons returns them.

        Raises:
            ConfigError: the file is not a strict catalogue, or one of its strings is not what it claims to be.
        """
        file = _CatalogueFile() if path is None else _read(path)
        voices: dict[str, Voice] = {}
        infos: list[VoiceInfo] = []
        for name, entry in file.voices.items():
            where = f"{path}: voices.{name}"
            voice = _voice(name, entry, width, statistics, where)
            for key in (name, *entry.aliases):
                if not _NAME.fullmatch(key):
                    raise ConfigError(f"{where}: the name {key!r} must match {_NAME.pattern}")
                if key in voices:
                    raise ConfigError(f"{where}: the name {key!r} already belongs to the voice {voices[key].name!r}")
                voices[key] = voice
            origin = "embedding" if entry.seed is None else f"seed:{entry.seed}"
            infos.append(_named(VoiceInfo(name, entry.aliases, entry.languages, entry.description, origin), persons))
        if DEFAULT not in voices:
            voices[DEFAULT] = Voice(DEFAULT, None)
            plain = VoiceInfo(DEFAULT, (), ("zh", "en"), "ChatTTS without a speaker embedding", "built-in")
            infos.insert(0, _named(plain, persons))
        return cls(voices, tuple(infos), width, statistics, _public(file, voices, str(path)))

    def get(self, name: str) -> Voice:
        """Returns the voice of a name or alias, or the one that `seed:<n>` draws.

        Raises:
            UnknownVoice: the message lists similar names.
        """
        lowered = name.lower()
        if (voice := self._voices.get(lowered) or self._public.get(lowered)) is not None:
            return voice
        seeded = _SEED_NAME.fullmatch(lowered)
        if seeded and int(seeded[1]) <= MAX_SEED:
            return Voice(lowered, draw_embedding(int(seeded[1]), self.width, self._statistics))
        raise UnknownVoice(self._unknown(name), param="voice")

    @staticmethod
    def is_name(text: str) -> bool:
        """True if `text` is a valid name of an entry."""
        return bool(_NAME.fullmatch(text))

    def has(self, name: str) -> bool:
        """True if the name or alias is in the catalogue."""
        return name in self._voices

    def list(self) -> tuple[VoiceInfo, ...]:
        """Returns every named voice. Seeds are not listed: there are 4,294,967,296 of them."""
        return self._infos

    def _unknown(self, name: str) -> str:
        shown = name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "..."
        near = difflib.get_close_matches(shown.lower(), self._voices, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        return f"there is no voice {shown!r}{hint} Known are the names of GET /v1/audio/voices and seed:<0 .. {MAX_SEED}>"


def _named(info: VoiceInfo, persons: Persons | None) -> VoiceInfo:
    labels = dict((persons or {}).get(info.origin, {}))
    return replace(info, title=labels.pop("name", ""), labels=labels)


def _voice(name: str, entry: _VoiceEntry, width: int, statistics: NDArray[np.float16] | None, where: str) -> Voice:
    try:
        if entry.embedding is not None:
            embedding = decode_embedding(entry.embedding, width)
        else:
            assert entry.seed is not None
            embedding = draw_embedding(entry.seed, width, statistics)
        sample = None if entry.sample is None else decode_sample(entry.sample)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return Voice(name, embedding, sample, entry.sample_text)


def _public(file: _CatalogueFile, voices: Mapping[str, Voice], where: str) -> dict[str, Voice]:
    """Returns the voices by the names of other services' voices, in lower case."""
    public: dict[str, Voice] = {}
    for service, names_of in file.public_names.items():
        for voice, names in names_of.items():
            if voice not in voices:
                raise ConfigError(f"{where}: public_names.{service} has {voice!r}, which is none of the voices")
            for name in names:
                if name.lower() in voices or public.setdefault(name.lower(), voices[voice]) is not voices[voice]:
                    raise ConfigError(f"{where}: public_names.{service}: the name {name!r} belongs to two voices")
    return public


def _read(path: Path) -> _CatalogueFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the voice catalogue cannot be read: {error.strerror}") from error
    if len(content) > MAX_CATALOGUE_BYTES:
        raise ConfigError(f"{path}: a voice catalogue of {len(content)} bytes; the limit is {MAX_CATALOGUE_BYTES}")
    try:
        tree = parse_yaml(content.decode())
        return _CatalogueFile.model_validate({} if tree is None else tree)
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_explain(dict(detail))}" for detail in error.errors())) from error


def _explain(error: dict[str, Any]) -> str:
    """Returns one line of a pydantic report: the key's path, what was found, the nearest key."""
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{place or 'the file'}: {error['msg']}"
    allowed = list((_CatalogueFile if len(error["loc"]) == 1 else _VoiceEntry).model_fields)
    near = difflib.get_close_matches(str(error["loc"][-1]), allowed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"
    return f"{place}: unknown key; {hint}"
