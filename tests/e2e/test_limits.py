"""Every limit of design section 13 on a real server: at it, one past it, and nothing written.

Three are shown elsewhere, since a client can't meet them exactly. What a stream's queue holds
depends on what gRPC holds beside it: the byte where SLOW_CONSUMER begins is a test of
tests/unit/connection/test_push.py, and that it comes one of test_cases.py (GW-05). An outbox does
not grow while its log works: 10,000 waiting events are one of tests/unit/writer/test_service.py.
Growing a conversation to 100,000 members takes minutes of telling them of one another: that is
tests/unit/writer/test_membership_limit.py.
"""

import asyncio
from collections.abc import Callable

import grpc
import pytest
from tests.e2e.support.stream import Stream, message, refusal
from tests.e2e.support.tenancy import Operator, Tenancy, fresh, refused

from qim.conversation.v1.event_pb2 import Reaction
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import OutgoingEvent
from qim.tenant.v1 import tenant_service_pb2 as tenant_pb
from qim.tenant.v1.tenant_service_pb2_grpc import TenantServiceStub
from qimd.core.parameters import (
    BODY_BYTES_MAX,
    FRAME_BYTES_MAX,
    HISTORY_PAGE_DEFAULT,
    ID_BYTES_MAX,
    MEMBERSHIP_CHANGE_USERS_MAX,
    PAGE_BYTES_MAX,
    PAGE_EVENTS_MAX,
    REACTION_BYTES_MAX,
    SEND_EVENTS_MAX,
    SESSION_PAGE_DEFAULT,
    SESSION_PAGE_MAX,
)

INVALID = "INVALID_ARGUMENT"


def longest(name: str, size: int = ID_BYTES_MAX) -> str:
    """An id of `size` bytes, of characters of three bytes as far as they fit."""
    head = fresh(name)
    characters, rest = divmod(size - len(head.encode()), 3)
    return head + "語" * characters + "x" * rest


def test_the_limits_are_those_of_the_design() -> None:
    assert (ID_BYTES_MAX, BODY_BYTES_MAX, SEND_EVENTS_MAX) == (128, 65_536, 100)
    assert (PAGE_EVENTS_MAX, PAGE_BYTES_MAX) == (500, 1_048_576)


# --- ids --------------------------------------------------------------------------------------


async def test_ids_of_128_bytes_are_good_in_every_place(
    tenancy: Tenancy, operator: Operator
) -> None:
    user, conversation, name = longest("u"), longest("c"), longest("m")
    assert all(len(text.encode()) == ID_BYTES_MAX for text in (user, conversation, name))
    await operator.create(conversation, [user])
    async with tenancy.device(user, longest("d")) as stream:
        (result,) = await stream.say(conversation, message(name))
        assert result.accepted.conversation_seq == 2
        (event,) = [each.event for each in await stream.mailbox(2)][1:]
    assert (event.conversation_id, event.sender_user_id) == (conversation, user)
    assert (event.client_msg_id, len(event.sender_device_id.encode())) == (name, ID_BYTES_MAX)


async def test_a_conversation_s_id_of_129_bytes_is_refused(
    tenancy: Tenancy, operator: Operator
) -> None:
    conversation = longest("c", ID_BYTES_MAX + 1)
    named = (INVALID, "conversation_id")
    assert await refused(operator.create(conversation, ["u"])) == named
    assert await refused(operator.add(conversation, ["u"])) == named
    assert await refused(operator.remove(conversation, ["u"])) == named
    assert await refused(operator.get(conversation)) == named
    assert await refused(operator.members(conversation)) == named
    async with tenancy.device("u") as stream:
        asked = gateway_pb2.Send(conversation_id=conversation, events=[message("m")])
        assert refusal(await stream.ask(send=asked)) == (INVALID, "send.conversation_id")
        asked_read = gateway_pb2.MarkRead(conversation_id=conversation)
        answer = await stream.ask(mark_read=asked_read)
        assert refusal(answer) == (INVALID, "mark_read.conversation_id")
        asked_history = gateway_pb2.PullHistory(conversation_id=conversation)
        answer = await stream.ask(pull_history=asked_history)
        assert refusal(answer) == (INVALID, "pull_history.conversation_id")
        asked_report = gateway_pb2.Report(
            kind=gateway_pb2.REPORT_KIND_GAP,
            conversation_id=conversation,
            from_conversation_seq=1,
            through_conversation_seq=1,
        )
        answer = await stream.ask(report=asked_report)
        assert refusal(answer) == (INVALID, "report.conversation_id")
        assert await stream.ping()


