"""Voice maker: creates, edits and deletes voices.

In:    a seed, a blend, an embedding or a recording, with the metadata of the voice
Out:   StoredVoices
Owns:  the reader of recordings
Never: HTTP; a voice without a preview: it measures the loudness, and proves that the voice works
"""

import asyncio
import json
import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.child import ChildFailed, ask_child
from pipeline.errors import AtCapacity, InvalidRequest, ReadOnlyVoice, ReferenceRejected, UnsupportedFormat
from pipeline.protocols import RecordingEncoder
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.store.ownership import OPERATOR, Writer
from pipeline.store.threads import ask_store
from pipeline.text.normalize import is_speakable, normalize
from pipeline.types import Voice
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.measure import loudness_lufs, static_gain_db
from pipeline.voices.records import Consent, StoredVoice, VoiceRecord, embedding_fields, sample_fields
from pipeline.voices.reference import Reference, Report
from pipeline.voices.voice_names import is_id
from serve.access.caller import ANONYMOUS_CALLER, Caller
from serve.config.app_config import VoicesConfig
from serve.voices.voice_sampler import VoiceSampler, encode_preview

LOG = logging.getLogger("ray.serve.chattts")

MAX_LETTERS_PER_SECOND = 40  # of a transcript; speech is never faster
ROOM_FOR_TEXT = 192  # positions of a prompt that a recording must leave
READER = "pipeline.voices.reference"
READ_TIMEOUT_S = 30.0
NO_CHILD_RETRY_S = 5.0
AT_ONCE = 2  # recordings in one ingress replica
REFUSALS = {kind.__name__: kind for kind in (ReferenceRejected, UnsupportedFormat)}


class UploadReader:
    """Decodes recordings, a few at a time."""

    def __init__(self) -> None:
        self._reading = 0

    async def read(self, content: bytes) -> Reference:
        """Decodes a recording and checks that it can be used as a reference.

        Raises:
            ReferenceRejected, UnsupportedFormat
            AtCapacity: others are being read, or the machine has no room for a process.
        """
        if self._reading >= AT_ONCE:
            raise AtCapacity(f"{AT_ONCE} recordings are being read; wait for one", retry_after_s=2.0)
        self._reading += 1
        try:
            answer = await _ask_child(content)
        finally:
            self._reading -= 1
        head, _, samples = answer.partition(b"\n")
        report = json.loads(head)
        if "refused" in report:
            raise REFUSALS[report["refused"]](report["message"], param="audio_sample")
        return Reference(np.frombuffer(samples, "<f4").astype(np.float32), Report(**report))


async def _ask_child(content: bytes) -> bytes:
    try:
        return await ask_child(READER, content, timeout_s=READ_TIMEOUT_S)
    except TimeoutError:
        raise _undecodable(f"{READ_TIMEOUT_S:g} s") from None
    except ChildFailed:
        raise _undecodable("its limits of memory and time") from None
    except OSError as error:  # no more file descriptors, processes or memory
        raise AtCapacity(
            f"no recording can be read at this moment ({error.strerror}); try again", retry_after_s=NO_CHILD_RETRY_S
        ) from error


def _undecodable(limit: str) -> ReferenceRejected:
    return ReferenceRejected(f"the recording could not be decoded within {limit}", param="audio_sample")


@dataclass(frozen=True, slots=True)
class VoiceMetadata:
    """The public metadata of a voice."""

    title: str
    id: str | None = None
    """None: the title if it can be an id, else a random one"""
    languages: tuple[str, ...] = ()
    description: str = ""
    licence: str = ""
    gain_db: float | None = None
    """None: the gain that brings the voice to voices.loudness_lufs"""
    writer: Writer = OPERATOR
    """to whom the voice belongs"""
    payer: Caller = ANONYMOUS_CALLER
    """who pays the sentence of its preview"""


