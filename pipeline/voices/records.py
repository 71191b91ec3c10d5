"""Records: the stored form of a voice. A version is written once; a change is the next version.

In:    embeddings, codes and metadata
Out:   JSON, and its Voice
Never: pickle; a recording itself: only its codes are stored
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from pipeline.config import StrictModel
from pipeline.types import Voice
from pipeline.types.bounds import GAIN_DB
from pipeline.voices.catalogue import VoiceInfo
from pipeline.voices.strings import decode_embedding, decode_sample, encode_embedding, encode_sample
from pipeline.voices.voice_names import versioned

Origin = Literal["seed", "blend", "embedding", "upload"]
ORIGINS: tuple[str, ...] = get_args(Origin)

MAX_TITLE_CHARS = 100
MAX_NOTE_CHARS = 1000
MAX_LANGUAGES = 8


class Consent(StrictModel):
    """The uploader's statement that the speaker of a recording has agreed."""

    statement: str = Field(min_length=1, max_length=MAX_NOTE_CHARS)
    given_at: str


class VoiceRecord(StrictModel):
    """One version of a voice."""

    title: str = Field(min_length=1, max_length=MAX_TITLE_CHARS, description="display name")
    owner: str = Field("", max_length=MAX_TITLE_CHARS, description="id of the key that made it; empty: the operator's")
    preview_bytes: int = Field(0, ge=0, description="size of the preview that is kept beside it [bytes]")
    origin: Origin
    made_of: str = Field("", max_length=MAX_NOTE_CHARS, description="source of the voice: seed:<n> or blend:...")
    width: int = Field(ge=1, description="numbers per embedding of the checkpoint it was created for")
    model: str = Field("", max_length=128, description="the checkpoint it was created for")
    embedding: str | None = Field(None, description="speaker string")
    sample: str | None = Field(None, description="prompt string")
    sample_text: str = Field("", max_length=MAX_NOTE_CHARS, description="transcript of the recording")
    languages: tuple[str, ...] = Field((), max_length=MAX_LANGUAGES)
    description: str = Field("", max_length=MAX_NOTE_CHARS)
    licence: str = Field("", max_length=MAX_NOTE_CHARS)
    consent: Consent | None = None
    created_at: str
    loudness_lufs: float | None = Field(None, description="of the preview without gain [LUFS]")
    gain_db: float = Field(0.0, ge=GAIN_DB.least, le=GAIN_DB.most)


def embedding_fields(embedding: NDArray[np.float16]) -> dict[str, object]:
    """Returns the fields of a record that hold an embedding."""
    return {"embedding": encode_embedding(embedding), "width": len(embedding)}


def sample_fields(codes: NDArray[np.int64], text: str) -> dict[str, str]:
    """Returns the fields of a record that hold a recording."""
    return {"sample": encode_sample(codes), "sample_text": text}


def voice_of(record: VoiceRecord, name: str) -> Voice:
    """Returns the voice of a record.

    Raises:
        ValueError: a speaker or prompt string is malformed.
    """
    return Voice(
        name,
        None if record.embedding is None else decode_embedding(record.embedding, record.width),
        None if record.sample is None else decode_sample(record.sample),
        record.sample_text,
        gain_db=record.gain_db,
        loudness_lufs=record.loudness_lufs,
    )


@dataclass(frozen=True, slots=True, eq=False)
class StoredVoice:
    """A record and its decoded voice."""

    id: str
    version: int
    record: VoiceRecord
    voice: Voice
    size: int
    """of the record and its preview [bytes]"""

    @property
    def name(self) -> str:
        """id@version"""
        return versioned(self.id, self.version)

    def info(self, stability: float | None = None) -> VoiceInfo:
        """Returns the metadata for lists."""
        record = self.record
        return VoiceInfo(
            name=self.id,
            aliases=(),
            languages=record.languages,
            description=record.description,
            origin=record.origin,
            title=record.title,
            version=self.version,
            licence=record.licence,
            consent=record.consent is not None,
            created_at=record.created_at,
            gain_db=record.gain_db,
            loudness_lufs=record.loudness_lufs,
            stability=stability,
        )


def write_record(record: VoiceRecord) -> bytes:
    """Returns the JSON of a record."""
    return record.model_dump_json(exclude_defaults=True).encode()


def read_record(key: str, version: int, value: bytes, *, width: int) -> StoredVoice:
    """Decodes the JSON of a record.

    Raises:
        ValueError: not a voice record, or one for a checkpoint of another width.
    """
    try:
        record = VoiceRecord.model_validate_json(value)
    except ValidationError as error:
        raise ValueError(f"not a voice: {error.error_count()} fields are wrong") from None
    if record.width != width:
        raise ValueError(f"created for embeddings of {record.width} numbers, this checkpoint has {width}")
    size = len(value) + record.preview_bytes
    return StoredVoice(key, version, record, voice_of(record, versioned(key, version)), size)
