"""What Redis does in one step, as Lua that runs on Redis 7.0 and its relatives. Redis's own clock decides.

A stream and its group hold the messages. Beside them stand a sorted set of moments (`moments`: when a delivery's time
is over, or a rejected one is due again) and a hash of who holds what (`holders`: token and number of tries). Redis's
own idle times know neither delays nor leases of different lengths.
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

# KEYS: stream, moments, holders. ARGV: group, consumer, token, lease in ms, limit.
# Answers the deliveries as {id, tries, key, event}, and behind them the last id the group was given.
FETCH = """
local group, consumer, token, lease, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}

local function hold(id, fields)
  redis.call('ZADD', KEYS[2], now + lease, id)
  redis.call('HSET', KEYS[3], 'token:' .. id, token)
  local tries = redis.call('HINCRBY', KEYS[3], 'tries:' .. id, 1)
  local by_name = {}
  for place = 1, #fields, 2 do by_name[fields[place]] = fields[place + 1] end
  found[#found + 1] = {id, tries, by_name['key'] or '', by_name['event'] or ''}
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit)) do
  local claimed = redis.call('XCLAIM', KEYS[1], group, consumer, 0, id)
  if claimed[1] and claimed[1][2] then
    hold(id, claimed[1][2])
  else
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], 'token:' .. id, 'tries:' .. id)
  end
end
if #found < limit then
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #found, 'STREAMS', KEYS[1], '>')
  if read and read[1] then
    for _, entry in ipairs(read[1][2]) do hold(entry[1], entry[2]) end
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

# KEYS: stream, moments, holders. ARGV: group, id, token.
ACK = """
if redis.call('HGET', KEYS[3], 'token:' .. ARGV[2]) ~= ARGV[3] then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], 'token:' .. ARGV[2], 'tries:' .. ARGV[2])
return 1
"""

# KEYS: stream, moments, holders. ARGV: group, id, token, milliseconds from now, 'keep' or 'release'.
POSTPONE = """
if redis.call('HGET', KEYS[3], 'token:' .. ARGV[2]) ~= ARGV[3] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[2])
if ARGV[5] == 'release' then redis.call('HDEL', KEYS[3], 'token:' .. ARGV[2]) end
return 1
"""