class VoiceMaker:
    """Creates voices and stores them in the library."""

    def __init__(
        self,
        library: VoiceLibrary,
        config: VoicesConfig,
        sampler: VoiceSampler,
        encoder: RecordingEncoder,
        *,
        model: str,
        max_prompt: int,
    ) -> None:
        """
        Args:
            model: the checkpoint, for the records.
            max_prompt: the engine's longest prompt [positions].
        """
        self.config = config
        self._library = library
        self._sampler = sampler
        self._encoder = encoder
        self._uploads = UploadReader()
        self._model = model
        self._max_sample_steps = max_prompt - ROOM_FOR_TEXT

    async def from_seed(self, metadata: VoiceMetadata, seed: int) -> StoredVoice:
        """Stores the speaker of a seed."""
        return await self._from_name(metadata, f"seed:{seed}", "seed")

    async def from_blend(self, metadata: VoiceMetadata, blend: str) -> StoredVoice:
        """Stores a blend; it does not change when its parts do."""
        return await self._from_name(metadata, blend, "blend")

    async def from_embedding(self, metadata: VoiceMetadata, embedding: NDArray[np.float16]) -> StoredVoice:
        """Stores an embedding (width,) of the client's own."""
        return await self._make(metadata, {"origin": "embedding", **embedding_fields(embedding)}, Voice("", embedding))

    async def from_recording(
        self, metadata: VoiceMetadata, content: bytes, transcript: str, consent: str
    ) -> tuple[StoredVoice, Report]:
        """Clones a voice: stores the codes and the transcript of the recording, not the recording.

        Raises:
            ReferenceRejected, UnsupportedFormat, AtCapacity
        """
        await self._check_new(metadata)
        voice, report = await self.voice_of(content, transcript)
        assert voice.sample_codes is not None
        fields = {
            "origin": "upload",
            "width": self._library.width,
            "consent": Consent(statement=consent, given_at=_now()),
            **sample_fields(voice.sample_codes, voice.sample_text),
        }
        return await self._make(metadata, fields, voice), report

    async def voice_of(self, content: bytes, transcript: str) -> tuple[Voice, Report]:
        """Returns the voice of a recording, which has no name and is not stored.

        Raises:
            ReferenceRejected, UnsupportedFormat, AtCapacity
        """
        # The model was trained on normalised transcripts: numbers as words, no stray signs.
        transcript = (await asyncio.to_thread(normalize, transcript, language="auto")).text
        if not is_speakable(transcript):
            raise ReferenceRejected("ref_text has no words; it is the exact transcript of the recording", param="ref_text")
        reference = await self._uploads.read(content)
        self._check_length(reference, transcript)
        return Voice("", None, await self._encoder.encode(reference.samples), transcript), reference.report

    async def edit(self, voice_id: str, changes: dict[str, Any], writer: Writer = OPERATOR) -> StoredVoice:
        """Stores the next version of a voice, with other metadata or another gain. Its sound cannot change.

        Raises:
            UnknownVoice, NotTheOwner, Conflict
        """
        stored = self._stored(voice_id)
        writer.check(stored.record.owner)
        record = VoiceRecord.model_validate({**stored.record.model_dump(), **changes, "created_at": _now()})
        namesake = None if record.title == stored.record.title else self._library.find(record.title)
        if namesake is not None and namesake.id != stored.id:
            raise InvalidRequest("another voice has this name", param="name")
        same_gain = record.gain_db == stored.record.gain_db
        preview = await ask_store(self._library.preview, stored) if same_gain else None
        return await ask_store(self._library.edit, stored, record, preview or b"", writer)

    async def delete(self, voice_id: str, writer: Writer = OPERATOR) -> None:
        """Deletes every version of a voice.

        Raises:
            UnknownVoice, NotTheOwner
        """
        self._stored(voice_id)
        await ask_store(self._library.delete, voice_id, writer)

    def _stored(self, voice_id: str) -> StoredVoice:
        """Returns the newest version of a stored voice.

        Raises:
            UnknownVoice: there is none.
            ReadOnlyVoice: it is one of the catalogue's.
        """
        voice = self._library.find(voice_id) if is_id(voice_id) else None
        if voice is not None and voice.id == voice_id:
            return voice
        self._library.canonical(voice_id)  # raises if there is no such voice at all
        raise ReadOnlyVoice("this voice is built in, or defined by its name: it cannot be changed", param="id")

    async def _check_new(self, metadata: VoiceMetadata) -> str:
        """Returns the id of a new voice, after every check that needs no synthesis."""
        voice_id = metadata.id or (metadata.title if is_id(metadata.title) else f"voice-{secrets.token_hex(4)}")
        await asyncio.to_thread(self._library.check_new, voice_id, metadata.title, metadata.writer)
        return voice_id

    def _check_length(self, reference: Reference, transcript: str) -> None:
        report = reference.report
        if len(transcript) > MAX_LETTERS_PER_SECOND * report.seconds:
            raise ReferenceRejected(
                f"{len(transcript)} characters do not fit into {report.seconds:.1f} s; ref_text is the exact transcript",
                param="ref_text",
            )
        if len(reference.samples) > SAMPLES_PER_STEP * self._max_sample_steps:
            longest_s = SAMPLES_PER_STEP * self._max_sample_steps / SAMPLE_RATE
            raise ReferenceRejected(
                f"{report.seconds:.1f} s leave a prompt no room for text; this engine takes up to {longest_s:.1f} s "
                "(engine.max_prompt)",
                param="audio_sample",
            )

    async def _from_name(self, metadata: VoiceMetadata, name: str, origin: str) -> StoredVoice:
        embedding = self._library.embedding_of(name)
        made_of = self._library.canonical(name)
        fields = {"origin": origin, "made_of": made_of, **embedding_fields(embedding)}
        return await self._make(metadata, fields, Voice("", embedding))

    async def _make(self, metadata: VoiceMetadata, fields: dict[str, Any], voice: Voice) -> StoredVoice:
        voice_id = await self._check_new(metadata)
        with self._library.temporary(voice) as name:
            samples = await self._sampler.say_preview(name, metadata.languages, metadata.payer)
        loudness = await asyncio.to_thread(loudness_lufs, samples)
        gain_db = static_gain_db(loudness, self.config.loudness_lufs) if metadata.gain_db is None else metadata.gain_db
        record = VoiceRecord.model_validate(
            {
                "title": metadata.title,
                "languages": metadata.languages,
                "description": metadata.description,
                "licence": metadata.licence,
                "model": self._model,
                "created_at": _now(),
                "loudness_lufs": loudness,
                "gain_db": gain_db,
                **fields,
            }
        )
        preview = await asyncio.to_thread(encode_preview, samples, gain_db)
        stored = await ask_store(self._library.add, voice_id, record, preview, metadata.writer)
        LOG.info("voice created origin=%s consent=%s", record.origin, record.consent is not None)
        return stored


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
