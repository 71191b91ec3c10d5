"""Redis scripts: the changes and questions of the store, each of which Redis runs completely or not at all.

In:    KEYS of a namespace: meta, heads, values, log; ARGV as each script says
Out:   a list whose first number is 1, or one of the codes below
Owns:  the layout of a namespace
Never: a command that Redis 6.2 does not have; more work in one call than a page

A namespace is four keys: meta {epoch, revision, heads, values, bytes, swept, floor, r:<slot> -> "revision nonce"}, heads
{key -> "version live first"}, values {key@version -> bytes}, log: keys by the revision of their last change. meta counts what
the others hold, so that it is seen when Redis has evicted one of them; the nonces of the latest revisions tell a revision from
its namesake in a store that was set back. Deleted keys are forgotten up to the revision `swept`; `floor` is the newest of their
versions.
"""

from pipeline.store.store import FORGOTTEN_AT_ONCE, REVISIONS_KEPT

NOTHING, DONE, GONE, NO_ROOM = 0, 1, -1, -2
"""first numbers of an answer: there is nothing to change or return; done; records were evicted; the namespace is full"""

# What meta counts is true if the latest revision has its nonce: another release, which writes none, may have written since.
CHECK = f"""
local epoch = redis.call('HGET', KEYS[1], 'epoch')
local newest_revision = tonumber(redis.call('HGET', KEYS[1], 'revision') or '0')
local function nonce_of(revision)
  local noted = redis.call('HGET', KEYS[1], 'r:' .. revision % {REVISIONS_KEPT}) or ''
  local of, nonce = string.match(noted, '^(%d+) (.*)$')
  return of == string.format('%d', revision) and nonce or ''
end
local is_counted = nonce_of(newest_revision) ~= ''
local heads, values = redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3])
local counts = redis.call('HMGET', KEYS[1], 'heads', 'values', 'bytes')
if redis.call('ZCARD', KEYS[4]) ~= heads or (not epoch and heads + values > 0)
  or (is_counted and (tonumber(counts[1]) ~= heads or tonumber(counts[2]) ~= values)) then return {{{GONE}}} end
local function head_of(key)
  local head = redis.call('HGET', KEYS[2], key)
  if not head then return 0, false, 0 end
  local version, live, first = string.match(head, '^(%d+) (%d) (%d+)$')
  return tonumber(version), live == '1', tonumber(first)
end
"""
# ARGV of the two that change: key, epoch if there is none, nonce.
CHANGE = (
    CHECK
    + f"""
local function bytes_of(key, first, last)
  local sum = 0
  for each = first, last do sum = sum + redis.call('HSTRLEN', KEYS[3], key .. '@' .. each) end
  return sum
end
local function all_bytes()
  if is_counted then return tonumber(counts[3]) end
  local sum = 0
  for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do sum = sum + redis.call('HSTRLEN', KEYS[3], field) end
  return sum
end
local function remove(key, first, last)
  for each = first, last do redis.call('HDEL', KEYS[3], key .. '@' .. each) end
end
local function forget_deleted(newest)
  local swept, floor = redis.call('HGET', KEYS[1], 'swept') or '0', tonumber(redis.call('HGET', KEYS[1], 'floor') or '0')
  local old = redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. swept, newest - {REVISIONS_KEPT}, 'WITHSCORES', 'LIMIT', 0,
    {FORGOTTEN_AT_ONCE})
  for each = 1, #old, 2 do
    local version, live = head_of(old[each])
    if not live then
      floor = math.max(floor, version)
      redis.call('HDEL', KEYS[2], old[each])
      redis.call('ZREM', KEYS[4], old[each])
    end
    swept = old[each + 1]
  end
  if #old > 0 then redis.call('HSET', KEYS[1], 'swept', swept, 'floor', string.format('%d', floor)) end
end
local function changed(key, version, live, first, bytes)
  redis.call('HSETNX', KEYS[1], 'epoch', ARGV[2])
  local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
  redis.call('HSET', KEYS[2], key, string.format('%d %d %d', version, live, first))
  redis.call('ZADD', KEYS[4], revision, key)
  forget_deleted(revision)
  redis.call('HSET', KEYS[1], 'r:' .. revision % {REVISIONS_KEPT}, string.format('%d ', revision) .. ARGV[3],
    'heads', redis.call('HLEN', KEYS[2]), 'values', redis.call('HLEN', KEYS[3]), 'bytes', bytes)
end
"""
)
# More ARGV: value, the version it replaces, how many stay, most bytes of the namespace. Returns the new version, or the newest.
PUT = (
    CHANGE
    + """
local version, live, first = head_of(ARGV[1])
if version == 0 then version = tonumber(redis.call('HGET', KEYS[1], 'floor') or '0') end
local newest = live and version or 0
if newest ~= tonumber(ARGV[5]) then return {0, newest} end
version = version + 1
if newest == 0 then first = version end
local kept = math.max(first, version - ARGV[6] + 1)
local freed = bytes_of(ARGV[1], first, kept - 1)
local bytes = all_bytes() - freed + #ARGV[4]
if #ARGV[4] > freed and bytes > tonumber(ARGV[7]) then return {-2} end
remove(ARGV[1], first, kept - 1)
redis.call('HSET', KEYS[3], ARGV[1] .. '@' .. version, ARGV[4])
changed(ARGV[1], version, 1, kept, bytes)
return {1, version}
"""
)
DELETE = (
    CHANGE
    + """
local version, live, first = head_of(ARGV[1])
if not live then return {0} end
local bytes = all_bytes() - bytes_of(ARGV[1], first, version)
remove(ARGV[1], first, version)
changed(ARGV[1], version, 0, first, bytes)
return {1}
"""
)
# ARGV: key. Returns the newest version and its value.
GET = (
    CHECK
    + """
local version, live = head_of(ARGV[1])
if not live then return {0} end
local value = redis.call('HGET', KEYS[3], ARGV[1] .. '@' .. version)
if not value then return {-1} end
return {1, version, value}
"""
)
# ARGV: epoch, revision and nonce of a position; the revision after which to read; revision and version at which a key goes on;
# the revision up to which deleted keys are left out; bytes and keys of a page.
# Returns epoch, newest revision and its nonce; 0: the position is of this store, 1: it is too old to tell, 2: the store was set
# back or emptied, and for both this is the first page of everything; where the next page goes on (-1: nowhere); entries.
PAGE = (
    CHECK
    + """
epoch = epoch or ''
local newest, revision, state = newest_revision, tonumber(ARGV[2]), 0
if ARGV[1] == '' then state = 1
elseif ARGV[1] ~= epoch or revision > newest then state = 2
elseif nonce_of(revision) ~= ARGV[3] then state = (revision == newest or nonce_of(revision) ~= '') and 2 or 1
elseif revision < tonumber(redis.call('HGET', KEYS[1], 'swept') or '0') then state = 1 end
local after, part, from, hidden = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
if state > 0 then after, part, hidden = 0, '', newest end
local room, entries = tonumber(ARGV[8]), {}
local function page(next_after, next_part, next_from)
  return {1, epoch, newest, nonce_of(newest), state, next_after, next_part, next_from, entries}
end
local found = redis.call('ZRANGEBYSCORE', KEYS[4], string.format('(%d', after), '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[9])
for each = 1, #found, 2 do
  local key, score = found[each], found[each + 1]
  local version, live, first = head_of(key)
  if live or tonumber(score) > hidden then
    local entry = {key, score}
    entries[#entries + 1] = entry
    for number = live and math.max(first, score == part and from or 0) or version + 1, version do
      if room <= 0 then return page(after, score, number) end
      local value = redis.call('HGET', KEYS[3], key .. '@' .. number)
      if not value then return {-1} end
      entry[#entry + 1] = number
      entry[#entry + 1] = value
      room = room - #value
    end
  end
  room = room - #key
  after = tonumber(score)
end
return page(#found < 2 * tonumber(ARGV[9]) and -1 or after, '', 0)
"""
)
# KEYS: any. Changes nothing that is read: it fails where writes do.
PROBE = "return redis.call('SET', KEYS[1], '1', 'EX', 60)"
