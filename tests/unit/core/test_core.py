"""Ids, routing, seq, clock, dispatch plan, lease term, parameters, errors: each a pure function."""

from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from qimd.core import ids, parameters, seq
from qimd.core.clock import event_time_ms
from qimd.core.dispatch import plan_chunks
from qimd.core.errors import ERRORS, ErrorCode, QimError, invalid, unavailable
from qimd.core.ids import TenantId, UserId, check_id, dispatch_id, event_id, id_problem, join_key
from qimd.core.lease import Term
from qimd.core.parameters import LeaseParameters
from qimd.core.records import Interval
from qimd.core.routing import RoutingTable, lane_of, route_hash, slot_of

texts = st.text(min_size=1, max_size=32).filter(lambda text: not id_problem(text))

# --- ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *("a", "/", ":", "a/b:c", " ", "😀", "👩\u200d👩\u200d👧", "\u202eabc", "é", "e\u0301"),
        *("שלום", "مرحبا", "x" * 128, "é" * 64),
    ],
    ids=lambda value: f"{ascii(value)[:24]}-{len(value)}",
)
def test_an_id_is_any_text_of_1_to_128_bytes(value):
    """COD-03: '/' and emoji are ids like any other."""
    assert check_id(value, "user_id") == value


@pytest.mark.parametrize(
    "value",
    ["", "x" * 129, "é" * 65, "x" * 5000, "x\0y", "\n", "a\tb", "\x7f", "\x80", "a\x9fb", "\ud800"],
    ids=lambda value: f"{ascii(value)[:24]}-{len(value)}",
)
def test_what_is_no_id_is_refused_by_name(value):
    """COD-03: NUL and over-long ids: INVALID_ARGUMENT naming the field."""
    with pytest.raises(QimError) as refused:
        check_id(value, "user_id")
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert refused.value.field == "user_id"
    assert len(refused.value.message) < 100


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_joined_keys_are_equal_only_if_their_parts_are(left, right):
    assert (join_key(*left) == join_key(*right)) == (left == right)


def test_a_separator_inside_an_id_moves_nothing_into_the_next_part():
    assert join_key("a:b", "c") != join_key("a", "b:c")
    assert join_key("ab", "c") != join_key("a", "bc")


def test_an_event_id_is_the_published_hash_of_its_place():
    from hashlib import blake2b

    key = b"\0\0\0\x04acme\0\0\0\x04room" + (3).to_bytes(8, "big")
    expected = blake2b(key, digest_size=16, person=b"qim.event").digest()
    assert event_id("acme", "room", 3) == expected
    dispatch = blake2b(
        expected + b"\0\0\0\x02\0\0\0\x05", digest_size=16, person=b"qim.dispatch"
    ).digest()
    assert dispatch_id(expected, 2, 5) == dispatch


def test_event_and_dispatch_ids_differ_with_each_part():
    events = {event_id("t", "c", 1), event_id("t", "c", 2), event_id("tc", "", 1)}
    assert len(events) == 3
    event = event_id("t", "c", 1)
    assert len({dispatch_id(event, 0, 0), dispatch_id(event, 0, 1), dispatch_id(event, 1, 0)}) == 3


def test_a_content_digest_joins_injectively():
    assert ids.content_digest(b"ab", b"c") != ids.content_digest(b"a", b"bc")
    assert len(ids.content_digest()) == 16


# --- routing ------------------------------------------------------------------------------------

TABLE = RoutingTable(version=1, mailbox_shards=8, writer_shards=4)


def test_the_hash_is_xxh64_of_the_length_prefixed_tenant_and_the_id():
    assert route_hash("acme", "ann") == xxh64_intdigest(b"\0\0\0\x04acmeann")
    assert route_hash("ac", "meann") != route_hash("acme", "ann")


@pytest.mark.parametrize(
    ("tenant", "entity", "route"),
    [
        ("acme", "ann", 0xF17392297218E4CE),
        ("", "", 0x3AEFA6FD5CF2DEB4),
        ("tenant/1", "user:😀", 0xE736E094499D456A),
    ],
)
def test_routing_vectors(tenant, entity, route):
    """Published: a client of another language must come to the same slot and lane."""
    assert route_hash(tenant, entity) == route


def test_slot_and_lane_are_disjoint_bits():
    assert slot_of(0x3FFF) == 0x3FFF
    assert slot_of(1 << 14) == 0
    assert lane_of(0x3FFF) == 0
    assert lane_of(63 << 14) == 63
    assert lane_of(1 << 20) == 0


