"""Session lists and read marks: order, pages over moving items, clamping, counting."""

from dataclasses import replace

import pytest
from tests.unit.session.world import World, user, world

from qim.session.v1.session_service_pb2 import (
    DescribePartitionsRequest,
    ListSessionsRequest,
    MarkReadRequest,
)
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Refusal
from qimd.core.parameters import SESSION_LISTING_EXPIRY_S, SESSION_LISTINGS_MAX
from qimd.core.records import EventKind, SessionItem, UserKey
from qimd.session.handlers import SessionHandlers
from qimd.session.listing import Listing, Listings, PageToken

HIGHEST = 2**64 - 1


def names(items: list[SessionItem]) -> list[str]:
    return [item.key.conversation for item in items]


async def busy(place: World, count: int) -> None:
    """`count` conversations of u, the last one the most recently active."""
    for index in range(count):
        await place.chat.create(f"c{index:02}", "u", "v")
        await place.runtime.advance(0.01)


# --- lists ----------------------------------------------------------------------------------


async def test_the_most_recently_active_comes_first_with_its_last_event() -> None:
    async with world() as place:
        one = await place.chat.create("one", "u", "v")
        await place.runtime.advance(0.01)
        await place.chat.create("two", "u", "v")
        await place.runtime.advance(0.01)
        event = await place.chat.say(one, "v", b"\x00\xffhello")
        await place.settle()
        items = await place.list_all("u")
        assert names(items) == ["one", "two"]
        summary = items[0].last_event
        assert summary is not None
        assert summary.event_id == event.event_id
        assert (summary.conversation_seq, summary.kind) == (2, EventKind.MESSAGE)
        assert (summary.sender, summary.preview) == ("v", b"\x00\xffhello")
        assert items[0].activity_ms == event.created_at_ms
        assert items[1].last_event is not None
        assert items[1].last_event.kind == EventKind.MEMBERSHIP


async def test_equal_activity_is_ordered_by_conversation_id() -> None:
    async with world() as place:
        for name in ("b", "a", "c"):
            await place.chat.create(name, "u", "v")
        await place.settle()
        assert names(await place.list_all("u", limit=1)) == ["c", "b", "a"]


async def test_a_removed_member_sees_its_removal_and_nothing_later() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v", b"before")
        await place.chat.change(key, removed=["u"])
        await place.chat.say(key, "v", b"after")
        await place.settle()
        (item,) = await place.list_all("u")
        assert item.last_event is not None
        assert (item.last_event.conversation_seq, item.last_event.kind) == (
            3,
            EventKind.MEMBERSHIP,
        )
        assert item.unread == 1


async def test_pages_hold_what_was_asked_for_and_join_to_the_whole_list() -> None:
    async with world() as place:
        await busy(place, 7)
        whole = names(await place.list_all("u", limit=200))
        assert whole == [f"c{index:02}" for index in range(6, -1, -1)]
        for limit in (1, 2, 3, 6, 7, 8):
            assert names(await place.list_all("u", limit=limit)) == whole


async def test_a_moving_item_is_neither_skipped_nor_doubled() -> None:
    async with world() as place:
        await busy(place, 9)
        first, token = await place.service.list(user("u"), b"", 3)
        assert names(list(first)) == ["c08", "c07", "c06"]
        # One that was shown moves, and so do two that were not.
        for name in ("c07", "c01", "c04"):
            await place.runtime.advance(0.01)
            key = next(key for key in place.chat.members if key.conversation == name)
            await place.chat.say(key, "v")
        await place.settle()
        rest: list[SessionItem] = []
        while token:
            page, token = await place.service.list(user("u"), token, 3)
            rest += page
        shown = names(list(first)) + names(rest)
        assert sorted(shown) == [f"c{index:02}" for index in range(9)]
        assert len(set(shown)) == 9


async def test_an_item_that_moves_while_the_end_is_swept_is_still_shown_once() -> None:
    async with world() as place:
        await busy(place, 6)
        shown: list[str] = []
        token = b""
        moves = iter(["c00", "c01", "c00", "c02", "c01", "c05"])
        while True:
            page, token = await place.service.list(user("u"), token, 1)
            shown += names(list(page))
            if not token:
                break
            name = next(moves, None)
            if name is not None:
                await place.runtime.advance(0.01)
                key = next(key for key in place.chat.members if key.conversation == name)
                await place.chat.say(key, "v")
                await place.settle()
        assert sorted(shown) == [f"c{index:02}" for index in range(6)]


