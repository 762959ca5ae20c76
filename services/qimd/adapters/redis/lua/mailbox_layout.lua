-- How mailboxes lie in Redis. A script's first argument is the prefix of all of their keys. It
-- makes the keys itself, since which ones a step needs is known only amid it; a Redis Cluster,
-- which would have to know before, is refused at start.
--
--   shard:<shard>              hash    its state: term, next_offset, position, lagging, floor, ...
--   epochs:<shard>             list    its boundaries: epoch (4 bytes), first offset (8), identity
--   days:<shard>               list    its day buckets: day (8 bytes), first seq (8)
--   marks:<shard>              hash    conversation -> its marks: epoch (8 bytes), first seq (8)
--   folding:<shard>            set     the conversations that have more than one mark
--   progress:<shard>:<2 bytes> hash    dispatch_id -> lanes done (8 bytes), digest (16), where it
--                                      was seen last (8)
--   seen:<shard>               list    what expired, in order: seq (8 bytes), dispatch_id (16)
--   seen_again:<shard>         list    the same of duplicates, as they came
--   kept:<shard>               hash    seq -> a log record that a lagging lane needs
--   kept_order:<shard>         zset    its seqs
--
--   begun:<shard>              zset    its buckets that hold something
--   seqs:<bucket>              string  the seqs of the bucket's records, in order
--   records:<bucket>           hash    seq -> what a record's recipients share
--   users:<bucket>             list    the users with entries in it
--   entries:<bucket><user>     string  the seqs of a user's entries, in order
--
--   buckets:<user>             zset    the buckets with entries of the user
--   event:<event_id>           string  where its records are: bucket (12 bytes), seq (8)
--   device:<device>            string  acked (8 bytes), handed (8)
--
-- A bucket is named by its shard (4 bytes) and its first seq (8), so buckets sort as their records
-- do. Records before a shard's first day are in the bucket of seq 0. A zset here has one score, 0:
-- it is a set in the order of its members' bytes.
--
-- `gone` of a shard is a seq up to which every record was dropped: at or below it, what is left in
-- strings of seqs is not there any more.

local prefix = ARGV[1]

local function shard_key(kind, shard)
  return prefix .. kind .. ':' .. shard
end

local function bucket_key(kind, bucket)
  return prefix .. kind .. ':' .. bucket
end

local function progress_key(shard, dispatch)
  return shard_key('progress', shard) .. ':' .. dispatch:sub(1, 2)
end

local NO_SHARD = {'not_found', 'the shard was never opened'}
local STALE_TERM = {'stale_epoch', "the shard's term is not the caller's"}

-- Why a step of this term is not taken; nil if it is.
local function refused(shard, term)
  local stored = redis.call('HGET', shard_key('shard', shard), 'term')
  if not stored then return NO_SHARD end
  if stored ~= term then return STALE_TERM end
end
