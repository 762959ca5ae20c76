"""What is Cassandra's own: what errors mean, and a session that calls give up on."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from cassandra import (
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    Unavailable,
    WriteTimeout,
)
from cassandra.cluster import EXEC_PROFILE_DEFAULT, NoHostAvailable
from cassandra.connection import ConnectionShutdown
from tests.contract.builders import ACME, START_MS, event, key, value
from tests.contract.cassandra_engine import cassandra_settings, runs_here, shared_driver
from tests.contract.cassandra_faults import commit, conversation, deployment

from qimd.adapters.scylla import SchemaTooNew, ScyllaBackends, ScyllaSettings, open_scylla
from qimd.adapters.scylla.backends import open_driver
from qimd.adapters.scylla.rising import rising
from qimd.adapters.scylla.schema import VERSION
from qimd.adapters.scylla.session import Session, failure
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import NotApplied, Refusal, Unknown
from qimd.core.seq import SEQ_MAX
from qimd.ports.store import TenantRecord


@runs_here
async def test_a_call_that_is_cancelled_leaves_the_session_usable() -> None:
    backends = deployment(Session(*shared_driver()))
    epoch = await conversation(backends)
    value(await commit(backends, epoch, event(1)))
    for turns in range(8):
        calls = [
            asyncio.ensure_future(commit(backends, epoch, event(2))),
            asyncio.ensure_future(backends.conversations.conversation(key("none"))),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        state = await backends.conversations.conversation(key())
        assert state is not None
        assert state.key == key()
        assert await backends.conversations.conversation(key("none")) is None
    value(await commit(backends, epoch, event(2)))
    found = await backends.conversations.outbox(key(), 0, 9)
    assert [one.conversation_seq for one in found] == [1, 2]


@runs_here
async def test_a_write_without_an_answer_in_time_is_unknown_and_a_read_unavailable() -> None:
    cluster, driver = await asyncio.to_thread(open_driver, cassandra_settings())
    backends = ScyllaBackends.over(Session(cluster, driver), uuid.uuid4().hex)
    tenant = TenantRecord(ACME, {"k": b"k" * 32}, START_MS)
    profile = driver.get_execution_profile(EXEC_PROFILE_DEFAULT)
    try:
        profile.request_timeout = 0.00001
        assert isinstance(await backends.tenants.create_tenant(tenant), Unknown)
        with pytest.raises(QimError) as raised:
            await backends.tenants.tenant(ACME)
        assert raised.value.code is ErrorCode.UNAVAILABLE
        profile.request_timeout = 30.0
        assert value(await backends.tenants.create_tenant(tenant)) == tenant
        assert await backends.tenants.tenant(ACME) == tenant
    finally:
        await backends.close()


async def test_an_engine_that_is_not_there_is_unavailable() -> None:
    settings = ScyllaSettings(["127.0.0.1"], "nowhere", "datacenter1", 1, port=1)
    with pytest.raises(QimError) as raised:
        await open_scylla(settings, "nowhere")
    assert raised.value.code is ErrorCode.UNAVAILABLE


@runs_here
async def test_a_keyspace_of_a_later_version_is_refused() -> None:
    settings = replace(cassandra_settings(), keyspace="qim_tests_later")
    _, driver = shared_driver()
    for statement in (
        "CREATE KEYSPACE IF NOT EXISTS qim_tests_later WITH replication ="
        " {'class': 'NetworkTopologyStrategy', 'datacenter1': 1}",
        "CREATE TABLE IF NOT EXISTS qim_tests_later.schema_version"
        " (id int PRIMARY KEY, version int)",
        f"INSERT INTO qim_tests_later.schema_version (id, version) VALUES (0, {VERSION + 1})",
    ):
        driver.execute(statement)
    with pytest.raises(SchemaTooNew):
        await open_scylla(settings, "later")


UNSENT = ConnectionShutdown("pool is shut down")


@pytest.mark.parametrize(
    ("error", "conditional", "expected"),
    [
        (OperationTimedOut(), False, None),
        (WriteTimeout("", write_type=0), True, None),
        (InvalidRequest("too large"), True, Refusal.REJECTED),
        (NoHostAvailable("", {"a": UNSENT}), True, Refusal.UNREACHABLE),
        (NoHostAvailable("", {"a": UNSENT, "b": OperationTimedOut()}), True, None),
        (Unavailable("", ConsistencyLevel.LOCAL_QUORUM), False, Refusal.UNREACHABLE),
        (Unavailable("", ConsistencyLevel.LOCAL_SERIAL), True, Refusal.UNREACHABLE),
        (Unavailable("", ConsistencyLevel.LOCAL_QUORUM), True, None),
        (UNSENT, True, None),
    ],
)
def test_only_what_certainly_did_nothing_is_not_applied(
    error: Exception, conditional: bool, expected: Refusal | None
) -> None:
    outcome = failure(error, conditional=conditional)
    found = outcome.refusal if isinstance(outcome, NotApplied) else None
    assert found is expected


# --- pure -------------------------------------------------------------------------------------


def test_a_rising_value_is_never_written_in_the_future_and_always_later() -> None:
    values = [0, 1, 2, 1 << 53, SEQ_MAX - 1, SEQ_MAX]
    stamps = [rising(each) for each in values]
    assert stamps == sorted(set(stamps))
    assert stamps[0] > -(1 << 63)
    assert stamps[-1] <= 1
