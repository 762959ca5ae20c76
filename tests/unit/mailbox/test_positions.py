"""Pages, cursors and ACKs: no position that is accepted may hide an event."""

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import ACME, KEYS, World, device, user_in_lane

from qimd.contract.cursor import CursorClaims, sign_cursor
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import TenantId, UserId
from qimd.core.parameters import BUCKET_DAYS_KEPT, PAGE_BYTES_MAX, PAGE_ENTRY_OVERHEAD_BYTES
from qimd.core.records import DeviceKey, UserKey
from qimd.core.seq import MailboxSeq, mailbox_seq
from qimd.ports.mailbox import DeviceState
from qimd.ports.services import Page, Rebased

DAY_MS = 24 * 3600 * 1000


async def pulled(world: World, owner: DeviceKey, token: bytes, after: int, limit: int = 0) -> Page:
    page = await world.service.pull(owner, token, after, limit)
    assert isinstance(page, Page)
    return page


def refused(error: pytest.ExceptionInfo[QimError]) -> ErrorCode:
    return error.value.code


async def test_pages_end_where_w_stands_and_cover_all_of_it() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member, other = (user_in_lane(world.table, lane) for lane in (3, 7))
        async with world.serving() as serving:
            _, events = await world.chat("c", [member], 6)
            await world.chat("elsewhere", [other], 3)
            await serving.reads()
            owner = device(member)
            opened = await world.service.open_device(owner)
            assert (opened.last_applied, opened.floor) == (0, 0)
            first = await pulled(world, owner, opened.cursor_token, 0, limit=4)
            assert first.more
            assert first.covered_through == first.events[-1].seq
            second = await pulled(world, owner, opened.cursor_token, first.covered_through, limit=4)
            assert not second.more
            # An idle lane's W rises with its shard.
            assert second.covered_through == serving.w(member) == serving.state.position
            assert [one.encoded for one in second.events] == [one.encoded for one in events[3:]]
            exact = await pulled(world, owner, opened.cursor_token, 0, limit=7)
            assert (len(exact.events), exact.more) == (7, False)


async def test_an_owner_that_slept_through_its_succession_judges_nobody() -> None:
    """A position that its successor handed out lies beyond its own W, and is no client's fault."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as stopped:
            opened = await world.service.open_device(owner)
            # SIGSTOP, as the process finds it when it goes on: its term has run out.
            stopped.term.renewed_at_s = float("-inf")
            beyond = mailbox_seq(1, 10)
            for call in (
                world.service.pull(owner, opened.cursor_token, beyond, 0),
                world.service.ack(owner, beyond, beyond),
                world.service.read(owner.owner, beyond, 0),
                world.service.open_device(owner),
            ):
                with pytest.raises(QimError) as error:
                    await call
                assert refused(error) is ErrorCode.NOT_OWNER


async def test_a_position_from_before_a_lost_tail_is_waited_for_and_not_refused() -> None:
    """The store lost its end, the log has it, and the lane can't be written again just now."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            world.cluster.sync()
            await world.chat("c", [member], 3)
            await serving.reads()
            opened = await world.service.open_device(owner)
            page = await pulled(world, owner, opened.cursor_token, 0)
        world.cluster.lose_tail()
        fault = world.cluster.faults.reject(
            "apply", lambda step: bool(getattr(step, "records", ()))
        )
        async with world.serving() as serving:
            await runtime.until(lambda: serving.shard.caught_up, 60)
            assert serving.w(member) < page.covered_through
            position = page.covered_through
            for call in (
                world.service.pull(owner, opened.cursor_token, position, 0),
                world.service.ack(owner, position, position),
                world.service.read(owner.owner, position, 0),
            ):
                with pytest.raises(QimError) as error:
                    await call
                assert refused(error) is ErrorCode.UNAVAILABLE
            with pytest.raises(QimError) as error:
                await world.service.pull(owner, opened.cursor_token, mailbox_seq(1, 99), 0)
            assert refused(error) is ErrorCode.CURSOR_INVALID
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging, 120)
            again = await pulled(world, owner, opened.cursor_token, position)
            assert (again.events, again.covered_through) == ([], position)


