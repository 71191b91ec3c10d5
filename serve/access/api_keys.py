"""API keys: which keys exist and what each of them allows.

In:    the text a client sends as its key; a store with the records
Out:   Key: its id, which may be logged, its scopes, lanes and quota
Owns:  a copy of the records, refreshed from outside
Never: a key itself, in any record, log, message or tag

A key is `ck-<id>-<secret>`: the id is public and finds the record, the secret is 256 drawn bits. A record holds the secret's
SHA-256: no list of guesses reaches 256 random bits, so a slow hash and a salt would protect nothing, and every wrong key would
cost processor time that an attacker controls. Digests are compared in constant time, unknown ids too.
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.config import StrictModel
from pipeline.errors import StoreUnavailable
from pipeline.paths import cache_home
from pipeline.store.mirror import Mirror
from pipeline.store.store import Store
from pipeline.types import Lane
from serve.access.keys_marker import FORGET, KeysMarker, revoked_of

LOG = logging.getLogger("ray.serve.chattts")

NAMESPACE = "keys"
ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
ID_LENGTH = 10
SECRET_BYTES = 32
KEY_ID = re.compile(rf"[{ID_LETTERS}]{{{ID_LENGTH}}}")
KEY = re.compile(rf"ck-({KEY_ID.pattern})-([A-Za-z0-9_-]{{43}})")
LOST = (
    "this service has had keys, and their store holds none: it was lost, emptied, or its last key was revoked. Restore the "
    f"store or create a key (chattts-serve keys add NAME); {FORGET} opens the service to its own machine again"
)
UNMARKED = "if the store of the keys is lost, nothing remembers that there were keys; keys.open: false does not depend on it"


class Scope(StrEnum):
    """What a key may do. Listing models and voices needs a key, but no particular scope."""

    SPEECH = "speech"
    """synthesise and refine texts: everything that costs decode steps"""
    VOICES = "voices"
    """create, edit, delete, preview and score voices"""
    TEXT = "text"
    """normalise and plan texts, store lexicons"""
    ADMIN = "admin"
    """everything under /admin"""


class Quota(StrictModel):
    """Limits of one key; null is no limit."""

    requests_per_s: float | None = Field(10.0, gt=0, le=10_000, description="requests per second, on average")
    burst: int = Field(20, ge=1, le=100_000, description="requests at once after a pause")
    streams: int | None = Field(8, ge=1, le=100_000, description="concurrent requests that use the model")
    characters_a_day: int | None = Field(100_000, ge=1, description="characters per day (UTC)")
    characters_a_request: int | None = Field(None, ge=1, description="characters of one text; a job is one")
    audio_s_a_minute: float | None = Field(None, gt=0, description="seconds of audio per minute, counted as they are generated")


class KeyRecord(StrictModel):
    """What the store holds about a key."""

    name: str = Field(min_length=1, max_length=100, description="for people")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the secret")
    created: str
    scopes: tuple[Scope, ...] = (Scope.SPEECH, Scope.VOICES, Scope.TEXT)
    lanes: tuple[Lane, ...] = Field(tuple(Lane), min_length=1)
    quota: Quota = Quota()


@dataclass(frozen=True, slots=True)
class Key:
    """A key from the store."""

    id: str
    """stable, no secret: for logs, errors, shares and cache tenants"""
    record: KeyRecord


def make_key(name: str, scopes: tuple[Scope, ...], lanes: tuple[Lane, ...], quota: Quota) -> tuple[str, str, KeyRecord]:
    """Draws a new key. Returns the key, which is shown once; its id; its record."""
    key_id = "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    record = KeyRecord(name=name, sha256=_digest(secret), created=created, scopes=scopes, lanes=lanes, quota=quota)
    return f"ck-{key_id}-{secret}", key_id, record


def read_record(key: str, version: int, value: bytes) -> KeyRecord:
    """Parses a record for a Mirror.

    Raises:
        ValueError: the bytes are no record.
    """
    try:
        return KeyRecord.model_validate_json(value)
    except ValidationError:
        raise ValueError(f"the record of key {key} is not one of this release") from None


class KeyRing:
    """All keys, in memory."""

    def __init__(self, store: Store, mark: KeysMarker | None = None, *, home: Path | None = None) -> None:
        """
        Args:
            mark: records that there have been keys; None: nothing does.
            home: where the revoked keys of a Redis store are remembered; None: in the cache folder.
        """
        self.store = store
        self._revoked = revoked_of(store, home or cache_home())
        self._mirror = Mirror(store, NAMESPACE, read_record)
        self._mark = mark
        self._known = False
        self._back: frozenset[str] = frozenset()  # revoked keys that an older state of the store has brought back
        self._can_mark = True
        self._watchers: dict[object, tuple[str, Callable[[], object]]] = {}
        self.are_lost = False
        """True if there have been keys and the store holds none: it was emptied or replaced"""

    def refresh(self) -> None:
        """Takes over what has changed, all at once.

        Raises:
            StoreUnavailable: the keys stay what they were.
        """
        before = self._mirror.keys
        if self._mirror.refresh() or self._back or not self._known:
            self._keep_revoked(before)
        were_lost = self.are_lost
        self.are_lost = self.is_empty and self._mark is not None and self._mark.is_set
        if self.are_lost and not were_lost:
            LOG.error("keys: %s: %s", self.store.place, LOST)
        if not self.is_empty:
            self._remember()
        self._known = True
        for key_id, notify in list(self._watchers.values()):
            if self._mirror.get(key_id) is None:
                notify()

    def watch(self, key_id: str, notify: Callable[[], object]) -> Callable[[], object]:
        """Calls a function at each refresh behind which the key is none, in the thread of that. Returns what ends it."""
        watcher = object()
        self._watchers[watcher] = (key_id, notify)
        return lambda: self._watchers.pop(watcher, None)

    @property
    def is_known(self) -> bool:
        """True once the records have been read: before that, it is not known whether there is a key."""
        return self._known

    @property
    def is_empty(self) -> bool:
        """True if there is no key. A record that cannot be read counts as one: a broken record must not grant access."""
        return self._mirror.is_empty

    def named(self, key_id: str) -> Key | None:
        """Returns the key with this id; None if there is none."""
        record = self._record(key_id)
        return None if record is None else Key(key_id, record)

    def find(self, claimed: str) -> Key | None:
        """Returns the key with this text; None if there is none."""
        parts = KEY.fullmatch(claimed)
        key_id, secret = parts.groups() if parts else ("", "")
        record = self._record(key_id)
        expected = "0" * 64 if record is None else record.sha256
        if not hmac.compare_digest(_digest(secret), expected) or record is None:
            return None
        return Key(key_id, record)

    def _record(self, key_id: str) -> KeyRecord | None:
        return None if key_id in self._back else self._mirror.get(key_id)

    def _keep_revoked(self, before: frozenset[str]) -> None:
        """Remembers which keys are gone, unless the store was set back, and deletes those that came back with an older state.

        Args:
            before: ids before this refresh.
        """
        present = self._mirror.keys
        if not self._mirror.was_set_back:
            self._revoked.add(before - present)
        back, self._back = self._back, present & self._revoked.ids()
        for key_id in sorted(self._back - back):
            LOG.error(
                "keys: %s: an older state of the store has brought back the revoked key %s: refused", self.store.place, key_id
            )
        with suppress(StoreUnavailable):  # they are refused all the same, and the next refresh tries again
            for key_id in self._back:
                self.store.delete(NAMESPACE, key_id)

    def _remember(self) -> None:
        if self._mark is None or not self._can_mark:
            return
        try:
            self._mark.set()
        except OSError as error:
            self._can_mark = False  # logged once
            LOG.warning("keys: %s cannot be written (%s): %s", self._mark.path, error.strerror, UNMARKED)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
