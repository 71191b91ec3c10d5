"""Quota scripts: what one key has used, in Redis, changed by scripts that run atomically and by Redis' own clock.

In:    KEYS of one API key; ARGV as each script says
Out:   decisions and sums
Owns:  the layout of a key's numbers
Never: a command that Redis 6.2 does not have; a count that begins anew because Redis lost it: each caller says what it knows

Characters of a day are two sums that only grow, charged and refunded, so the larger of two copies of each is the newer one. A
charge has a token, kept for TOLD_S: a charge whose answer was lost is told again and counts once.
"""

TOLD_S = 900
"""how long a token is remembered [s]"""

NUMBERS = ("clock", "rate", "audio", "streams", "characters", "told", "reserved")
# KEYS of one key, the same for all scripts: see NUMBERS. Redis' clock is the time of day and may be set back: everything due
# is then moved back as well, or a key would wait for the old time to come again.
NOW = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local back = tonumber(redis.call('GET', KEYS[1]) or '0') - now
if back > 0 then
  for each = 2, 3 do
    local due = redis.call('GET', KEYS[each])
    if due then redis.call('SET', KEYS[each], string.format('%.6f', due - back), 'KEEPTTL') end
  end
  for _, leases in ipairs({KEYS[4], KEYS[7]}) do
    for _, lease in ipairs(redis.call('ZRANGE', leases, 0, -1)) do redis.call('ZINCRBY', leases, -back, lease) end
  end
end
redis.call('SET', KEYS[1], string.format('%.6f', now), 'EX', 2592000)
"""
AUDIO = """
local function audio_due(known_ahead, more)
  local stored = tonumber(redis.call('GET', KEYS[3]) or '0')
  local due = math.max(stored, now + known_ahead)
  if more > 0 then due = math.max(due, now) + more end
  if due > now and due > stored + 0.01 then
    redis.call('SET', KEYS[3], string.format('%.6f', due), 'PX', math.ceil((due - now) * 1000) + 1000)
  end
  return due
end
"""
# ARGV: what the caller knows of the day: day, charged, refunded.
TODAY = """
local clock = redis.call('TIME')
local today = math.floor(clock[1] / 86400)
local used = redis.call('HMGET', KEYS[5], 'day', 'characters', 'refunded')
local is_today = used[1] == tostring(today)
local charged, refunded = is_today and tonumber(used[2]) or 0, is_today and tonumber(used[3] or '0') or 0
if ARGV[1] == tostring(today) then
  charged, refunded = math.max(charged, tonumber(ARGV[2])), math.max(refunded, tonumber(ARGV[3]))
end
local function write()
  redis.call('HSET', KEYS[5], 'day', today, 'characters', charged, 'refunded', refunded)
  redis.call('PERSIST', KEYS[5])
end
"""
FORGET = f"""
redis.call('EXPIRE', KEYS[6], {TOLD_S})
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', clock[1] - {TOLD_S})
"""
# ARGV: seconds per request (0: no rate), burst, whether audio is limited, streams (0: no limit), permit ('': none), lease, how
# far audio is ahead as the caller knows it.
ENTER = (
    NOW
    + AUDIO
    + """
local step, burst, streams = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local due, ahead, remaining, audio = now, 0, -1, 0
if step > 0 then
  due = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), now)
  ahead = due - now
  local room = step * burst - ahead
  if room < step * (1 - 1e-6) then return {'rate_limited', tostring(step - room), 0, tostring(ahead), '0'} end
  remaining = math.floor(room / step + 1e-6) - 1
end
if ARGV[3] == '1' then
  audio = audio_due(tonumber(ARGV[7]), 0) - now
  if audio >= 60 then return {'quota_exceeded', tostring(audio - 60), remaining, tostring(ahead), tostring(audio)} end
end
if ARGV[5] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  if streams > 0 and redis.call('ZCARD', KEYS[4]) >= streams then
    return {'too_many_concurrent_requests', '0', remaining, tostring(ahead), '0'}
  end
  redis.call('ZADD', KEYS[4], string.format('%.6f', now + ARGV[6]), ARGV[5])
  redis.call('PEXPIRE', KEYS[4], math.ceil(ARGV[6] * 2000))
end
if step > 0 then
  redis.call('SET', KEYS[2], string.format('%.6f', due + step), 'PX', math.ceil((ahead + step) * 1000) + 1000)
end
return {'', '0', remaining, tostring(ahead + step), tostring(audio)}
"""
)
# ARGV: how far audio is ahead as the caller knows it, and by how much more as it has not told yet; a reservation, as
# token:seconds that it will move the audio's number on; how long it counts if its process dies.
RESERVE = (
    NOW
    + AUDIO
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', now)
local ahead = math.max(0, audio_due(tonumber(ARGV[1]), 0) - now)
local over = ahead + ARGV[2] - 60
for _, reservation in ipairs(redis.call('ZRANGE', KEYS[7], 0, -1)) do over = over + string.match(reservation, ':(.*)$') end
if over < 0 then
  redis.call('ZADD', KEYS[7], string.format('%.6f', now + ARGV[4]), ARGV[3])
  redis.call('PEXPIRE', KEYS[7], math.ceil(ARGV[4] * 2000))
end
return {tostring(over), tostring(ahead)}
"""
)
# More ARGV: characters, limit, token.
WRITE = (
    TODAY
    + """
if redis.call('ZSCORE', KEYS[6], ARGV[6]) then return {'', '0', today, charged, refunded} end -- overtaken by its report
if charged - refunded + ARGV[4] > tonumber(ARGV[5]) then
  if charged > 0 then write() end
  return {'quota_exceeded', tostring(86400 - clock[1] % 86400), today, charged, refunded}
end
charged = charged + ARGV[4]
write()
redis.call('ZADD', KEYS[6], clock[1], ARGV[6])
"""
    + FORGET
    + "return {'', '0', today, charged, refunded}"
)
READ = TODAY + "return {today, charged, refunded}"
# More ARGV: lease, token of the audio, seconds the audio's number moves on, how far it is ahead as the caller knows it; how
# many charges follow, for each its token, day and characters, below 0 for a refund; permits.
REPORT = (
    TODAY
    + NOW.replace("local clock = redis.call('TIME')\n", "")
    + AUDIO
    + """
local function is_new(token) return redis.call('ZADD', KEYS[6], 'NX', clock[1], token) == 1 end
local moved = tonumber(ARGV[6])
local due = audio_due(tonumber(ARGV[7]), moved > 0 and is_new(ARGV[5]) and moved or 0)
local last = 8 + 3 * ARGV[8]
for each = 9, last, 3 do
  if is_new(ARGV[each]) and ARGV[each + 1] == tostring(today) then
    local characters = tonumber(ARGV[each + 2])
    charged = charged + math.max(characters, 0)
    refunded = math.min(charged, refunded + math.max(-characters, 0))
  end
end
if charged > 0 then write() end
for each = last + 1, #ARGV do redis.call('ZADD', KEYS[4], string.format('%.6f', now + ARGV[4]), ARGV[each]) end
if #ARGV > last then redis.call('PEXPIRE', KEYS[4], math.ceil(ARGV[4] * 2000)) end
"""
    + FORGET
    + "return {tostring(math.max(0, due - now)), today, charged, refunded}"
)
# KEYS: one of its own. ARGV: a drawn name. Returns the name of this content of Redis: another one means that it lost all.
BORN = "redis.call('SET', KEYS[1], ARGV[1], 'NX') return redis.call('GET', KEYS[1])"