@given(texts, texts)
def test_every_user_has_one_shard_and_lane(tenant, user):
    shard, lane = TABLE.mailbox(TenantId(tenant), UserId(user))
    route = route_hash(tenant, user)
    assert shard == slot_of(route) % 8
    assert lane == lane_of(route)
    assert 0 <= TABLE.writer_shard(TenantId(tenant), user) < 4
    assert TABLE.connection_shard(TenantId(tenant), UserId(user)) == 0


def test_a_dedicated_tenant_stays_on_its_shards():
    table = replace(TABLE, dedicated={TenantId("big"): (6, 7)})
    shards = {table.mailbox(TenantId("big"), UserId(f"u{i}"))[0] for i in range(200)}
    assert shards == {6, 7}
    others = {table.mailbox(TenantId("small"), UserId(f"u{i}"))[0] for i in range(400)}
    assert others == set(range(8))


@pytest.mark.parametrize(
    "changes",
    [
        {"mailbox_shards": 0},
        {"mailbox_shards": 3},
        {"writer_shards": 6},
        {"connection_shards": -2},
        {"dedicated": {"t": ()}},
        {"dedicated": {"t": (8,)}},
    ],
)
def test_a_table_that_cannot_route_is_refused(changes):
    with pytest.raises(QimError):
        replace(TABLE, **changes)


# --- seq ----------------------------------------------------------------------------------------


@given(st.integers(1, parameters.SHARD_EPOCH_MAX), st.integers(0, parameters.LOG_OFFSET_MAX))
def test_a_seq_gives_back_its_epoch_and_offset(epoch, offset):
    value = seq.mailbox_seq(epoch, offset)
    assert (seq.epoch_of(value), seq.offset_of(value)) == (epoch, offset)
    assert seq.SEQ_NONE < value <= seq.SEQ_MAX
    assert seq.before_offset(epoch, offset) == value - 1
    assert value.to_bytes(8, "big")[0] < 0x80


@given(
    st.tuples(st.integers(1, 4095), st.integers(0, (1 << 43) - 1)),
    st.tuples(st.integers(1, 4095), st.integers(0, (1 << 43) - 1)),
)
def test_seqs_are_ordered_by_epoch_then_offset(left, right):
    assert (seq.mailbox_seq(*left) < seq.mailbox_seq(*right)) == (left < right)


@pytest.mark.parametrize(("epoch", "offset"), [(0, 0), (4096, 0), (1, -1), (1, 1 << 43)])
def test_a_seq_outside_its_bits_is_refused(epoch, offset):
    with pytest.raises(ValueError, match="outside"):
        seq.mailbox_seq(epoch, offset)


# --- clock --------------------------------------------------------------------------------------


def test_event_times_never_go_back():
    """WR-05: created_at never decreases within a conversation (clamped to the previous one)."""
    assert event_time_ms(10, 5) == 10
    assert event_time_ms(5, 5) == 5
    assert event_time_ms(3_000, 5_000) == 5_000


def test_a_clock_far_back_refuses():
    with pytest.raises(QimError) as refused:
        event_time_ms(2_999, 5_000)
    assert refused.value.code is ErrorCode.UNAVAILABLE


# --- dispatch plan ------------------------------------------------------------------------------


@given(st.sets(texts, max_size=40), st.integers(1, 7))
def test_every_recipient_is_in_one_chunk_of_its_shard_and_lane(users, size):
    chunks = plan_chunks(TABLE, TenantId("t"), map(UserId, users), size)
    placed = [
        (chunk.mailbox_shard, block.lane, user)
        for chunk in chunks
        for block in chunk.blocks
        for user in block.users
    ]
    assert sorted(user for _, _, user in placed) == sorted(users)
    assert all(TABLE.mailbox(TenantId("t"), user) == (shard, lane) for shard, lane, user in placed)
    assert placed == sorted(placed, key=lambda p: (p[0], p[1], p[2].encode()))
    assert all(1 <= sum(len(b.users) for b in chunk.blocks) <= size for chunk in chunks)
    for shard in {chunk.mailbox_shard for chunk in chunks}:
        own = [chunk for chunk in chunks if chunk.mailbox_shard == shard]
        assert [chunk.index for chunk in own] == list(range(len(own)))
        assert all(sum(len(b.users) for b in chunk.blocks) == size for chunk in own[:-1])


