"""`ports.quarantine.QuarantineStore`, sentence by sentence."""

from dataclasses import replace

from tests.contract.builders import ODD_IDS, START_MS, value
from tests.contract.engines import Engine

from qimd.core.ids import DispatchId
from qimd.ports.quarantine import Quarantined, unproduced_offset

ENGINES = ("memory", "sqlite", "redis")

BROKEN = Quarantined(
    log_identity="cluster/7b1f",
    partition=3,
    offset=17,
    source="mailbox",
    reason="non_canonical",
    at_ms=START_MS,
    value=bytes(range(256)),
)


async def test_what_is_kept_comes_back_whole(engine: Engine) -> None:
    value(await engine.backends.quarantine.quarantine([BROKEN]))
    assert list(await engine.backends.quarantine.quarantined(10)) == [BROKEN]


async def test_one_that_is_there_stays_as_it_is(engine: Engine) -> None:
    """Mailbox and session both meet a broken record: it is one."""
    store = engine.backends.quarantine
    value(await store.quarantine([BROKEN]))
    value(await store.quarantine([replace(BROKEN, source="session", value=b"", at_ms=9)]))
    assert list(await store.quarantined(10)) == [BROKEN]


async def test_the_key_is_identity_partition_and_offset(engine: Engine) -> None:
    store = engine.backends.quarantine
    others = [
        replace(BROKEN, log_identity="cluster/8c2e"),
        replace(BROKEN, partition=4),
        replace(BROKEN, offset=18),
        replace(BROKEN, offset=unproduced_offset(DispatchId(b"\xff" * 16))),
        replace(BROKEN, offset=unproduced_offset(DispatchId(b"\x00" * 16))),
    ]
    value(await store.quarantine([BROKEN, *others]))
    kept = await store.quarantined(10)
    assert sorted(kept, key=repr) == sorted([BROKEN, *others], key=repr)


async def test_the_newest_come_first_up_to_the_limit(engine: Engine) -> None:
    store = engine.backends.quarantine
    records = [replace(BROKEN, offset=n, at_ms=START_MS + n) for n in range(5)]
    for record in records:
        value(await store.quarantine([record]))
    assert list(await store.quarantined(3)) == records[:1:-1]


async def test_nothing_to_keep_is_kept(engine: Engine) -> None:
    value(await engine.backends.quarantine.quarantine([]))
    assert list(await engine.backends.quarantine.quarantined(10)) == []


async def test_odd_sources_and_identities_come_back_byte_exact(engine: Engine) -> None:
    store = engine.backends.quarantine
    records = [
        replace(BROKEN, log_identity=name, source=name, reason=name, offset=n, at_ms=START_MS + n)
        for n, name in enumerate(ODD_IDS)
    ]
    value(await store.quarantine(records))
    assert sorted(await store.quarantined(100), key=repr) == sorted(records, key=repr)
