"""Redis store: a store that every process on every node can read.

In:    keys and bytes, as store.py defines them
Out:   versions and changes
Owns:  a connection pool
Never: waiting longer than its time limits; trying a write twice; a page of more than PAGE_BYTES and one value

Redis keeps what its own persistence keeps: run it with `appendonly yes` and `maxmemory-policy noeviction`, from release 6.2 on.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.errors import StoreFull, StoreUnavailable
from pipeline.store import redis_scripts
from pipeline.store.breaker import Breaker, Open
from pipeline.store.redis_link import SILENCE, Trouble, connect, failures, trouble_of
from pipeline.store.redis_url import check_redis_url, url_without_password
from pipeline.store.store import (
    MAX_NAMESPACE_BYTES,
    START,
    Changes,
    Entry,
    check_address,
    check_value,
    conflict,
    namespace_full,
    note_set_back,
)

CONNECT_TIMEOUT_S = 0.5
ANSWER_TIMEOUT_S = 2.0
PAGE_BYTES = 256 << 10
PAGE_KEYS = 1000
PREFIX = "chattts"

FULL = (
    "the store has no room left (Redis: maxmemory); nothing was changed. Delete voices or lexicons, or give Redis more memory"
)
EVICTED = (
    "records of the store are gone: Redis has evicted or lost a part of the {}. Set its maxmemory-policy to noeviction and "
    "restore the store from a backup"
)
Script = Callable[[list[str], list[Any]], Any]


class RedisStore:
    """store.Store over Redis. It connects at the first call, so Redis may start later."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            ConfigError: no client can open this URL.
        """
        self.place = url_without_password(check_redis_url(url))
        self.set_back: dict[str, str] = {}
        self._is_closed = False
        self._redis = connect(url, connect_timeout_s=CONNECT_TIMEOUT_S, answer_timeout_s=ANSWER_TIMEOUT_S)
        self._breaker = Breaker()
        self._put = self._redis.register_script(redis_scripts.PUT)
        self._delete = self._redis.register_script(redis_scripts.DELETE)
        self._get = self._redis.register_script(redis_scripts.GET)
        self._page = self._redis.register_script(redis_scripts.PAGE)
        self._probe = self._redis.register_script(redis_scripts.PROBE)

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int) -> int:
        """Writes the next version of a key; raises as store.Store says."""
        check_address(namespace, key)
        check_value(value)
        more = [value, replaces, keeps, MAX_NAMESPACE_BYTES]
        done, *version = self._run(self._put, namespace, [key, *_drawn(), *more], is_write=True)
        if done == redis_scripts.NO_ROOM:
            raise StoreFull(namespace_full(namespace), place=self.place)
        if done == redis_scripts.NOTHING:
            raise conflict(int(version[0]), replaces)
        return int(version[0])

    def delete(self, namespace: str, key: str) -> bool:
        """Removes a key and all its versions; returns False when it is not there."""
        check_address(namespace, key)
        (done,) = self._run(self._delete, namespace, [key, *_drawn()], is_write=True)
        return bool(done)

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """Returns the newest version and its value; None when the key is not there."""
        check_address(namespace, key)
        done, *entry = self._run(self._get, namespace, [key])
        return (int(entry[0]), bytes(entry[1])) if done else None

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Returns every key that changed since a position, read page by page; each as it was at one moment of the call."""
        epoch, revision, nonce = [*since.split(":"), "", ""][:3]
        where: list[Any] = [revision or 0, "", 0]
        hidden, is_whole, is_set_back = 0, False, False
        by_key: dict[str, dict[int, bytes]] = {}
        while where[0] != -1:
            values = [epoch, revision or 0, nonce, *where, hidden, PAGE_BYTES, PAGE_KEYS]
            _, *answer, entries = self._run(self._page, namespace, values)
            epoch, nonce = answer[0].decode(), answer[2].decode()
            revision, state, goes_on_with = answer[1], answer[3], where[1]
            if state:
                by_key.clear()
                hidden, is_whole, is_set_back = revision, True, is_set_back or state > 1
            for name, score, *versions in entries:
                key = name.decode()
                if score != goes_on_with or state:
                    by_key.pop(key, None)
                by_key.setdefault(key, {}).update(_pairs(versions))
            where = list(answer[4:])
        if is_set_back:
            note_set_back(self, namespace)
        keys = tuple(Entry(key, tuple(versions.items())) for key, versions in by_key.items() if versions or not is_whole)
        return Changes(f"{epoch}:{revision}:{nonce}", keys, is_whole=is_whole, is_set_back=is_set_back)

    def probe(self) -> None:
        """Writes something that nobody reads; raises as store.Store says."""
        self._run(self._probe, "probe", [])

    def close(self) -> None:
        """Closes the connections; a question that is still under way closes its own when it ends."""
        self._is_closed = True
        self._redis.close()

    def _run(self, script: Script, namespace: str, values: list[Any], *, is_write: bool = False) -> Any:
        try:
            with self._breaker.question():
                answer = self._answer(script, namespace, values, is_write=is_write)
        except Open:
            raise StoreUnavailable(f"the store {SILENCE}; try again", place=self.place) from None
        finally:
            if self._is_closed:
                self._redis.close()
        if isinstance(answer, list) and answer[0] == redis_scripts.GONE:
            raise StoreUnavailable(EVICTED.format(namespace), place=self.place)
        return answer

    def _answer(self, script: Script, namespace: str, values: list[Any], *, is_write: bool) -> Any:
        try:
            answer = script(_keys(namespace), values)
        except failures() as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            if trouble.is_refusal:
                self._breaker.answered()
            else:
                self._breaker.failed()
            raise self._unavailable(trouble, is_write=is_write) from error
        self._breaker.answered()
        return answer

    def _unavailable(self, trouble: Trouble, *, is_write: bool) -> StoreUnavailable:
        if trouble.is_full:
            return StoreFull(FULL, place=self.place)
        if trouble.is_refusal:
            return StoreUnavailable(f"the store {trouble.reason}; nothing was changed", place=self.place)
        return StoreUnavailable(
            f"the store {trouble.reason}; try again", place=self.place, outcome_unknown=is_write and trouble.was_sent
        )


def _drawn() -> list[Any]:
    """Returns the epoch of a store that has none yet, and the nonce of this change."""
    return [secrets.token_hex(8), secrets.token_hex(8)]


def _keys(namespace: str) -> list[str]:
    return [f"{{{PREFIX}:{namespace}}}:{part}" for part in ("meta", "heads", "values", "log")]


def _pairs(flat: list[Any]) -> Iterator[tuple[int, bytes]]:
    for version, value in zip(flat[::2], flat[1::2], strict=True):
        yield int(version), bytes(value)
