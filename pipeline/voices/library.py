"""Library: every voice of this process, from the catalogue and from the store.

In:    names as voice_names.py lists them; records to store
Out:   Voice, VoiceInfo
Owns:  a mirror of the store, temporary voices while they are measured
Never: waiting for the store during a lookup; a client's own words in a message

Lookups read memory only. Writing, deleting and refresh() block; call them from a thread.
"""

import hashlib
import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import Conflict, InvalidRequest, StoreUnavailable, UnknownVoice, VoiceExists
from pipeline.store.mirror import Mirror
from pipeline.store.ownership import OPERATOR, Share, Writer, owner_in
from pipeline.store.store import Store
from pipeline.types import Voice
from pipeline.voices.catalogue import DEFAULT, VoiceCatalogue, VoiceInfo
from pipeline.voices.records import StoredVoice, VoiceRecord, read_record, write_record
from pipeline.voices.strings import decode_embedding
from pipeline.voices.voice_names import (
    BLEND,
    INLINE,
    MAX_NAME_CHARS,
    is_id,
    is_mixture,
    join_blend,
    mixture_as_blend,
    split_blend,
    split_version,
)

VOICES = "voices"
PREVIEWS = "voice-previews"
SCORES = "voice-scores"
LOUDNESS = "voice-loudness"
MAX_VERSIONS = 100  # of one voice; every replica holds all of them in memory
MAX_BYTES_OF_OWNER = 32 << 20  # of the voices of one key, all versions and their previews

SHOWN_NAMES = 5