async def test_a_page_whose_answer_was_lost_can_be_asked_for_again() -> None:
    async with world() as place:
        await busy(place, 5)
        _, token = await place.service.list(user("u"), b"", 2)
        page, after = await place.service.list(user("u"), token, 2)
        again, after_again = await place.service.list(user("u"), token, 2)
        assert names(list(again)) == names(list(page)) == ["c02", "c01"]
        assert after_again == after
        last, end = await place.service.list(user("u"), after, 2)
        assert (names(list(last)), end) == (["c00"], b"")
        with pytest.raises(QimError) as caught:
            await place.service.list(user("u"), token, 2)
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("token", [b"x", b"\x00" * 20, b"\xff" * 20, b"junk" * 100])
async def test_a_page_token_that_is_none_is_refused(token: bytes) -> None:
    async with world() as place:
        await busy(place, 3)
        with pytest.raises(QimError) as caught:
            await place.service.list(user("u"), token, 2)
        assert (caught.value.code, caught.value.field) == (
            ErrorCode.INVALID_ARGUMENT,
            "page_token",
        )


async def test_another_user_s_page_token_is_refused() -> None:
    async with world(partitions=1) as place:
        await busy(place, 3)
        _, token = await place.service.list(user("u"), b"", 2)
        with pytest.raises(QimError):
            await place.service.list(user("v"), token, 2)


async def test_an_expired_listing_says_to_start_again() -> None:
    async with world() as place:
        await busy(place, 3)
        _, token = await place.service.list(user("u"), b"", 2)
        await place.runtime.advance(SESSION_LISTING_EXPIRY_S)
        with pytest.raises(QimError, match="start again from the first page"):
            await place.service.list(user("u"), token, 2)


async def test_a_limit_is_taken_at_its_bound_and_refused_one_past() -> None:
    async with world() as place:
        await busy(place, 1)
        await place.service.list(user("u"), b"", 200)
        with pytest.raises(QimError) as caught:
            await place.service.list(user("u"), b"", 201)
        assert caught.value.field == "limit"


def test_listings_are_bounded_and_the_longest_unused_gives_way() -> None:
    owner: UserKey = user("u")
    listings = Listings(2, 10.0)
    tokens = [PageToken(bytes([index]) * 16, 0) for index in range(3)]
    for token in tokens:
        listings.keep(token.listing_id, Listing(owner), now_s=0)
    assert len(listings) == 2 < SESSION_LISTINGS_MAX
    with pytest.raises(QimError):
        listings.find(owner, tokens[0], now_s=0)
    assert listings.find(owner, tokens[2], now_s=9.9).user == owner


# --- read marks -----------------------------------------------------------------------------


async def test_clearing_keeps_the_row_its_order_and_its_last_event() -> None:
    """SES-02: the row is still listed with unread = 0, same last message and order; clearing when
    nothing is unread also succeeds and resets a drifted counter."""
    async with world() as place:
        one = await place.chat.create("one", "u", "v")
        await place.runtime.advance(0.01)
        await place.chat.create("two", "u", "v")
        await place.chat.say(one, "v")
        await place.settle()
        before = await place.list_all("u")
        assert await place.service.mark_read(user("u"), one, HIGHEST) == (2, 0)
        after = await place.list_all("u")
        assert names(after) == names(before)
        assert [item.last_event for item in after] == [item.last_event for item in before]
        assert [item.unread for item in after] == [0, 0]
        partition, _ = place.table.mailbox(user("u").tenant, user("u").user)
        rows = place.cluster.projection.partitions[partition].rows[user("u")]
        rows[one] = replace(rows[one], unread=41)
        assert await place.service.mark_read(user("u"), one, HIGHEST) == (2, 0)
        assert await place.unread("u") == {"one": 0, "two": 0}


async def test_marks_are_each_user_s_own() -> None:
    """SES-04: u.read = 5 and unread = 4 while the peer's mark is 9."""
    async with world() as place:
        key = await place.chat.create("direct", "u", "v")
        for _ in range(8):
            await place.chat.say(key, "w")
        await place.settle()
        assert await place.service.mark_read(user("u"), key, 5) == (5, 4)
        assert await place.service.mark_read(user("v"), key, 9) == (9, 0)
        (item,) = await place.list_all("u")
        assert (item.read_through, item.unread) == (5, 4)
        (peer,) = await place.list_all("v")
        assert (peer.read_through, peer.unread) == (9, 0)