def test_a_plan_does_not_depend_on_the_order_of_its_members():
    users = [UserId(f"u{i}") for i in range(50)]
    plan = plan_chunks(TABLE, TenantId("t"), users, 3)
    assert plan == plan_chunks(TABLE, TenantId("t"), reversed(users), 3)


# --- lease --------------------------------------------------------------------------------------


def a_term():
    return Term(shard=0, epoch=7, owner="me", self_fence_deadline_s=12.0, renewed_at_s=100.0)


def test_a_term_writes_until_its_self_fence_deadline():
    term = a_term()
    assert term.may_write(100.0)
    assert term.may_write(111.9)
    assert not term.may_write(112.0)


def test_a_renewal_counts_from_before_it_was_sent_and_never_goes_back():
    term = a_term()
    term.renewed(105.0)
    assert term.may_write(116.9)
    term.renewed(101.0)
    assert term.may_write(116.9)
    assert not term.may_write(117.0)


def test_an_ended_term_never_writes_again():
    term = a_term()
    term.end()
    term.renewed(1_000.0)
    assert not term.may_write(1_000.0)


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"writer_failover_wait_s": 15.0}, "writer_failover_wait"),
        ({"shard_lease_ttl_s": 12.0}, "shard_lease_ttl"),
        ({"writer_self_fence_deadline_s": 15.0}, "shard_lease_ttl"),
        ({"lease_renew_interval_s": 12.0}, "writer_self_fence_deadline"),
        ({"lease_renew_retry_s": 5.0}, "lease_renew_interval"),
        ({"lease_renew_retry_s": 0.0}, "lease_renew_retry"),
        ({"writer_failover_wait_s": float("nan")}, "writer_failover_wait"),
    ],
)
def test_lease_times_that_break_the_inequality_are_refused(changes, field):
    with pytest.raises(QimError) as refused:
        LeaseParameters(**changes)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert refused.value.field == field


def test_the_default_lease_times_are_the_seeds():
    lease = LeaseParameters()
    assert (lease.writer_failover_wait_s, lease.shard_lease_ttl_s) == (25, 15)
    assert (lease.writer_self_fence_deadline_s, lease.lease_renew_interval_s) == (12, 5)
    assert lease.absence_wait_s == 10


def test_every_relation_between_limits_holds():
    assert parameters.RELATIONS
    assert [meaning for meaning, holds in parameters.RELATIONS if not holds] == []


def test_a_relation_that_does_not_hold_stops_the_import():
    from pathlib import Path

    source = Path(parameters.__file__).read_text(encoding="utf-8")
    broken = source.replace("PAGE_BYTES_MAX: Final = 1024 * 1024", "PAGE_BYTES_MAX: Final = 1024")
    assert broken != source
    with pytest.raises(AssertionError, match="a page holds one largest event"):
        exec(compile(broken, "parameters", "exec"), {"__name__": "qimd.core.parameters"})


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_status_that_grpc_knows_and_two_sentences(code):
    entry = ERRORS[code]
    assert entry.grpc_status in grpc.StatusCode.__members__
    assert entry.what_happened.endswith(".")
    assert entry.what_to_do.endswith((".", "it."))


def test_an_error_speaks_for_its_code():
    assert str(invalid("x is bad", "x")) == "INVALID_ARGUMENT: x is bad"
    assert unavailable("later").retryable
    assert not invalid("x", "x").retryable


def test_an_error_s_field_is_seen_from_the_whole_request():
    inner = QimError(ErrorCode.RATE_LIMITED, "too fast", field="body", retry_after_ms=7)
    outer = inner.inside("events[3]").inside("send")
    assert (outer.code, outer.field, outer.retry_after_ms) == (inner.code, "send.events[3].body", 7)
    assert inner.field == "body"
    assert QimError(ErrorCode.NOT_MEMBER, "no").inside("send").field == ""


@pytest.mark.parametrize("advice", [0, -5, 1, 70])
def test_rate_limited_always_says_when_to_come_back(advice):
    """LIM-01: retry_after_ms is always >= 1 in a RATE_LIMITED answer."""
    error = QimError(ErrorCode.RATE_LIMITED, "slow", retry_after_ms=advice)
    assert error.retry_after_ms == max(1, advice)


# --- records ------------------------------------------------------------------------------------


def test_a_member_sees_from_its_addition_to_its_own_removal():
    interval = Interval(added_seq=3, removed_seq=7)
    assert [n for n in range(1, 10) if interval.sees(n)] == [3, 4, 5, 6, 7]
    assert Interval(added_seq=3).sees(1 << 50)
