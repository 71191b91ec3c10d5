"""Voice desk: makes voices. A new one speaks its preview first: that tells how loud it is, and that it speaks at all.

In:    what a voice is to be made of
Out:   StoredVoices, previews, scores
Owns:  nothing but the library it was given
Never: HTTP, Ray; a request's turn (making a voice waits for the engine like any other speech)
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import audio_format
from pipeline.errors import InvalidRequest, ReadOnlyVoice, ReferenceRejected, StoreUnavailable
from pipeline.protocols import RecordingEncoder
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.store.poll import follow
from pipeline.text.normalize import is_speakable, normalize
from pipeline.types import AudioChunk, SamplingParams, SynthesisRequest, Voice
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.measure import loudness_lufs, stability, static_gain_db
from pipeline.voices.names import is_id
from pipeline.voices.records import Consent, StoredVoice, VoiceRecord, embedding_fields, sample_fields
from pipeline.voices.reference import Report
from pipeline.voices.seeds import MAX_SEED
from serve.config.app_config import VoicesConfig
from serve.voices.upload_reader import UploadReader

LOG = logging.getLogger("ray.serve.chattts")

PREVIEW_FORMAT = audio_format("mp3")
PREVIEW_SEED = 1
PREVIEW_TEXT = {"zh": "你好，这就是我的声音，希望你喜欢。", "en": "Hello, this is my voice. I hope you like it."}
SCORE_TEXTS = {
    "zh": ("今天的天气真不错。", "我们明天早上再见。", "这本书一共有三百页。"),
    "en": ("The weather is lovely today.", "We will meet again tomorrow morning.", "This book has three hundred pages."),
}
MAX_LETTERS_PER_SECOND = 40  # of a transcript; nobody speaks faster
ROOM_FOR_TEXT = 192  # positions of a prompt that a recording must leave

Stream = Callable[[SynthesisRequest], AsyncGenerator[AudioChunk, None]]


@dataclass(frozen=True, slots=True)
class VoiceMetadata:
    """What people are told about a voice, whatever it is made of."""

    title: str
    id: str | None = None
    """None: the title where it can be an id, else a drawn one"""
    languages: tuple[str, ...] = ()
    description: str = ""
    licence: str = ""
    gain_db: float | None = None
    """None: what brings it to the service's loudness"""