async def test_a_mark_never_goes_back() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u", "v")
        for _ in range(4):
            await place.chat.say(key, "v")
        await place.settle()
        assert await place.service.mark_read(user("u"), key, 4) == (4, 1)
        assert await place.service.mark_read(user("u"), key, 2) == (4, 1)
        assert await place.service.mark_read(user("u"), key, 0) == (4, 1)


async def test_a_mark_survives_a_restart_and_a_rebuild_of_the_rows() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        for _ in range(3):
            await place.chat.say(key, "v")
        await place.settle()
        await place.service.mark_read(user("u"), key, 3)
        await place.stop()
        place.cluster.projection.partitions.clear()
        await place.restart()
        (item,) = await place.list_all("u")
        assert (item.read_through, item.unread) == (3, 1)


async def test_a_message_that_comes_between_count_and_mark_is_not_lost() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.settle()
        rule = place.cluster.faults.delay(1.0, "count_unread")
        marked: list[tuple[int, int]] = []

        async def mark() -> None:
            marked.append(await place.service.mark_read(user("u"), key, 2))

        place.runtime.spawn(mark(), "mark")
        await place.settle()
        await place.chat.say(key, "v")
        await place.runtime.advance(2)
        rule.stop()
        assert marked == [(2, 1)]
        assert await place.unread("u") == {"c": 1}


async def test_a_membership_that_changes_under_a_mark_is_counted_by_its_new_intervals() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.settle()
        place.cluster.faults.delay(1.0, "count_unread")
        marked: list[tuple[int, int]] = []

        async def mark() -> None:
            marked.append(await place.service.mark_read(user("u"), key, 1))

        place.runtime.spawn(mark(), "mark")
        await place.settle()
        await place.chat.change(key, removed=["u"])
        await place.chat.say(key, "v", b"not for u")
        await place.chat.change(key, added=["u"])
        await place.runtime.advance(2)
        assert marked == [(1, 1)]


async def test_a_membership_that_changes_before_the_row_is_read_is_counted_too() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.settle()
        place.cluster.faults.delay(1.0, "row")
        marked: list[tuple[int, int]] = []

        async def mark() -> None:
            marked.append(await place.service.mark_read(user("u"), key, 1))

        place.runtime.spawn(mark(), "mark")
        await place.settle()
        await place.chat.change(key, removed=["u"])
        await place.chat.say(key, "v", b"not for u")
        await place.chat.change(key, added=["u"])
        await place.runtime.advance(2)
        assert marked == [(1, 1)]


@pytest.mark.parametrize("fault", ["lose_reply", "land_late"])
async def test_a_mark_whose_outcome_is_unknown_is_made_again(fault: str) -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.settle()
        if fault == "lose_reply":
            place.cluster.faults.lose_reply("mark_read")
        else:
            place.cluster.faults.land_late("mark_read", after_s=5)
        marked: list[tuple[int, int]] = []

        async def mark() -> None:
            marked.append(await place.service.mark_read(user("u"), key, HIGHEST))

        place.runtime.spawn(mark(), "mark")
        await place.runtime.advance(10)
        assert marked == [(2, 0)]


async def test_a_mark_that_can_t_be_stored_now_is_unavailable() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        place.cluster.faults.refuse("mark_read", refusal=Refusal.NO_SPACE)
        with pytest.raises(QimError) as caught:
            await place.service.mark_read(user("u"), key, 1)
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_who_was_never_a_member_marks_nothing() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        with pytest.raises(QimError) as caught:
            await place.service.mark_read(user("x"), key, 1)
        assert caught.value.code is ErrorCode.NOT_MEMBER


# --- handlers -------------------------------------------------------------------------------


async def test_the_internal_calls_answer_as_the_streams_do() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.settle()
        handlers = SessionHandlers(place.service)
        listed = await handlers.ListSessions(ListSessionsRequest(tenant_id="acme", user_id="u"))
        assert [(row.conversation_id, row.unread_count) for row in listed.sessions] == [("c", 1)]
        marked = await handlers.MarkRead(
            MarkReadRequest(
                tenant_id="acme", user_id="u", conversation_id="c", read_through_seq=HIGHEST
            )
        )
        assert (marked.read_through_seq, marked.unread_count) == (2, 0)
        described = await handlers.DescribePartitions(DescribePartitionsRequest())
        assert [(p.partition, p.ready, p.dirty) for p in described.partitions] == [
            (0, True, ""),
            (1, True, ""),
        ]
        assert sum(p.next_offset for p in described.partitions) >= 2
        with pytest.raises(QimError) as caught:
            await handlers.ListSessions(ListSessionsRequest(tenant_id="acme"))
        assert caught.value.field == "user_id"