class VoiceLibrary:
    """Looks up voices in the catalogue and the store, and stores new ones."""

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
            store: None: nothing can be stored.
            allow_inline: True: emb:<string> is a voice.
        """
        self.catalogue = catalogue
        self.width = catalogue.width
        self._store = store
        self._max_voices = max_voices
        self._share = Share("voices", max(1, max_voices // 4), MAX_BYTES_OF_OWNER)
        self._allow_inline = allow_inline
        self._temporary: dict[str, Voice] = {}
        self._writing = threading.Lock()  # so that requests at once do not pass the limits together
        self._voices: Mirror[StoredVoice] | None = None
        self._scores: Mirror[float] | None = None
        if store is not None:
            self._voices = Mirror(store, VOICES, lambda key, version, value: read_record(key, version, value, width=self.width))
            self._scores = Mirror(store, SCORES, lambda key, version, value: float(json.loads(value)["stability"]))

    # -- looking up --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Voice:
        """Returns the voice of a name.

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
        if is_mixture(name) and not self.catalogue.has(name):
            return self.get(mixture_as_blend(name))
        try:
            return self.catalogue.get(name)
        except UnknownVoice:
            # The catalogue's message lists similar names for operators; a client's own words are not repeated to it.
            raise self._unknown() from None

    def canonical(self, name: str | None) -> str:
        """Returns the permanent name of a voice; for None that of the default voice.

        Raises:
            UnknownVoice, InvalidRequest
        """
        if name is None:
            return self.catalogue.get(DEFAULT).name
        if len(name) > MAX_NAME_CHARS or name in self._temporary:
            raise self._unknown()
        return self.get(name).name

    def find(self, name: str) -> StoredVoice | None:
        """Returns the stored voice of an id, an id@version or a title, also in another case; never one of the catalogue."""
        if self._voices is None:
            return None
        pinned = split_version(name)
        if pinned is not None:
            return self._voices.get(*pinned)
        if self.catalogue.has(name):
            return None
        stored = self._voices.get(name)
        if stored is None:
            newest, lowered = self._voices.newest().values(), name.lower()
            titled = [voice for voice in newest if voice.record.title == name]
            alike = titled or [voice for voice in newest if lowered in (voice.id.lower(), voice.record.title.lower())]
            stored = alike[0] if len(alike) == 1 else None
        return stored

    def _unknown(self, param: str = "voice") -> UnknownVoice:
        """Returns the error about a name, which it does not repeat: names of shipped voices stand in its place."""
        shown = [next(iter(info.aliases), info.name) for info in self.catalogue.list()][:SHOWN_NAMES]
        message = f"there is no voice of this name; there are {', '.join(shown)} and others, and seed:<number> is one"
        return UnknownVoice(message, param=param)

    def list(self) -> tuple[VoiceInfo, ...]:
        """Returns every named voice, the catalogue's first."""
        stored = [] if self._voices is None else self._voices.newest().values()
        return (*self.catalogue.list(), *(self.info(voice) for voice in stored))

    def info(self, voice: StoredVoice) -> VoiceInfo:
        """Returns the metadata of a stored voice, its stability included."""
        return voice.info(None if self._scores is None else self._scores.get(voice.name))

    @contextmanager
    def temporary(self, voice: Voice) -> Iterator[str]:
        """Yields a name for an unlisted voice, valid until the block ends; requests cannot use it."""
        name = f"temporary:{secrets.token_hex(16)}"
        self._temporary[name] = voice
        try:
            yield name
        finally:
            del self._temporary[name]

    def embedding_of(self, name: str) -> NDArray[np.float16]:
        """Returns the embedding (width,) behind a name.

        Raises:
            InvalidRequest: the voice has none.
        """
        embedding = self.get(name).embedding
        if embedding is None:
            raise InvalidRequest("this voice has no embedding: it is ChatTTS's own default or a recording", param="voice")
        return embedding

    # -- storing -----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Reads what other processes have written; returns True when something changed.

        Raises:
            StoreUnavailable: the voices already read stay usable.
        """
        if self._voices is None or self._scores is None:
            return False
        return self._voices.refresh() | self._scores.refresh()

    def check_new(self, voice_id: str, title: str, writer: Writer = OPERATOR) -> None:
        """Checks that a voice of this id and title can be added, before any work is done for it.

        Raises:
            InvalidRequest, VoiceExists, ShareUsedUp, StoreUnavailable
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
        if any(map(self.catalogue.has, names)) or any(
            voice.id in names or voice.record.title in names for voice in known.values()
        ):
            raise VoiceExists("there is a voice of this name; GET /v1/audio/voices lists them", param="name")
        if len(known) >= self._max_voices:
            raise VoiceExists(f"there are {len(known)} voices, the most that voices.max_voices allows; delete one first")
        self._share.check(writer, self._holdings(but=voice_id), 0)

    def add(self, voice_id: str, record: VoiceRecord, preview: bytes = b"", writer: Writer = OPERATOR) -> StoredVoice:
        """Stores a new voice, which belongs to its writer.

        Raises:
            VoiceExists, ShareUsedUp, StoreUnavailable, StoreFull
        """
        with self._writing:
            self.refresh()
            self.check_new(voice_id, record.title, writer)
            return self._put(voice_id, record.model_copy(update={"owner": writer.id}), preview, writer, replaces=0)

    def edit(self, stored: StoredVoice, record: VoiceRecord, preview: bytes = b"", writer: Writer = OPERATOR) -> StoredVoice:
        """Stores the next version of a voice; earlier versions stay.

        Raises:
            Conflict: `stored` is not the newest version.
            InvalidRequest: there are too many versions.
            NotTheOwner, ShareUsedUp, StoreUnavailable, StoreFull
        """
        writer.check(stored.record.owner)
        versions = len(self._versions(stored.id))
        if versions >= MAX_VERSIONS:
            raise InvalidRequest(f"this voice has {versions} versions; the limit is {MAX_VERSIONS}: create a new voice")
        with self._writing:
            return self._put(stored.id, record, preview, writer, replaces=stored.version)

    def delete(self, voice_id: str, writer: Writer = OPERATOR) -> None:
        """Removes a voice with all its versions, previews and scores. Requests that have begun are not affected.

        Raises:
            UnknownVoice, NotTheOwner, StoreUnavailable
        """
        store = self._writable()
        assert self._voices is not None
        if (newest := store.get(VOICES, voice_id)) is not None:
            writer.check(owner_in(newest[1]))
        if newest is None or not store.delete(VOICES, voice_id):
            raise self._unknown("id")
        for version in range(max(1, newest[0] - MAX_VERSIONS + 1), newest[0] + 1):
            store.delete(PREVIEWS, f"{voice_id}@{version}")
            store.delete(SCORES, f"{voice_id}@{version}")
        self.refresh()

    def preview(self, stored: StoredVoice) -> bytes | None:
        """Returns the preview stored with a version, None without one."""
        entry = self._writable().get(PREVIEWS, stored.name)
        return None if entry is None else entry[1]

    def keep_score(self, stored: StoredVoice, score: dict[str, float]) -> None:
        """Stores the stability of a version; a later score replaces an earlier one."""
        store = self._writable()
        newest = store.get(SCORES, stored.name)
        store.put(SCORES, stored.name, json.dumps(score).encode(), replaces=newest[0] if newest else 0, keeps=1)
        self.refresh()

    def loudness(self, name: str, checkpoint: str) -> float | None:
        """Returns how loud a shipped voice is as a checkpoint speaks it [LUFS]; None: not known."""
        try:
            entry = None if self._store is None else self._store.get(LOUDNESS, _loudness_key(name, checkpoint))
        except StoreUnavailable:
            return None
        return None if entry is None else float(json.loads(entry[1])["lufs"])

    def keep_loudness(self, name: str, checkpoint: str, lufs: float) -> None:
        """Keeps what was measured, if there is a store and it answers: whoever finds nothing measures the same again."""
        if self._store is None:
            return
        with suppress(Conflict, StoreUnavailable):
            value = json.dumps({"voice": name, "checkpoint": checkpoint, "lufs": lufs}).encode()
            self._store.put(LOUDNESS, _loudness_key(name, checkpoint), value, replaces=0, keeps=1)

    def _versions(self, voice_id: str) -> Mapping[int, StoredVoice]:
        """Returns the versions of a stored voice by their numbers, which need not begin at 1."""
        return {} if self._voices is None else self._voices.versions.get(voice_id, {})

    def _holdings(self, but: str) -> Iterator[tuple[str, int]]:
        """Yields owner and bytes of every stored voice but one, all its versions together."""
        assert self._voices is not None
        for voice_id, versions in self._voices.versions.items():
            if voice_id != but:
                yield versions[max(versions)].record.owner, sum(version.size for version in versions.values())

    def _put(self, voice_id: str, record: VoiceRecord, preview: bytes, writer: Writer, *, replaces: int) -> StoredVoice:
        store = self._writable()
        assert self._voices is not None
        value = write_record(record.model_copy(update={"preview_bytes": len(preview)}))
        own = sum(version.size for version in self._versions(voice_id).values())
        self._share.check(writer, self._holdings(but=voice_id), own + len(value) + len(preview))
        try:
            version = store.put(VOICES, voice_id, value, replaces=replaces, keeps=MAX_VERSIONS)
        except Conflict:
            if replaces:
                raise
            raise VoiceExists("there is a voice of this name; GET /v1/audio/voices lists them", param="name") from None
        if preview:
            try:
                store.put(PREVIEWS, f"{voice_id}@{version}", preview, replaces=0, keeps=1)
            except StoreUnavailable:
                if not replaces:  # a second attempt must not be refused because the voice exists
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

    # -- blends and inline embeddings --------------------------------------------------------------------------------

    def _inline(self, name: str) -> NDArray[np.float16]:
        if not self._allow_inline:
            raise InvalidRequest("inline embeddings are switched off (voices.inline); create a voice instead", param="voice")
        try:
            return decode_embedding(name.removeprefix(INLINE), self.width)
        except ValueError as error:
            raise InvalidRequest(f"the inline embedding cannot be read: {error}", param="voice") from None

    def _blend_parts(self, name: str) -> tuple[tuple[str, float], ...]:
        """Returns permanent names and summed weights, in the order of the names: a mixture has no order."""
        weights: dict[str, float] = {}
        for part, weight in split_blend(name):
            own = self.canonical(part)
            weights[own] = weights.get(own, 0.0) + weight
        return tuple(sorted(weights.items()))

    def _blend(self, parts: tuple[tuple[str, float], ...]) -> NDArray[np.float16]:
        return blend(tuple((self.embedding_of(name), weight) for name, weight in parts))


def _loudness_key(name: str, checkpoint: str) -> str:
    return hashlib.sha256(f"{checkpoint}\n{name}".encode()).hexdigest()[:32]


def blend(parts: tuple[tuple[NDArray[np.float16], float], ...]) -> NDArray[np.float16]:
    """Returns the weighted mean of embeddings (width,), computed in float64, rounded once.

    Raises:
        InvalidRequest: they cancel each other out.
    """
    total = sum(weight for _, weight in parts)
    mixed = sum((weight / total) * embedding.astype(np.float64) for embedding, weight in parts)
    embedding: NDArray[np.float16] = np.asarray(mixed).astype(np.float16)
    if not embedding.any():
        raise InvalidRequest("these embeddings cancel each other out: their mean is zero", param="voice")
    return embedding