class VoiceService:
    """The library, and what it takes to fill it."""

    def __init__(
        self,
        library: VoiceLibrary,
        config: VoicesConfig,
        stream: Stream,
        encoder: RecordingEncoder,
        *,
        model: str,
        max_prompt: int,
        speaks: tuple[str, ...] = ("zh", "en"),
    ) -> None:
        """
        Args:
            stream: the service's own speech.
            model: the checkpoint, for the records.
            max_prompt: the engine's longest prompt [positions].
            speaks: languages of the checkpoint; a preview is in one of them.
        """
        self._speaks = speaks
        self.library = library
        self.config = config
        self._stream = stream
        self._encoder = encoder
        self._uploads = UploadReader()
        self._model = model
        self._max_sample_steps = max_prompt - ROOM_FOR_TEXT

    async def follow(self, problems: dict[str, str] | None = None) -> None:
        """Take over what other replicas write, until cancelled; see follow()."""
        await follow("voices", self.library.refresh, self.config.refresh_s, problems)

    # -- making ------------------------------------------------------------------------------------------------------

    async def from_seed(self, metadata: VoiceMetadata, seed: int) -> StoredVoice:
        """Keep the speaker a seed stands for."""
        return await self._from_name(metadata, f"seed:{seed}", "seed")

    async def from_blend(self, metadata: VoiceMetadata, blend: str) -> StoredVoice:
        """Keep a mixture; it stays what it is when its parts change."""
        return await self._from_name(metadata, blend, "blend")

    async def from_embedding(self, metadata: VoiceMetadata, embedding: NDArray[np.float16]) -> StoredVoice:
        """Keep an embedding that was brought along."""
        return await self._make(metadata, {"origin": "embedding", **embedding_fields(embedding)}, Voice("", embedding))

    async def from_recording(
        self, metadata: VoiceMetadata, content: bytes, transcript: str, consent: str
    ) -> tuple[StoredVoice, Report]:
        """Clone: the recording's codes and transcript are kept, the recording is not.

        Raises:
            ReferenceRejected, UnsupportedFormat, AtCapacity
        """
        self._check_new(metadata)
        # The model was trained on transcripts as the text front end writes them: numbers as words, no stray signs.
        transcript = (await asyncio.to_thread(normalize, transcript, language="auto")).text
        if not is_speakable(transcript):
            raise ReferenceRejected(
                "ref_text has nothing to say; it is exactly what is said in the recording", param="ref_text"
            )
        reference = await self._uploads.read(content)
        report = reference.report
        if len(transcript) > MAX_LETTERS_PER_SECOND * report.seconds:
            raise ReferenceRejected(
                f"{len(transcript)} characters cannot be said in {report.seconds:.1f} s; ref_text is exactly what is said",
                param="ref_text",
            )
        if len(reference.samples) > SAMPLES_PER_STEP * self._max_sample_steps:
            longest_s = SAMPLES_PER_STEP * self._max_sample_steps / SAMPLE_RATE
            raise ReferenceRejected(
                f"{report.seconds:.1f} s leave a prompt no room for text; this engine takes up to {longest_s:.1f} s "
                "(engine.max_prompt)",
                param="audio_sample",
            )
        codes = await self._encoder.encode(reference.samples)
        fields = {
            "origin": "upload",
            "width": self.library.width,
            "consent": Consent(statement=consent, given_at=_now()),
            **sample_fields(codes, transcript),
        }
        return await self._make(metadata, fields, Voice("", None, codes, transcript)), report

    async def edit(self, voice_id: str, changes: dict[str, Any]) -> StoredVoice:
        """The next version of a voice: other words about it, or another gain. Its sound is another voice.

        Raises:
            UnknownVoice, Conflict
        """
        stored = self.stored(voice_id)
        record = VoiceRecord.model_validate({**stored.record.model_dump(), **changes, "created_at": _now()})
        if record.title != stored.record.title and self.library.find(record.title) is not None:
            raise InvalidRequest("another voice has this name", param="name")
        preview = await asyncio.to_thread(self._kept_preview, stored) if record.gain_db == stored.record.gain_db else None
        return await asyncio.to_thread(self.library.edit, stored, record, preview or b"")

    async def delete(self, voice_id: str) -> None:
        """Every version of it.

        Raises:
            UnknownVoice
        """
        self.stored(voice_id)
        await asyncio.to_thread(self.library.delete, voice_id)

    # -- listening ---------------------------------------------------------------------------------------------------

    async def preview(self, name: str) -> bytes:
        """A sentence in that voice, as mp3: kept where the voice was made here, else spoken now.

        Raises:
            UnknownVoice
        """
        stored = self.library.find(name)
        if stored is not None:
            with contextlib.suppress(StoreUnavailable):
                kept = await asyncio.to_thread(self._kept_preview, stored)
                if kept is not None:
                    return kept
        languages = () if stored is None else stored.record.languages
        samples = await self._say(self.library.canonical(name), PREVIEW_TEXT[self._language(languages)])
        return await asyncio.to_thread(_preview, samples, 0.0)  # the voice's own gain is in it

    async def score(self, name: str) -> dict[str, float]:
        """How much a voice stays itself over three sentences with three seeds; kept with a version that was made here.

        Raises:
            UnknownVoice
        """
        stored = self.library.find(name)
        canonical = self.library.canonical(name)
        texts = SCORE_TEXTS[self._language(() if stored is None else stored.record.languages)]
        takes = await asyncio.gather(*(self._say(canonical, text, seed) for seed, text in enumerate(texts)))
        score = await asyncio.to_thread(stability, takes)
        if stored is not None:
            await asyncio.to_thread(self.library.keep_score, stored, score)
        return score

    def random(self, count: int, seed: int | None, like: str | None, unlike: str | None) -> list[tuple[int, float | None]]:
        """Seeds worth listening to, and how near each speaker is to `like` (or `unlike`), -1 .. 1.

        Without a wish the next `count` seeds of the counter; with one the best of sixteen times as many.
        """
        first = secrets.randbelow(MAX_SEED + 1) if seed is None else seed
        wish = like or unlike
        seeds = [(first + index) % (MAX_SEED + 1) for index in range(count if wish is None else 16 * count)]
        if wish is None:
            return [(each, None) for each in seeds]
        wanted = _direction(self.library.embedding_of(wish))
        near = [(each, float(_direction(self.library.embedding_of(f"seed:{each}")) @ wanted)) for each in seeds]
        best = sorted(near, key=lambda one: one[1], reverse=like is not None)[:count]
        return [(each, round(similarity, 4)) for each, similarity in best]

    def stored(self, voice_id: str) -> StoredVoice:
        """The newest version of a made voice.

        Raises:
            UnknownVoice: there is none.
            InvalidRequest: it is one of the catalogue's.
        """
        found = self.library.find(voice_id) if is_id(voice_id) else None
        if found is not None and found.id == voice_id:
            return found
        self.library.canonical(voice_id)  # raises where there is no such voice at all
        raise ReadOnlyVoice("this voice is built in, or its name says everything: it cannot be changed", param="id")

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _from_name(self, metadata: VoiceMetadata, name: str, origin: str) -> StoredVoice:
        embedding = self.library.embedding_of(name)
        made_of = self.library.canonical(name)
        fields = {"origin": origin, "made_of": made_of, **embedding_fields(embedding)}
        return await self._make(metadata, fields, Voice("", embedding))

    def _check_new(self, metadata: VoiceMetadata) -> str:
        """The id, once everything that can be told before the work is in order."""
        voice_id = metadata.id or (metadata.title if is_id(metadata.title) else f"voice-{secrets.token_hex(4)}")
        self.library.check_new(voice_id, metadata.title)
        return voice_id

    async def _make(self, metadata: VoiceMetadata, fields: dict[str, Any], voice: Voice) -> StoredVoice:
        voice_id = self._check_new(metadata)
        with self.library.temporary(voice) as name:
            samples = await self._say(name, PREVIEW_TEXT[self._language(metadata.languages)])
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
        preview = await asyncio.to_thread(_preview, samples, gain_db)
        stored = await asyncio.to_thread(self.library.add, voice_id, record, preview)
        LOG.info("voice made origin=%s consent=%s", record.origin, record.consent is not None)
        return stored

    async def _say(self, name: str, text: str, seed: int = PREVIEW_SEED) -> NDArray[np.float32]:
        """Samples (m,) of a sentence in a voice."""
        request = SynthesisRequest(
            f"voice-{secrets.token_hex(4)}",
            text,
            name,
            sampling=SamplingParams(seed=seed),
            timeout_s=self.config.creation_timeout_s,
        )
        async with aclosing(self._stream(request)) as chunks:
            pieces = [chunk.samples async for chunk in chunks]
        return np.concatenate(pieces)

    def _kept_preview(self, stored: StoredVoice) -> bytes | None:
        return self.library.preview(stored)

    def _language(self, languages: tuple[str, ...]) -> str:
        """What a voice of these languages is heard in: its first, else English, as far as the checkpoint speaks it."""
        return next((each for each in (*languages[:1], "en") if each in self._speaks), self._speaks[0])


def _preview(samples: NDArray[np.float32], gain_db: float) -> bytes:
    louder = np.clip(samples * np.float32(10 ** (gain_db / 20)), -1, 1)
    return encode_whole(louder, PREVIEW_FORMAT)


def _direction(embedding: NDArray[np.float16]) -> NDArray[np.float64]:
    wide = embedding.astype(np.float64)
    direction: NDArray[np.float64] = wide / np.linalg.norm(wide)
    return direction


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