async def test_a_user_s_id_of_129_bytes_is_refused_and_no_one_is_added(operator: Operator) -> None:
    conversation, user = fresh("c"), longest("u", ID_BYTES_MAX + 1)
    refusal_of_creation = await refused(operator.create(conversation, ["ann", user]))
    assert refusal_of_creation == (INVALID, "member_user_ids[1]")
    assert await refused(operator.get(conversation)) == ("NOT_FOUND", "")
    await operator.create(conversation, ["ann"])
    assert await refused(operator.add(conversation, ["bob", user])) == (INVALID, "user_ids[1]")
    assert await refused(operator.remove(conversation, ["ann", user])) == (INVALID, "user_ids[1]")
    assert await operator.head(conversation) == 1
    assert [each.user_id for each in (await operator.members(conversation)).members] == ["ann"]


@pytest.mark.parametrize("claim", ["sub", "device", "tenant"])
async def test_a_token_with_an_id_of_129_bytes_is_refused(tenancy: Tenancy, claim: str) -> None:
    async with Stream(tenancy.server.grpc) as stream:
        token = tenancy.token("ann", **{claim: longest("x", ID_BYTES_MAX + 1)})
        assert refusal(await stream.auth(token)) == ("UNAUTHENTICATED", "")
        good = await stream.auth(tenancy.token("ann"))
        assert good.WhichOneof("frame") == "auth_ok"


async def test_a_tenant_s_id_has_128_bytes_at_most(tenancy: Tenancy) -> None:
    good, bad = longest("t"), longest("t", ID_BYTES_MAX + 1)
    key = tenant_pb.TenantKey(key_id=tenancy.key_id, public_key=tenancy.public_key)
    async with tenancy.server.channel() as channel:
        operator = Operator(tenancy, channel)
        create = TenantServiceStub(channel).CreateTenant
        for tenant, keys in ((bad, [key]), (good, [key])):
            call = operator.call(create, tenant_pb.CreateTenantRequest(tenant_id=tenant, keys=keys))
            if tenant == bad:
                assert await refused(call) == (INVALID, "tenant_id")
            else:
                assert (await call).tenant.tenant_id == good
        long_key = tenant_pb.TenantKey(key_id=longest("k", 129), public_key=tenancy.public_key)
        request = tenant_pb.CreateTenantRequest(tenant_id=fresh("t"), keys=[long_key])
        assert await refused(operator.call(create, request)) == (INVALID, "keys[0].key_id")
    async with Tenancy(tenancy.server, good).device("ann") as stream:
        assert stream.auth_ok.tenant_id == good


async def test_a_client_msg_id_of_129_bytes_refuses_its_own_event_alone(
    tenancy: Tenancy, operator: Operator
) -> None:
    conversation = fresh("c")
    await operator.create(conversation, ["ann"])
    async with tenancy.device("ann") as stream:
        long_id = longest("m", ID_BYTES_MAX + 1)
        alone = await stream.say(conversation, message(long_id))
        assert refusal(alone[0]) == (INVALID, "send.events[0].client_msg_id")
        assert await operator.head(conversation) == 1
        first, middle, last = await stream.say(
            conversation, message("m1"), message(long_id), message("m2")
        )
    assert refusal(middle) == (INVALID, "send.events[1].client_msg_id")
    assert [each.accepted.conversation_seq for each in (first, last)] == [2, 3]
    assert await operator.head(conversation) == 3


# --- SEND -------------------------------------------------------------------------------------


async def test_a_body_of_64_kib_is_exact_and_one_byte_more_is_refused(
    tenancy: Tenancy, operator: Operator
) -> None:
    conversation, body = fresh("c"), bytes(range(256)) * 256
    await operator.create(conversation, ["ann"])
    async with tenancy.device("ann") as stream:
        (refused_result,) = await stream.say(conversation, message("m1", body + b"x"))
        assert refusal(refused_result) == (INVALID, "send.events[0].message.body")
        assert await operator.head(conversation) == 1
        (result,) = await stream.say(conversation, message("m1", body))
        assert result.accepted.conversation_seq == 2
        (_, event) = await stream.history(conversation)
    assert event.message.body == body


