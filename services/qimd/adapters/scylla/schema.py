"""The tables, and how a keyspace comes to have them: migrate, then connect, then ready.

Every partition key begins with the deployment, so that several may share a keyspace. Ids are text:
the engine orders them as their bytes are. Integers are signed 64-bit; none of qim's is larger.

What one conditional write must cover lies in one partition: of a conversation its head (static
columns), events, used idempotency keys and memberships; of a mailbox shard its state and the
records that it keeps. Cells that rise by themselves (see `rising`) say so.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

VERSION: Final = 2

MIGRATE_TIMEOUT_S: Final = 60.0
"""A table is made in a second or more, and every node must agree to it."""

_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS schema_version (id int PRIMARY KEY, version int)"

# A `rising` note that came back after its deletion is looked at once more, and deleted again: the
# engine need not remember deletions, of which these tables have as many as rows.
_NOTES: Final = "WITH gc_grace_seconds = 0"

TABLES: Final[Sequence[str]] = (
    """
    CREATE TABLE IF NOT EXISTS deployments (deployment text PRIMARY KEY, first_log text)
    """,
    """
    CREATE TABLE IF NOT EXISTS tenants (
        deployment text, tenant text,
        version int, keys frozen<map<text, blob>>, created_at_ms bigint,
        PRIMARY KEY ((deployment, tenant)))
    """,
    # A row for each nonce that drew an epoch; the one of the empty nonce is the shard's now.
    """
    CREATE TABLE IF NOT EXISTS epochs (
        deployment text, counter bigint static,
        kind text, shard int, nonce blob, epoch bigint,
        PRIMARY KEY ((deployment), kind, shard, nonce))
    """,
    """
    CREATE TABLE IF NOT EXISTS conversations (
        deployment text, tenant text, conversation text,
        writer_shard int static, fencing_epoch bigint static, head_version bigint static,
        dispatched_through bigint static, membership_version bigint static,
        member_count int static, last_created_at_ms bigint static, created_at_ms bigint static,
        last_request_id blob static,
        audited_through bigint static,
        kind tinyint, name blob, seq bigint,
        event_id blob, event_kind int, sender text, sender_device text, at_ms bigint,
        of_membership_version bigint, routing_version int, chunk_recipients int,
        trace_parent text, added frozen<list<text>>, removed frozen<list<text>>,
        encoded blob, epoch bigint,
        result_seq bigint, content_digest blob,
        removed_seq bigint,
        PRIMARY KEY ((deployment, tenant, conversation), kind, name, seq))
    """,
    # Where an event is by its id: a function of its place, so it needs no condition.
    """
    CREATE TABLE IF NOT EXISTS event_places (
        deployment text, event_id blob, tenant text, conversation text, seq bigint,
        PRIMARY KEY ((deployment, event_id)))
    """,
    """
    CREATE TABLE IF NOT EXISTS conversation_names (
        deployment text, bucket tinyint, tenant text, conversation text,
        PRIMARY KEY ((deployment, bucket), tenant, conversation))
    """,
    # Notes (`rising` by version and through): what may have an outbox, and what may be unaudited.
    f"""
    CREATE TABLE IF NOT EXISTS pending (
        deployment text, writer_shard int, tenant text, conversation text, version bigint,
        PRIMARY KEY ((deployment, writer_shard), tenant, conversation))
    {_NOTES}
    """,
    f"""
    CREATE TABLE IF NOT EXISTS unaudited (
        deployment text, bucket tinyint, tenant text, conversation text, through bigint,
        PRIMARY KEY ((deployment, bucket), tenant, conversation))
    {_NOTES}
    """,
    # A shard's state as JSON, which only conditional writes change; the rows are kept records.
    """
    CREATE TABLE IF NOT EXISTS mailbox_shards (
        deployment text, shard int, version bigint static, state text static,
        seq bigint, behind bigint, at_ms bigint, value blob,
        PRIMARY KEY ((deployment, shard), seq))
    """,
    # Of an epoch that was marked twice the smaller seq counts.
    """
    CREATE TABLE IF NOT EXISTS mailbox_marks (
        deployment text, shard int, bucket tinyint,
        tenant text, conversation text, fencing_epoch bigint, first_seq bigint,
        PRIMARY KEY ((deployment, shard, bucket), tenant, conversation, fencing_epoch, first_seq))
    """,
    # A lane's entries of a span, a run of seqs: what a record's block writes together. An entry is
    # whole, since a page of references would be as many reads as it has entries.
    """
    CREATE TABLE IF NOT EXISTS mailbox_entries (
        deployment text, shard int, lane tinyint, span bigint,
        tenant text, user_id text, seq bigint,
        conversation text, conversation_seq bigint, event_kind int, sender text, at_ms bigint,
        PRIMARY KEY ((deployment, shard, lane, span), tenant, user_id, seq))
    """,
    # In which of them a user has entries.
    """
    CREATE TABLE IF NOT EXISTS mailbox_places (
        deployment text, tenant text, user_id text, span bigint, shard int, lane tinyint,
        PRIMARY KEY ((deployment, tenant, user_id), span, shard, lane))
    """,
    # A segment is a run of seqs: what is read and expired together, and no partition for ever.
    """
    CREATE TABLE IF NOT EXISTS mailbox_records (
        deployment text, shard int, segment bigint, seq bigint,
        event_id blob, tenant text, conversation text, conversation_seq bigint, event_kind int,
        sender text, event_at_ms bigint, dispatch_id blob, fencing_epoch bigint,
        chunk_index int, chunk_count int, at_ms bigint,
        PRIMARY KEY ((deployment, shard, segment), seq))
    """,
    """
    CREATE TABLE IF NOT EXISTS mailbox_blocks (
        deployment text, shard int, segment bigint, seq bigint, lane tinyint,
        users frozen<list<text>>,
        PRIMARY KEY ((deployment, shard, segment), seq, lane))
    """,
    # DispatchProgress: a row for each time that a dispatch was seen, at a seq, with the lanes (a
    # mask) that were done then. By events, so that it tells what the shards hold of one as well.
    """
    CREATE TABLE IF NOT EXISTS mailbox_dispatches (
        deployment text, event_id blob, shard int, dispatch_id blob, seq bigint, lanes bigint,
        digest blob,
        tenant text, conversation text, conversation_seq bigint, event_kind int,
        sender text, event_at_ms bigint, fencing_epoch bigint,
        chunk_index int, chunk_count int, at_ms bigint,
        PRIMARY KEY ((deployment, event_id), shard, dispatch_id, seq, lanes))
    """,
    # Where dispatches were seen that mailbox_records does not tell of: what has expired, and
    # duplicates.
    """
    CREATE TABLE IF NOT EXISTS mailbox_seen (
        deployment text, shard int, segment bigint, seq bigint, event_id blob, dispatch_id blob,
        PRIMARY KEY ((deployment, shard, segment), seq))
    """,
    # `rising` cells.
    """
    CREATE TABLE IF NOT EXISTS devices (
        deployment text, tenant text, user_id text, device text, acked bigint, handed bigint,
        PRIMARY KEY ((deployment, tenant, user_id), device))
    """,
)


class SchemaTooNew(Exception):
    """The keyspace was made by a later version of this software: starting would harm it."""


def migrate(driver: Any, keyspace: str, datacenter: str, replication_factor: int) -> None:
    """Make the keyspace and its tables where they are missing. Blocks; raises SchemaTooNew and what
    the driver raises.

    For one process at a time: engines without transactional schema changes may make a table twice.
    """
    replication = f"{{'class': 'NetworkTopologyStrategy', '{datacenter}': {replication_factor:d}}}"
    run = partial(driver.execute, timeout=MIGRATE_TIMEOUT_S)
    run(f'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" WITH replication = {replication}')
    driver.set_keyspace(keyspace)
    run(_VERSIONS)
    for (version,) in run("SELECT version FROM schema_version WHERE id = 0"):
        if version > VERSION:
            raise SchemaTooNew(f"the keyspace has schema {version}, this software knows {VERSION}")
        if version == VERSION:
            return
    for table in TABLES:
        run(table)
    run("INSERT INTO schema_version (id, version) VALUES (0, %s)", (VERSION,))