async def test_a_page_holds_at_most_a_mebibyte_and_at_least_one_event() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 0)
            events = [await world.send(key, "x" * 65_000, member) for _ in range(40)]
            await world.dispatch(*events)
            await serving.reads()
            opened = await world.service.open_device(device(member))
            after, counted = 0, 0
            while True:
                page = await pulled(world, device(member), opened.cursor_token, after)
                size = sum(len(one.encoded) + PAGE_ENTRY_OVERHEAD_BYTES for one in page.events)
                assert size <= PAGE_BYTES_MAX
                counted += len(page.events)
                after = page.covered_through
                if not page.more:
                    break
                assert size + 65_000 > PAGE_BYTES_MAX - 65_000
            assert counted == 41


async def test_an_ack_beyond_w_is_refused_and_changes_nothing() -> None:
    """MBX-06: ack 10 when W = 9 is CURSOR_INVALID (also −1 and 2^63−1); stored stays; 8 after 9 is
    a no-op; when 10 arrives it is unread on every device.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        phone, tablet = device(member), device(member, "tablet")
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 8)
            await serving.reads()
            opened = await world.service.open_device(phone)
            other = await world.service.open_device(tablet)
            page = await pulled(world, phone, opened.cursor_token, 0)
            nine = page.covered_through
            ten = mailbox_seq(1, 9)
            assert nine == mailbox_seq(1, 8) == serving.w(member)
            assert await world.service.ack(phone, nine, nine) == nine
            for beyond in (ten, -1, 2**63 - 1, 2**64 - 1):
                with pytest.raises(QimError) as error:
                    await world.service.ack(phone, beyond, nine)
                assert refused(error) is ErrorCode.CURSOR_INVALID
                with pytest.raises(QimError) as error:
                    await world.service.pull(phone, opened.cursor_token, beyond, 0)
                assert refused(error) is ErrorCode.CURSOR_INVALID
            assert await world.service.ack(phone, mailbox_seq(1, 7), nine) == nine
            await world.dispatch(await world.send(key, "ten", member))
            await serving.reads()
            for owner, token in ((phone, opened.cursor_token), (tablet, other.cursor_token)):
                again = await pulled(world, owner, token, nine)
                assert [one.seq for one in again.events] == [ten]
            assert (await world.service.open_device(phone)).last_applied == nine


async def test_an_ack_beyond_what_was_handed_is_refused_although_w_is_further() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            await world.chat("c", [member], 8)
            await serving.reads()
            opened = await world.service.open_device(owner)
            page = await pulled(world, owner, opened.cursor_token, 0, limit=3)
            with pytest.raises(QimError) as error:
                await world.service.ack(owner, serving.w(member), page.covered_through)
            assert refused(error) is ErrorCode.CURSOR_INVALID
            # A new stream has handed nothing yet: what was stored before may be said again.
            await world.service.ack(owner, page.covered_through, page.covered_through)
            nothing = MailboxSeq(0)
            assert (
                await world.service.ack(owner, page.covered_through, nothing)
                == page.covered_through
            )
            with pytest.raises(QimError):
                await world.service.ack(owner, page.covered_through + 1, nothing)
            assert world.zero("cursor_advanced_by_push_total") == 0


async def test_a_position_that_something_else_than_a_pull_moved_is_counted() -> None:
    """cursor_advanced_by_push_total: stored beyond every covered_through that was handed."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            await world.service.open_device(owner)
            assert world.zero("cursor_advanced_by_push_total") == 0
            # What a PUSH that moves the cursor would do.
            await world.backends.mailbox.ack(owner, MailboxSeq(serving.w(member)), MailboxSeq(0))
            await world.service.open_device(owner)
            assert world.zero("cursor_advanced_by_push_total") == 1