async def test_a_send_takes_100_events_and_refuses_101_whole(
    tenancy: Tenancy, operator: Operator
) -> None:
    conversation = fresh("c")
    await operator.create(conversation, ["ann"])
    events = [message(f"m{number}") for number in range(SEND_EVENTS_MAX + 1)]
    async with tenancy.device("ann") as stream:
        for too_many in (events, []):
            asked = gateway_pb2.Send(conversation_id=conversation, events=too_many)
            assert refusal(await stream.ask(send=asked)) == (INVALID, "send.events")
        assert await operator.head(conversation) == 1
        results = await stream.say(conversation, *events[:-1])
    assert [each.accepted.conversation_seq for each in results] == list(range(2, 102))


async def test_a_reaction_has_1_to_128_bytes(tenancy: Tenancy, operator: Operator) -> None:
    conversation = fresh("c")
    await operator.create(conversation, ["ann"])

    def reaction(name: str, text: str, target: int = 1) -> OutgoingEvent:
        return OutgoingEvent(
            client_msg_id=name, reaction=Reaction(target_seq=target, reaction=text)
        )

    whole = "👍" * (REACTION_BYTES_MAX // 4)
    async with tenancy.device("ann") as stream:
        results = await stream.say(
            conversation,
            reaction("r1", whole + "x"),
            reaction("r2", ""),
            reaction("r3", "👍", target=99),
            reaction("r4", "👍", target=0),
        )
        assert [refusal(each) for each in results] == [
            (INVALID, "send.events[0].reaction.reaction"),
            (INVALID, "send.events[1].reaction.reaction"),
            (INVALID, "send.events[2].reaction.target_seq"),
            (INVALID, "send.events[3].reaction.target_seq"),
        ]
        assert await operator.head(conversation) == 1
        (good,) = await stream.say(conversation, reaction("r1", whole))
        assert good.accepted.conversation_seq == 2
        assert (await stream.history(conversation))[1].reaction.reaction == whole


async def test_a_frame_above_4_mib_costs_its_stream_alone(
    tenancy: Tenancy, operator: Operator
) -> None:
    conversation = fresh("c")
    await operator.create(conversation, ["ann", "bob"])
    events = [message(f"m{n}", bytes(BODY_BYTES_MAX)) for n in range(SEND_EVENTS_MAX)]
    async with tenancy.device("ann") as stream, tenancy.device("bob") as other:
        # As large as fits: each event takes a little more than its body.
        fitting = FRAME_BYTES_MAX // (BODY_BYTES_MAX + 64)
        results = await stream.say(conversation, *events[:fitting])
        assert all(each.accepted.conversation_seq for each in results)
        head = await operator.head(conversation)
        await stream.send(send=gateway_pb2.Send(conversation_id=conversation, events=events))
        ended = await stream.ended()
        assert ended.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await other.ping()
    assert await operator.head(conversation) == head


# --- members ----------------------------------------------------------------------------------


async def test_a_membership_change_takes_1000_users_and_refuses_1001(operator: Operator) -> None:
    conversation = fresh("c")
    users = [f"u{number:04}" for number in range(2 * MEMBERSHIP_CHANGE_USERS_MAX)]
    most, more = users[:MEMBERSHIP_CHANGE_USERS_MAX], users[: MEMBERSHIP_CHANGE_USERS_MAX + 1]
    assert await refused(operator.create(conversation, more)) == (INVALID, "member_user_ids")
    assert (await operator.create(conversation, most)).member_count == MEMBERSHIP_CHANGE_USERS_MAX
    for call in (operator.add, operator.remove):
        assert await refused(call(conversation, more)) == (INVALID, "user_ids")
        assert await refused(call(conversation, [])) == (INVALID, "user_ids")
    assert await operator.head(conversation) == 1
    assert (await operator.add(conversation, users[1000:])).conversation_seq == 2
    assert (await operator.remove(conversation, most)).conversation_seq == 3
    assert (await operator.get(conversation)).member_count == MEMBERSHIP_CHANGE_USERS_MAX
    asked = operator.members(conversation, limit=MEMBERSHIP_CHANGE_USERS_MAX + 1)
    assert await refused(asked) == (INVALID, "limit")
    page = await operator.members(conversation, limit=MEMBERSHIP_CHANGE_USERS_MAX)
    assert ([each.user_id for each in page.members], page.more) == (users[1000:], False)


# --- pages ------------------------------------------------------------------------------------


async def _said(
    tenancy: Tenancy, operator: Operator, count: int, body: Callable[[int], bytes]
) -> tuple[str, str]:
    """(user, conversation) with `count` messages of the user's; 1 event before them."""
    user, conversation = fresh("ann"), fresh("c")
    await operator.create(conversation, [user])
    async with tenancy.device(user, "writer") as stream:
        for start in range(0, count, 50):
            numbers = range(start, min(start + 50, count))
            await stream.say(conversation, *(message(f"m{n}", body(n)) for n in numbers))
    return user, conversation


async def test_a_page_has_500_events_and_501_may_not_be_asked_for(
    tenancy: Tenancy, operator: Operator
) -> None:
    user, conversation = await _said(tenancy, operator, 500, lambda n: b"%d" % n)
    async with tenancy.device(user) as stream:
        await stream.mailbox(501)
        page = (await stream.pull()).mailbox_page
        assert (len(page.events), page.more) == (PAGE_EVENTS_MAX, True)
        assert page.covered_through_seq == page.events[-1].mailbox_seq
        asked = (await stream.pull(limit=PAGE_EVENTS_MAX)).mailbox_page
        assert [each.mailbox_seq for each in asked.events] == [
            each.mailbox_seq for each in page.events
        ]
        too_many = await stream.pull(limit=PAGE_EVENTS_MAX + 1)
        assert refusal(too_many) == (INVALID, "pull_mailbox.limit")
        rest = (await stream.pull(page.covered_through_seq)).mailbox_page
        assert ([each.event.conversation_seq for each in rest.events], rest.more) == ([501], False)

        history = await stream.history(conversation, limit=PAGE_EVENTS_MAX)
        assert [each.conversation_seq for each in history] == list(range(2, 502))
        assert len(await stream.history(conversation)) == HISTORY_PAGE_DEFAULT
        (oldest,) = await stream.history(conversation, before=2, limit=PAGE_EVENTS_MAX)
        assert oldest.conversation_seq == 1
        asked_history = gateway_pb2.PullHistory(
            conversation_id=conversation, limit=PAGE_EVENTS_MAX + 1
        )
        answer = await stream.ask(pull_history=asked_history)
        assert refusal(answer) == (INVALID, "pull_history.limit")


async def test_a_page_has_1_mib_at_most_and_the_next_goes_on_behind_it(
    tenancy: Tenancy, operator: Operator
) -> None:
    user, conversation = await _said(tenancy, operator, 40, lambda n: bytes([n]) * BODY_BYTES_MAX)
    async with tenancy.device(user) as stream:
        await stream.mailbox(41)
        seen: list[int] = []
        after = 0
        more = True
        while more:
            page = (await stream.pull(after)).mailbox_page
            assert page.ByteSize() <= PAGE_BYTES_MAX
            # The next event did not fit any more: a page is as full as it can be.
            assert not page.more or page.ByteSize() > PAGE_BYTES_MAX - BODY_BYTES_MAX - 1024
            seen += [each.event.conversation_seq for each in page.events]
            after, more = page.covered_through_seq, page.more
        assert seen == list(range(1, 42))

        asked = gateway_pb2.PullHistory(conversation_id=conversation, limit=PAGE_EVENTS_MAX)
        history = (await stream.ask(pull_history=asked)).history_page
        assert history.more
        assert history.ByteSize() <= PAGE_BYTES_MAX
        assert [each.conversation_seq for each in history.events] == list(range(27, 42))


async def test_a_session_list_has_200_rows_a_page_and_201_may_not_be_asked_for(
    tenancy: Tenancy, operator: Operator
) -> None:
    user = fresh("ann")
    names = [fresh("c") for _ in range(SESSION_PAGE_MAX + 1)]
    await asyncio.gather(*(operator.create(name, [user]) for name in names))
    async with tenancy.device(user) as stream:
        await stream.session(names[-1], 1)
        async with asyncio.timeout(30):
            while len(await stream.sessions()) < len(names):
                pass
        for limit, size in ((0, SESSION_PAGE_DEFAULT), (SESSION_PAGE_MAX, SESSION_PAGE_MAX)):
            asked = gateway_pb2.PullSessionList(limit=limit)
            page = (await stream.ask(pull_session_list=asked)).session_list
            assert len(page.sessions) == size
            assert page.next_page_token
        listed = [each.conversation_id for each in await stream.sessions(SESSION_PAGE_MAX)]
        assert sorted(listed) == sorted(names)
        asked = gateway_pb2.PullSessionList(limit=SESSION_PAGE_MAX + 1)
        answer = await stream.ask(pull_session_list=asked)
        assert refusal(answer) == (INVALID, "pull_session_list.limit")
        asked = gateway_pb2.PullSessionList(page_token=b"made up")
        answer = await stream.ask(pull_session_list=asked)
        assert refusal(answer) == (INVALID, "pull_session_list.page_token")
