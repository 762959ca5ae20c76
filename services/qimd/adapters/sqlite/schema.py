"""The embedded engine's tables, and the version of their format.

Conversations and users are interned: rows that exist by the million hold integers. A user is known
once a partition of the dispatch topic, since mailboxes and the session projection are kept per
partition, and two shards' seqs say nothing of each other.
"""

from typing import Final

FORMAT_VERSION: Final = 2
"""Raised by any change that an older build would read wrongly."""

SCHEMA: Final = """
-- Ended by whoever runs it, with the format version in the same transaction.
BEGIN IMMEDIATE;

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenants (
    tenant TEXT PRIMARY KEY,
    created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenant_keys (
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    public_key BLOB NOT NULL,
    PRIMARY KEY (tenant, key_id)
) STRICT, WITHOUT ROWID;

-- The deployment's one counter is max(epoch): each epoch drawn is above all before it, and a
-- shard's row never goes back.
CREATE TABLE epochs (
    kind TEXT NOT NULL,
    shard INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (kind, shard)
) STRICT, WITHOUT ROWID;

-- What each nonce was given. Kept: a call that lands late must never draw a second epoch.
CREATE TABLE epoch_draws (
    kind TEXT NOT NULL,
    shard INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (kind, shard, nonce)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    kind TEXT NOT NULL,
    shard INTEGER NOT NULL,
    holder TEXT NOT NULL,
    expires_at_s REAL NOT NULL,
    released INTEGER NOT NULL,
    PRIMARY KEY (kind, shard)
) STRICT, WITHOUT ROWID;

-- A row whose head_version is NULL only gives an id: a mailbox may know a conversation that this
-- store does not hold.
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    writer_shard INTEGER,
    fencing_epoch INTEGER,
    head_version INTEGER,
    dispatched_through INTEGER,
    audited_through INTEGER,
    membership_version INTEGER,
    member_count INTEGER,
    last_created_at_ms INTEGER,
    created_at_ms INTEGER,
    last_step_id BLOB,
    UNIQUE (tenant, conversation)
) STRICT;
CREATE INDEX conversations_pending ON conversations (writer_shard)
    WHERE dispatched_through < head_version;
CREATE INDEX conversations_unaudited ON conversations (tenant, conversation)
    WHERE audited_through < dispatched_through;

-- `encoded` comes last: what only counts or lists events never touches its overflow pages.
CREATE TABLE events (
    conversation_id INTEGER NOT NULL,
    conversation_seq INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    sender TEXT,
    created_at_ms INTEGER NOT NULL,
    event_id BLOB NOT NULL,
    sender_device TEXT,
    membership_version INTEGER NOT NULL,
    routing_version INTEGER NOT NULL,
    chunk_recipients INTEGER NOT NULL,
    fencing_epoch INTEGER NOT NULL,
    trace_parent TEXT NOT NULL,
    added TEXT NOT NULL,
    removed TEXT NOT NULL,
    encoded BLOB NOT NULL,
    PRIMARY KEY (conversation_id, conversation_seq)
) STRICT;
CREATE UNIQUE INDEX events_by_id ON events (event_id);

CREATE TABLE idempotency (
    conversation_id INTEGER NOT NULL,
    sender TEXT NOT NULL,
    client_msg_id TEXT NOT NULL,
    conversation_seq INTEGER NOT NULL,
    event_id BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    content_digest BLOB NOT NULL,
    PRIMARY KEY (conversation_id, sender, client_msg_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created_at_ms);

-- Users as text: members are asked for in byte order. removed_seq is 0 while the interval is open.
CREATE TABLE memberships (
    conversation_id INTEGER NOT NULL,
    user TEXT NOT NULL,
    added_seq INTEGER NOT NULL,
    removed_seq INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (conversation_id, user, added_seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX memberships_open ON memberships (conversation_id, user) WHERE removed_seq = 0;

CREATE TABLE log_topic (
    topic TEXT PRIMARY KEY,
    topic_id TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    max_record_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE log_partitions (
    partition INTEGER PRIMARY KEY,
    low INTEGER NOT NULL,
    high INTEGER NOT NULL,
    last_timestamp_ms INTEGER NOT NULL
) STRICT;

-- What one produce appends to a partition is one row, as in Kafka. `id` is
-- partition << 43 | last offset of the batch, so that a partition's batches lie together in order.
-- `sizes` is a u32 big-endian a record, `data` the records end to end.
CREATE TABLE log_batches (
    id INTEGER PRIMARY KEY,
    partition INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    sizes BLOB NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX log_batches_by_time ON log_batches (partition, timestamp_ms, base_offset);

CREATE TABLE users (
    id INTEGER PRIMARY KEY,
    partition INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    UNIQUE (tenant, user, partition)
) STRICT;
CREATE INDEX users_by_partition ON users (partition);

CREATE TABLE mailbox_shards (
    shard INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    position INTEGER NOT NULL,
    lagging TEXT NOT NULL,
    floor INTEGER NOT NULL,
    lane_last BLOB NOT NULL,
    last_request_id BLOB NOT NULL,
    last_verdicts TEXT NOT NULL
) STRICT;

CREATE TABLE mailbox_boundaries (
    shard INTEGER NOT NULL,
    shard_epoch INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    log_identity TEXT NOT NULL,
    PRIMARY KEY (shard, shard_epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE mailbox_buckets (
    shard INTEGER NOT NULL,
    day INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    PRIMARY KEY (shard, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE mailbox_marks (
    shard INTEGER NOT NULL,
    conversation_id INTEGER NOT NULL,
    fencing_epoch INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    PRIMARY KEY (shard, conversation_id, fencing_epoch)
) STRICT, WITHOUT ROWID;

-- What the recipients of a record share, once a record.
CREATE TABLE mailbox_records (
    shard INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    conversation_id INTEGER NOT NULL,
    conversation_seq INTEGER NOT NULL,
    event_id BLOB NOT NULL,
    kind INTEGER NOT NULL,
    sender TEXT,
    created_at_ms INTEGER NOT NULL,
    dispatch_id BLOB NOT NULL,
    fencing_epoch INTEGER NOT NULL,
    chunk_index INTEGER NOT NULL,
    chunk_count INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (shard, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX mailbox_records_by_event ON mailbox_records (event_id);
CREATE INDEX mailbox_records_by_place
    ON mailbox_records (conversation_id, conversation_seq, shard, seq);

CREATE VIEW mailbox_records_named AS
    SELECT r.*, c.tenant, c.conversation
    FROM mailbox_records AS r CROSS JOIN conversations AS c ON c.id = r.conversation_id;

-- Log records that lagging lanes still need, beyond the log's retention.
CREATE TABLE mailbox_kept (
    shard INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    after INTEGER NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (shard, seq)
) STRICT;

CREATE TABLE mailbox_entries (
    user_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (user_id, seq)
) STRICT, WITHOUT ROWID;

-- The persistent dedupe. lane_mask is the 64 bits as a signed integer; a dispatch was seen last at
-- seen_seq.
CREATE TABLE dispatch_progress (
    dispatch_id BLOB PRIMARY KEY,
    lane_mask INTEGER NOT NULL,
    content_digest BLOB NOT NULL,
    seen_seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE devices (
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    device TEXT NOT NULL,
    acked INTEGER NOT NULL,
    handed INTEGER NOT NULL,
    PRIMARY KEY (tenant, user, device)
) STRICT, WITHOUT ROWID;

CREATE TABLE projection_partitions (
    partition INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    format_version INTEGER NOT NULL,
    topic TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    cluster_id TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    next_offset INTEGER NOT NULL
) STRICT;

-- No index by activity: each message would move each recipient's row in it, and a list of some
-- hundred rows is sorted when it is asked for.
CREATE TABLE projection_rows (
    user_id INTEGER NOT NULL,
    conversation_id INTEGER NOT NULL,
    activity_ms INTEGER NOT NULL,
    applied_seq INTEGER NOT NULL,
    unread INTEGER NOT NULL,
    PRIMARY KEY (user_id, conversation_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE read_marks (
    user_id INTEGER NOT NULL,
    conversation_id INTEGER NOT NULL,
    read_through INTEGER NOT NULL,
    PRIMARY KEY (user_id, conversation_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
    id INTEGER PRIMARY KEY,
    log_identity TEXT NOT NULL,
    partition INTEGER NOT NULL,
    log_offset INTEGER NOT NULL,
    source TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (log_identity, partition, log_offset)
) STRICT;
"""

MAILBOX_SEEN: Final = """
-- Where dispatches were seen, of what mailbox_records does not tell: what has expired, duplicates.
CREATE TABLE mailbox_seen (
    shard INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    dispatch_id BLOB NOT NULL,
    PRIMARY KEY (shard, seq)
) STRICT, WITHOUT ROWID
"""
"""The last table of the schema, and what format 1 lacks besides a column."""

# What was done before places were kept stays known for ever: nobody can tell where it was seen.
ADD_SEEN_SEQ: Final = (
    "ALTER TABLE dispatch_progress ADD COLUMN seen_seq INTEGER NOT NULL DEFAULT 9223372036854775807"
)