async def test_a_cursor_is_bound_to_device_user_tenant_shard_lane_and_epoch() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, shards=2)
        member = user_in_lane(world.table, 3, shard=0)
        neighbour = user_in_lane(world.table, 7, shard=0)
        owner = device(member)
        async with world.serving(), world.serving(1):
            claims = CursorClaims(0, 3, 1, owner, runtime.wall_ms(), "k1")
            await pulled(world, owner, sign_cursor(claims, KEYS), 0)
            others = [
                CursorClaims(1, 3, 1, owner, 1, "k1"),
                CursorClaims(0, 4, 1, owner, 1, "k1"),
                CursorClaims(0, 3, 2, owner, 1, "k1"),
                CursorClaims(0, 3, 1, device(member, "tablet"), 1, "k1"),
                CursorClaims(0, 7, 1, device(neighbour), 1, "k1"),
                CursorClaims(0, 3, 1, DeviceKey(TenantId("rival"), member, owner.device), 1, "k1"),
            ]
            for wrong in others:
                with pytest.raises(QimError) as error:
                    await world.service.pull(owner, sign_cursor(wrong, KEYS), 0, 0)
                assert refused(error) is ErrorCode.CURSOR_INVALID


async def test_a_garbled_cursor_is_typed_and_nothing_else_breaks() -> None:
    """AUT-07: a last character replaced by U+00E9, or no signature, is CURSOR_INVALID."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        owner = device(user_in_lane(world.table, 3))
        async with world.serving():
            token = (await world.service.open_device(owner)).cursor_token
            for garbled in (token[:-1] + "é".encode(), token[:-32], b"", token + b"\x00", b"junk"):
                with pytest.raises(QimError) as error:
                    await world.service.pull(owner, garbled, 0, 0)
                assert refused(error) is ErrorCode.CURSOR_INVALID
            await pulled(world, owner, token, 0)


@pytest.mark.parametrize("limit", [-1, 501])
async def test_a_limit_outside_a_pages_is_refused_by_name(limit: int) -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        owner = device(user_in_lane(world.table, 3))
        async with world.serving():
            token = (await world.service.open_device(owner)).cursor_token
            with pytest.raises(QimError) as error:
                await world.service.pull(owner, token, 0, limit)
            assert (refused(error), error.value.field) == (ErrorCode.INVALID_ARGUMENT, "limit")


async def test_a_shard_that_is_not_owned_here_is_not_owner() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        owner = device(user_in_lane(world.table, 3))
        with pytest.raises(QimError) as error:
            await world.service.open_device(owner)
        assert refused(error) is ErrorCode.NOT_OWNER


async def test_a_shard_serves_nobody_until_w_passed_the_end_seen_at_start() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        await world.chat("c", [member], 3)
        full = world.cluster.faults.refuse("apply", times=None)
        async with world.serving() as serving:
            await runtime.advance(5)
            with pytest.raises(QimError) as error:
                await world.service.open_device(device(member))
            assert refused(error) is ErrorCode.UNAVAILABLE
            full.stop()
            await serving.reads()
            assert len(await world.pull_all(member)) == 4


async def test_a_trimmed_mailbox_names_what_is_lost_before_any_event() -> None:
    """MBX-08: the answer names the range that can't be served, also when all is trimmed, and for a
    cursor of an older epoch; never a plain success behind a gap, never an empty "up to date".
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 2)
            await serving.reads()
            opened = await world.service.open_device(owner)
            runtime.step_wall((BUCKET_DAYS_KEPT - 10) * DAY_MS)
            late = [await world.send(key, f"late {n}", member) for n in range(5)]
            await world.dispatch(*late)
            await serving.reads()
            runtime.step_wall(12 * DAY_MS)
            await runtime.advance(120)
            # Offsets 0 to 2 are older than the buckets kept.
            floor = MailboxSeq(mailbox_seq(1, 3) - 1)
            assert serving.shard.floor == floor
            answer = await world.service.pull(owner, opened.cursor_token, 0, 0)
            assert isinstance(answer, Rebased)
            assert (answer.lost_from, answer.lost_through) == (1, floor)
            assert answer.last_applied == floor
            page = await pulled(world, owner, answer.cursor_token, answer.last_applied)
            assert [one.encoded for one in page.events] == [one.encoded for one in late]
            # The client may ack where it was told to go on.
            assert await world.service.ack(owner, floor, MailboxSeq(0)) == floor
            # A new device begins at the floor.
            assert (await world.service.open_device(device(member, "new"))).last_applied == floor
            # All of it goes, too.
            runtime.step_wall((BUCKET_DAYS_KEPT + 2) * DAY_MS)
            await runtime.advance(120)
            assert await world.seqs_of(member) == []
            answer = await world.service.pull(owner, opened.cursor_token, floor, 0)
            assert isinstance(answer, Rebased)
            assert answer.lost_through == serving.shard.floor == serving.w(member)


