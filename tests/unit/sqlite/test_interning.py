"""Ids that a rollback takes back, and blobs that cross SQLite as one."""

import sqlite3

from tests.contract.builders import refused, user, value
from tests.unit.sqlite.scenes import executed, opened_shard, records

from qimd.adapters.sqlite import SqliteBackends
from qimd.adapters.sqlite.packing import Blobs, dumps, rows_and_blobs_of
from qimd.core.outcome import Refusal
from qimd.core.seq import SEQ_MAX, SEQ_NONE


async def test_ids_that_were_given_in_a_refused_step_are_given_anew(store: SqliteBackends) -> None:
    """A stale id would put the entries into a mailbox that nobody owns: lost."""
    position = await opened_shard(store)
    mailbox = store.backends.mailbox

    value(
        await store.engine.write(
            executed(
                "CREATE TEMP TRIGGER fail BEFORE INSERT ON main.mailbox_entries "
                "BEGIN SELECT RAISE(ABORT, 'broken'); END"
            )
        )
    )
    refusal = refused(await mailbox.apply(records(position, [0], ["anna", "ben"], "first")))
    assert refusal is Refusal.REJECTED
    value(await store.engine.write(executed("DROP TRIGGER fail")))
    zoes = records(position, [0], ["zoe"], "second")
    value(await mailbox.apply(zoes))
    value(await mailbox.apply(records(zoes.position, [1], ["anna", "ben"], "third")))
    for name, count in (("anna", 1), ("ben", 1), ("zoe", 1)):
        assert len(await mailbox.entries(user(name), SEQ_NONE, SEQ_MAX, 10)) == count


async def test_the_same_recipients_need_no_look_up_and_others_do(store: SqliteBackends) -> None:
    position = await opened_shard(store)
    mailbox = store.backends.mailbox
    names = [f"u{number}" for number in range(300)]
    first = records(position, range(0, 10), names, "first")
    value(await mailbox.apply(first))
    second = records(first.position, range(10, 20), names[100:], "second")
    value(await mailbox.apply(second))
    for name, count in (("u0", 10), ("u99", 10), ("u100", 20), ("u299", 20)):
        assert len(await mailbox.entries(user(name), SEQ_NONE, SEQ_MAX, 100)) == count


def test_blobs_keep_every_byte_on_their_way_in_and_out() -> None:
    blobs = Blobs()
    sent = [bytes(range(256)), b"\x00", b"\xff\x00\xfe", b"", "é🦜".encode()[1:], b"\x00" * 1000]
    places = [blobs.add(blob) for blob in sent]
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, blob BLOB NOT NULL) STRICT")
    db.execute(
        "INSERT INTO t (blob) SELECT substr(?1, value ->> 0, value ->> 1) FROM json_each(?2)",
        (blobs.data, dumps(places)),
    )
    rows, view = rows_and_blobs_of(
        db.execute(
            "SELECT json_group_array(json_array(length(blob))), "
            "CAST(group_concat(blob, '') AS BLOB) FROM (SELECT blob FROM t ORDER BY id)"
        )
    )
    db.close()
    assert [size for (size,) in rows] == [len(blob) for blob in sent]
    assert bytes(view) == b"".join(sent)
