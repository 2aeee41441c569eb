"""What Redis does in one step, as Lua that runs on Redis 7.0 and its relatives. Redis's own clock decides.

A stream and its group hold the messages. Beside them stand a sorted set of moments (`moments`: when a delivery's time
is over, or a rejected one is due again), a hash of who holds what (`holders`: token, number of tries, key) and for each
key a list of what is not settled (`holders:line:<key>`). Redis's own idle times know neither delays nor leases of
different lengths, and its groups know no keys. What was set aside stands in no line any more (`aside:<id>`).

What stands in the line behind an event that somebody else has, or that waits for its time, is given to nobody: it has
no moment until all before it are settled. Else a consumer that is started again after a crash would be given the new
events of a key, while the old ones wait for the lease of the dead to run out.
"""

from __future__ import annotations

# KEYS: stream. ARGV: milliseconds to retain, then key and body of each message (an empty key: none).
PUBLISH = """
local now = redis.call('TIME')
local oldest = now[1] * 1000 - tonumber(ARGV[1])
local failed, results = {}, {}
for place = 2, #ARGV, 2 do
  local key = ARGV[place]
  if key ~= '' and failed[key] then
    results[#results + 1] = 'held'
  else
    local done = redis.pcall('XADD', KEYS[1], 'MINID', '~', string.format('%.0f', oldest), '*',
      'key', key, 'event', ARGV[place + 1])
    if type(done) == 'table' and done.err then
      failed[key] = true
      results[#results + 1] = done.err
    else
      results[#results + 1] = 'ok'
    end
  end
end
return results
"""

_SETTLED = """
local lines = KEYS[3] .. ':line:'
local function out_of_line(id, now)
  local key = redis.call('HGET', KEYS[3], 'key:' .. id)
  if not key then return end
  redis.call('HDEL', KEYS[3], 'key:' .. id)
  redis.call('LREM', lines .. key, 1, id)
  local front = redis.call('LINDEX', lines .. key, 0)
  if front and not redis.call('ZSCORE', KEYS[2], front) then redis.call('ZADD', KEYS[2], now, front) end
end
local function settled(group, id, now)
  redis.call('XACK', KEYS[1], group, id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], 'token:' .. id, 'tries:' .. id, 'aside:' .. id)
  out_of_line(id, now)
end
"""

# KEYS: stream, moments, holders. ARGV: group, consumer, session, token, lease in ms, limit; a session is one life of a
# consumer, and its tokens begin with it.
# Answers the deliveries as {id, tries, key, event}, and behind them the last id the group was given.
FETCH = (
    _SETTLED
    + """
local group, consumer, session, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lease, limit = tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found, clear = {}, {}

local function hold(id, key, event)
  redis.call('ZADD', KEYS[2], now + lease, id)
  redis.call('HSET', KEYS[3], 'token:' .. id, token)
  found[#found + 1] = {id, redis.call('HINCRBY', KEYS[3], 'tries:' .. id, 1), key, event}
end

-- Is everything before it in the line of its key in the hands of this session?
local function is_next(id, key)
  local place = 0
  while true do
    local before = redis.call('LINDEX', lines .. key, place)
    if not before or before == id then return true end
    local holder = redis.call('HGET', KEYS[3], 'token:' .. before)
    if not holder or string.sub(holder, 1, #session) ~= session then return false end
    if tonumber(redis.call('ZSCORE', KEYS[2], before) or 0) <= now then return false end
    place = place + 1
  end
end

local function content(fields)
  local named = {}
  for place = 1, #fields, 2 do named[fields[place]] = fields[place + 1] end
  return named['key'] or '', named['event'] or ''
end

local function older(one, other)
  local ms, seq = string.match(one, '(%d+)-(%d+)')
  local other_ms, other_seq = string.match(other, '(%d+)-(%d+)')
  if ms ~= other_ms then return tonumber(ms) < tonumber(other_ms) end
  return tonumber(seq) < tonumber(other_seq)
end

while #found < limit do
  local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit - #found)
  if #due == 0 then break end
  table.sort(due, older)
  for _, id in ipairs(due) do
    local claimed = redis.call('XCLAIM', KEYS[1], group, consumer, 0, id)
    if claimed[1] and claimed[1][2] then
      local key, event = content(claimed[1][2])
      if key == '' or redis.call('HEXISTS', KEYS[3], 'aside:' .. id) == 1 or is_next(id, key) then
        hold(id, key, event)
      else
        redis.call('ZREM', KEYS[2], id)
        redis.call('HDEL', KEYS[3], 'token:' .. id)
      end
    else
      settled(group, id, now)
    end
  end
end
local read_so_far = 0
while #found < limit and read_so_far < 1000 do
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #found, 'STREAMS', KEYS[1], '>')
  if not read or not read[1] then break end
  for _, entry in ipairs(read[1][2]) do
    local id, key, event = entry[1], content(entry[2])
    read_so_far = read_so_far + 1
    if key ~= '' then
      redis.call('RPUSH', lines .. key, id)
      redis.call('HSET', KEYS[3], 'key:' .. id, key)
      if clear[key] == nil then clear[key] = is_next(id, key) end
    end
    if key == '' or clear[key] then hold(id, key, event) end
  end
end
local last = '0-0'
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local named = {}
  for place = 1, #info, 2 do named[info[place]] = info[place + 1] end
  if named['name'] == group then last = named['last-delivered-id'] end
end
found[#found + 1] = last
return found
"""
)

# KEYS: stream, moments, holders. ARGV: group, id, token.
ACK = (
    _SETTLED
    + """
if redis.call('HGET', KEYS[3], 'token:' .. ARGV[2]) ~= ARGV[3] then return 0 end
local time = redis.call('TIME')
settled(ARGV[1], ARGV[2], time[1] * 1000 + math.floor(time[2] / 1000))
return 1
"""
)

# KEYS: stream, moments, holders. ARGV: group, id, token, milliseconds from now, and what: 'keep' it, 'release' it, or
# set it 'aside', which is to release it and let others of its key pass.
POSTPONE = (
    _SETTLED
    + """
if redis.call('HGET', KEYS[3], 'token:' .. ARGV[2]) ~= ARGV[3] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[2])
if ARGV[5] ~= 'keep' then redis.call('HDEL', KEYS[3], 'token:' .. ARGV[2]) end
if ARGV[5] == 'aside' then
  redis.call('HSET', KEYS[3], 'aside:' .. ARGV[2], 1)
  out_of_line(ARGV[2], now)
end
return 1
"""
)