async def test_a_floor_never_goes_back_and_never_passes_a_lane_that_lags() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            _, events = await world.chat("c", [slow, other], 3)
            fault = world.cluster.faults.reject(
                "apply",
                lambda step: any(
                    record.ref.event_id == events[0].event_id
                    and any(block.lane == 3 for block in record.blocks)
                    for record in step.records  # type: ignore[attr-defined]
                ),
            )
            await serving.reads()
            runtime.step_wall((BUCKET_DAYS_KEPT + 2) * DAY_MS)
            await runtime.advance(120)
            assert serving.shard.floor <= serving.w(slow)
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            await runtime.advance(120)
            assert serving.shard.floor == serving.state.position


async def test_a_page_read_while_entries_go_is_answered_as_rebased() -> None:
    """The floor rises first, and is looked at last."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            token = (await world.service.open_device(owner)).cursor_token
            world.cluster.faults.delay(100.0, "events")
            answers: list[Page | Rebased] = []

            async def pull() -> None:
                answers.append(await world.service.pull(owner, token, 0, 0))

            runtime.spawn(pull(), "pull")
            await runtime.settle()
            runtime.step_wall((BUCKET_DAYS_KEPT + 2) * DAY_MS)
            await runtime.advance(120)
            assert isinstance(answers[0], Rebased)


async def test_the_floor_is_up_for_readers_before_anything_below_it_goes() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            token = (await world.service.open_device(owner)).cursor_token
            # The entries go, and the shard does not hear of it.
            lost = world.cluster.faults.lose_reply("expire_buckets", times=5)
            runtime.step_wall((BUCKET_DAYS_KEPT + 2) * DAY_MS)
            await runtime.until(lambda: lost.hits > 0)
            assert serving.state.floor == 0
            assert await world.seqs_of(member) == []
            assert isinstance(await world.service.pull(owner, token, 0, 0), Rebased)


async def test_an_internal_read_moves_no_device() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            page = await world.service.read(UserKey(ACME, member), 0, 0)
            assert (len(page.events), page.covered_through) == (4, serving.w(member))
            with pytest.raises(QimError) as error:
                await world.service.read(UserKey(ACME, member), serving.w(member) + 1, 0)
            assert refused(error) is ErrorCode.INVALID_ARGUMENT
            opened = await world.service.open_device(device(member))
            assert opened.last_applied == 0


async def test_two_tenants_with_equal_ids_never_meet() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            await world.chat("c", [member], 2)
            await serving.reads()
            rival = UserKey(TenantId("rival"), UserId(member))
            page = await world.service.read(rival, 0, 0)
            assert page.events == []


async def test_a_device_step_of_unknown_outcome_is_issued_again() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            await world.chat("c", [member], 2)
            await serving.reads()
            world.cluster.faults.lose_reply("open_device", times=2)
            world.cluster.faults.lose_reply("ack", times=2)
            acked: list[int] = []

            async def go() -> None:
                await world.service.open_device(owner)
                w = MailboxSeq(serving.w(member))
                acked.append(await world.service.ack(owner, w, w))

            runtime.spawn(go(), "device")
            await runtime.until(lambda: bool(acked))
            state = await world.backends.mailbox.open_device(owner, MailboxSeq(0))
            assert state.value == DeviceState(acked[0], acked[0])  # type: ignore[union-attr]
