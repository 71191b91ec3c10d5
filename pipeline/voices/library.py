"""Library: every voice this process knows, behind one door.

In:    names as names.py lists them; records to keep
Out:   Voice, VoiceInfo
Owns:  a mirror of the store, temporary voices for as long as they are measured
Never: waiting for the store while a request is looked up; names of clients in its messages

Looking up reads memory alone. Writing, deleting and refresh() block; call them from a thread.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import Conflict, InvalidRequest, StoreUnavailable, UnknownVoice, VoiceExists
from pipeline.store.mirror import Mirror
from pipeline.store.store import Store
from pipeline.types import Voice
from pipeline.voices.catalogue import DEFAULT, VoiceCatalogue, VoiceInfo
from pipeline.voices.names import BLEND, INLINE, MAX_NAME_CHARS, is_id, join_blend, split_blend, split_version
from pipeline.voices.records import StoredVoice, VoiceRecord, read_record, write_record
from pipeline.voices.strings import decode_embedding

VOICES = "voices"
PREVIEWS = "voice-previews"
SCORES = "voice-scores"
MAX_VERSIONS = 100  # of one voice; each is held in memory by every replica

UNKNOWN = "no such voice; GET /v1/audio/voices lists them, and seed:<number> is one"


class VoiceLibrary:
    """Catalogue and store together."""

    def __init__(
        self,
        catalogue: VoiceCatalogue,
        store: Store | None = None,
        *,
        max_voices: int = 1000,
        allow_inline: bool = False,
    ) -> None:
        """
        Args:
            store: None: nothing can be kept.
            allow_inline: whether emb:<string> is a voice.
        """
        self.catalogue = catalogue
        self.width = catalogue.width
        self._store = store
        self._max_voices = max_voices
        self._allow_inline = allow_inline
        self._temporary: dict[str, Voice] = {}
        self._voices: Mirror[StoredVoice] | None = None
        self._scores: Mirror[float] | None = None
        if store is not None:
            self._voices = Mirror(store, VOICES, lambda key, version, value: read_record(key, version, value, width=self.width))
            self._scores = Mirror(store, SCORES, lambda key, version, value: float(json.loads(value)["stability"]))

    # -- looking up --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Voice:
        """The voice of a name.

        Raises:
            UnknownVoice, InvalidRequest
        """
        if name in self._temporary:
            return self._temporary[name]
        if name.startswith(BLEND):
            parts = self._blend_parts(name)
            return Voice(join_blend(parts), self._blend(parts))
        if name.startswith(INLINE):
            return Voice(name, self._inline(name))
        stored = self.find(name)
        if stored is not None:
            return stored.voice
        try:
            return self.catalogue.get(name)
        except UnknownVoice:
            # The catalogue tells an operator which name is near; a client is told nothing it said.
            raise UnknownVoice(UNKNOWN, param="voice") from None

    def canonical(self, name: str | None) -> str:
        """The name that means the same voice for as long as there is one; of the default voice for None.

        Raises:
            UnknownVoice, InvalidRequest
        """
        if name is None:
            return self.catalogue.get(DEFAULT).name
        if len(name) > MAX_NAME_CHARS or name in self._temporary:
            raise UnknownVoice(UNKNOWN, param="voice")
        return self.get(name).name

    def find(self, name: str) -> StoredVoice | None:
        """The stored voice of an id, an id@version or what people call it; never one of the catalogue."""
        if self._voices is None:
            return None
        pinned = split_version(name)
        if pinned is not None:
            return self._voices.get(*pinned)
        if self.catalogue.has(name):
            return None
        found = self._voices.get(name)
        if found is None:
            called = [voice for voice in self._voices.newest().values() if voice.record.title == name]
            found = called[0] if len(called) == 1 else None
        return found

    def list(self) -> tuple[VoiceInfo, ...]:
        """Every named voice, the catalogue's first."""
        stored = [] if self._voices is None else self._voices.newest().values()
        return (*self.catalogue.list(), *(self.info(voice) for voice in stored))

    def info(self, voice: StoredVoice) -> VoiceInfo:
        """What there is to know about it."""
        return voice.info(None if self._scores is None else self._scores.get(voice.name))

    @contextmanager
    def temporary(self, voice: Voice) -> Iterator[str]:
        """A name for a voice that is in no list, until the block ends; nobody outside can say it."""
        name = f"temporary:{secrets.token_hex(16)}"
        self._temporary[name] = voice
        try:
            yield name
        finally:
            del self._temporary[name]

    def embedding_of(self, name: str) -> NDArray[np.float16]:
        """The embedding behind a name.

        Raises:
            InvalidRequest: the voice has none.
        """
        embedding = self.get(name).embedding
        if embedding is None:
            raise InvalidRequest("this voice has no embedding: it is ChatTTS's own default or a recording", param="voice")
        return embedding

    # -- keeping -----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take over what other processes have written; True when there was something.

        Raises:
            StoreUnavailable: what is known stays known.
        """
        if self._voices is None or self._scores is None:
            return False
        return self._voices.refresh() | self._scores.refresh()

    def check_new(self, voice_id: str, title: str) -> None:
        """Whether a voice of this id and title can be added; asked before any work is done for it.

        Raises:
            InvalidRequest, VoiceExists, StoreUnavailable
        """
        self._writable()
        assert self._voices is not None
        if not is_id(voice_id):
            raise InvalidRequest(
                "an id is 1 to 64 of the characters A-Z a-z 0-9 . _ -, not dots alone, not random, not blend",
                param="id",
            )
        known = self._voices.newest()
        names = {voice_id, title}
        if any(map(self.catalogue.has, names)) or any(one.id in names or one.record.title in names for one in known.values()):
            raise VoiceExists("there is a voice of this name; GET /v1/audio/voices lists them", param="name")
        if len(known) >= self._max_voices:
            raise VoiceExists(f"there are {len(known)} voices, as many as voices.max_voices allows; delete one first")

    def add(self, voice_id: str, record: VoiceRecord, preview: bytes = b"") -> StoredVoice:
        """Keep a new voice.

        Raises:
            VoiceExists, StoreUnavailable, StoreFull
        """
        self.check_new(voice_id, record.title)
        return self._put(voice_id, record, preview, replaces=0)

    def edit(self, stored: StoredVoice, record: VoiceRecord, preview: bytes = b"") -> StoredVoice:
        """Keep the next version of a voice; the ones before it stay.

        Raises:
            Conflict: `stored` is not the newest version.
            InvalidRequest: there are too many versions.
            StoreUnavailable, StoreFull
        """
        if stored.version >= MAX_VERSIONS:
            raise InvalidRequest(f"this voice has {stored.version} versions; the limit is {MAX_VERSIONS}: make a new one")
        return self._put(stored.id, record, preview, replaces=stored.version)

    def delete(self, voice_id: str) -> None:
        """Remove a voice, all its versions, previews and scores. Requests that have begun speak on.

        Raises:
            UnknownVoice, StoreUnavailable
        """
        store = self._writable()
        assert self._voices is not None
        found = self._voices.get(voice_id)
        if not store.delete(VOICES, voice_id):
            raise UnknownVoice(UNKNOWN, param="id")
        for version in range(1, (found.version if found else 0) + 1):
            store.delete(PREVIEWS, f"{voice_id}@{version}")
            store.delete(SCORES, f"{voice_id}@{version}")
        self.refresh()

    def preview(self, stored: StoredVoice) -> bytes | None:
        """The preview kept with a version."""
        found = self._writable().get(PREVIEWS, stored.name)
        return None if found is None else found[1]

    def keep_score(self, stored: StoredVoice, score: dict[str, float]) -> None:
        """Remember how stable a version is; a later score takes the place of an earlier one."""
        store = self._writable()
        newest = store.get(SCORES, stored.name)
        store.put(SCORES, stored.name, json.dumps(score).encode(), replaces=newest[0] if newest else 0)
        self.refresh()

    def _put(self, voice_id: str, record: VoiceRecord, preview: bytes, *, replaces: int) -> StoredVoice:
        store = self._writable()
        assert self._voices is not None
        try:
            version = store.put(VOICES, voice_id, write_record(record), replaces=replaces)
        except Conflict:
            if replaces:
                raise
            raise VoiceExists("there is a voice of this name; GET /v1/audio/voices lists them", param="name") from None
        if preview:
            try:
                store.put(PREVIEWS, f"{voice_id}@{version}", preview, replaces=0)
            except StoreUnavailable:
                if not replaces:  # who tries again must not hear that there is such a voice
                    store.delete(VOICES, voice_id)
                raise
        self.refresh()
        stored = self._voices.get(voice_id, version)
        if stored is None:
            raise StoreUnavailable("the voice was deleted while it was written")
        return stored

    def _writable(self) -> Store:
        if self._store is None:
            raise StoreUnavailable("this service keeps no voices (voices.store)")
        return self._store

    # -- names that say everything -----------------------------------------------------------------------------------

    def _inline(self, name: str) -> NDArray[np.float16]:
        if not self._allow_inline:
            raise InvalidRequest("inline embeddings are switched off (voices.inline); create a voice instead", param="voice")
        try:
            return decode_embedding(name.removeprefix(INLINE), self.width)
        except ValueError as error:
            raise InvalidRequest(f"the inline embedding cannot be read: {error}", param="voice") from None

    def _blend_parts(self, name: str) -> tuple[tuple[str, float], ...]:
        """Canonical names and summed weights, in the order of the names: a mixture has no order."""
        weights: dict[str, float] = {}
        for part, weight in split_blend(name):
            own = self.canonical(part)
            weights[own] = weights.get(own, 0.0) + weight
        return tuple(sorted(weights.items()))

    def _blend(self, parts: tuple[tuple[str, float], ...]) -> NDArray[np.float16]:
        return blend(tuple((self.embedding_of(name), weight) for name, weight in parts))


def blend(parts: tuple[tuple[NDArray[np.float16], float], ...]) -> NDArray[np.float16]:
    """The weighted mean of embeddings (width,), computed in float64, rounded once.

    Raises:
        InvalidRequest: they cancel each other out.
    """
    total = sum(weight for _, weight in parts)
    mixed = sum((weight / total) * embedding.astype(np.float64) for embedding, weight in parts)
    embedding: NDArray[np.float16] = np.asarray(mixed).astype(np.float16)
    if not embedding.any():
        raise InvalidRequest("these embeddings cancel each other out: nothing is left to speak with", param="voice")
    return embedding
