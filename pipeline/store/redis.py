"""Redis store: a store that every process on every node can read.

In:    keys and bytes, as store.py defines them
Out:   versions and changes
Owns:  a connection pool
Never: waiting longer than its time limits; trying a write twice

Each change is one script, which Redis runs completely or not at all. Redis keeps what its own persistence keeps: run it with
`appendonly yes`.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import Conflict, StoreFull, StoreUnavailable
from pipeline.store.redis_link import connect, failures, out_of_memory, url_without_password
from pipeline.store.store import START, Changes, Entry, check_address, check_value

CONNECT_TIMEOUT_S = 0.5
ANSWER_TIMEOUT_S = 2.0
PREFIX = "chattts"

FULL = (
    "the store has no room left (Redis: maxmemory); nothing was changed. Delete voices or lexicons, or give Redis more memory"
)

# A namespace is four keys (in one slot of a cluster, by the braces): meta {epoch, revision}, heads {key -> "version live
# first"}, values {key@version -> bytes}, log: keys by the revision of their last change.
PUT = """
local head = redis.call('HGET', KEYS[2], ARGV[1])
local version, live, first = 0, 0, 0
if head then version, live, first = string.match(head, '^(%d+) (%d) (%d+)$') end
local newest = tonumber(live) == 1 and tonumber(version) or 0
if newest ~= tonumber(ARGV[3]) then return {0, newest} end
version = tonumber(version) + 1
if newest == 0 then first = version end
local oldest = version - ARGV[5] + 1
for each = first, oldest - 1 do redis.call('HDEL', KEYS[3], ARGV[1] .. '@' .. each) end
first = math.max(first, oldest)
redis.call('HSETNX', KEYS[1], 'epoch', ARGV[4])
local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
redis.call('HSET', KEYS[3], ARGV[1] .. '@' .. version, ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], string.format('%d 1 %d', version, first))
redis.call('ZADD', KEYS[4], revision, ARGV[1])
return {1, version}
"""
DELETE = """
local head = redis.call('HGET', KEYS[2], ARGV[1])
if not head then return 0 end
local version, live, first = string.match(head, '^(%d+) (%d) (%d+)$')
if live ~= '1' then return 0 end
for each = tonumber(first), tonumber(version) do redis.call('HDEL', KEYS[3], ARGV[1] .. '@' .. each) end
local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
redis.call('HSET', KEYS[2], ARGV[1], string.format('%d 0 %d', version, first))
redis.call('ZADD', KEYS[4], revision, ARGV[1])
return 1
"""
CHANGES = """
local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''
local newest = tonumber(redis.call('HGET', KEYS[1], 'revision') or '0')
local since, whole = tonumber(ARGV[2]), 0
if ARGV[1] ~= epoch or epoch == '' or since > newest then since, whole = 0, 1 end
local entries = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. since, '+inf')) do
  local version, live, first = string.match(redis.call('HGET', KEYS[2], key), '^(%d+) (%d) (%d+)$')
  local entry = {key}
  if live == '1' then
    for each = tonumber(first), tonumber(version) do
      entry[#entry + 1] = each
      entry[#entry + 1] = redis.call('HGET', KEYS[3], key .. '@' .. each)
    end
  end
  if live == '1' or whole == 0 then entries[#entries + 1] = entry end
end
return {epoch, newest, whole, entries}
"""
GET = """
local head = redis.call('HGET', KEYS[2], ARGV[1])
if not head then return {0} end
local version, live = string.match(head, '^(%d+) (%d)')
if live ~= '1' then return {0} end
return {tonumber(version), redis.call('HGET', KEYS[3], ARGV[1] .. '@' .. version)}
"""


class RedisStore:
    """store.Store over Redis. It connects at the first call, so Redis may start later."""

    def __init__(self, url: str) -> None:
        self.place = url_without_password(url)
        self._redis = connect(url, connect_timeout_s=CONNECT_TIMEOUT_S, answer_timeout_s=ANSWER_TIMEOUT_S)
        self._put = self._redis.register_script(PUT)
        self._delete = self._redis.register_script(DELETE)
        self._changes = self._redis.register_script(CHANGES)
        self._get = self._redis.register_script(GET)

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int) -> int:
        """Writes the next version of a key; raises as store.Store says."""
        check_address(namespace, key)
        check_value(value)
        with self._readable_errors():
            done, version = self._put(_keys(namespace), [key, value, replaces, secrets.token_hex(8), keeps])
        if not done:
            raise Conflict(f"version {version} is the newest there is, not {replaces}; read it again and repeat the change")
        return int(version)

    def delete(self, namespace: str, key: str) -> bool:
        """Removes a key and all its versions; returns False when it is not there."""
        check_address(namespace, key)
        with self._readable_errors():
            return bool(self._delete(_keys(namespace), [key]))

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """Returns the newest version and its value; None when the key is not there."""
        check_address(namespace, key)
        with self._readable_errors():
            version, *value = self._get(_keys(namespace), [key])
        return (int(version), bytes(value[0])) if version else None

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Returns every key that changed since a position, in one consistent view."""
        epoch, _, revision = since.partition(":")
        with self._readable_errors():
            own_epoch, newest, whole, found = self._changes(_keys(namespace), [epoch, revision or 0])
        entries = tuple(Entry(key.decode(), tuple(_pairs(versions))) for key, *versions in found)
        return Changes(f"{own_epoch.decode()}:{newest}", entries, is_whole=bool(whole))

    def close(self) -> None:
        """Closes the connections."""
        self._redis.close()

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        try:
            yield
        except out_of_memory() as error:
            raise StoreFull(FULL, place=self.place) from error
        except failures() as error:
            raise StoreUnavailable(
                f"the store does not answer ({type(error).__name__}); try again", place=self.place
            ) from error


def _keys(namespace: str) -> list[str]:
    return [f"{{{PREFIX}:{namespace}}}:{part}" for part in ("meta", "heads", "values", "log")]


def _pairs(flat: list[Any]) -> Iterator[tuple[int, bytes]]:
    for version, value in zip(flat[::2], flat[1::2], strict=True):
        yield int(version), bytes(value)
