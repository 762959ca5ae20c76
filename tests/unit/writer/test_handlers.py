"""The writer's calls: administration, ListMembers' pages, Commit for a named sender."""

from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.writer.world import KEY, ROOM, TENANT, Node, Silent, World

from qim.conversation.v1 import conversation_service_pb2 as conversation_pb
from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qim.writer.v1 import writer_service_pb2 as writer_pb
from qimd.contract import codec
from qimd.contract.events import decode_event
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Refusal
from qimd.core.parameters import MEMBERSHIP_CHANGE_USERS_MAX
from qimd.writer.handlers import (
    ConversationChanges,
    ConversationHandlers,
    WriterHandlers,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ManualRuntime() as runtime:
        yield World(runtime)


@pytest.fixture
async def node(world: World) -> Node:
    made = await world.node(fanout=Silent())
    await made.serve()
    await world.tenant(made)
    return made


@pytest.fixture
def calls(node: Node) -> ConversationHandlers:
    return ConversationHandlers(ConversationChanges(node.writer), node.backends.conversations)


def creation(*users: str, tenant: str = TENANT) -> conversation_pb.CreateConversationRequest:
    return conversation_pb.CreateConversationRequest(
        tenant_id=tenant, conversation_id=ROOM, member_user_ids=users
    )


def adding(*users: str) -> conversation_pb.AddMembersRequest:
    return conversation_pb.AddMembersRequest(tenant_id=TENANT, conversation_id=ROOM, user_ids=users)


def removing(*users: str) -> conversation_pb.RemoveMembersRequest:
    return conversation_pb.RemoveMembersRequest(
        tenant_id=TENANT, conversation_id=ROOM, user_ids=users
    )


def listing(after: str = "", limit: int = 0) -> conversation_pb.ListMembersRequest:
    return conversation_pb.ListMembersRequest(
        tenant_id=TENANT, conversation_id=ROOM, after_user_id=after, limit=limit
    )


async def refusal(call) -> QimError:  # type: ignore[no-untyped-def]
    with pytest.raises(QimError) as refused:
        await call
    return refused.value


async def test_a_creation_makes_its_members_by_one_membership_event(
    node: Node, calls: ConversationHandlers
) -> None:
    made = (await calls.CreateConversation(creation("bob", "ann"))).conversation
    codec.encode(made)
    assert (made.head_version, made.membership_version, made.member_count) == (1, 1, 2)
    assert node.silent is not None
    (event,) = node.silent.told
    decoded = decode_event(event.encoded)
    assert decoded.kind == event_pb2.EVENT_KIND_MEMBERSHIP
    assert list(decoded.membership_change.added_user_ids) == ["ann", "bob"]
    assert decoded.sender_user_id == ""
    assert decoded.membership_version == 1


async def test_a_creation_may_be_repeated_whatever_came_since(
    calls: ConversationHandlers,
) -> None:
    await calls.CreateConversation(creation("ann", "bob"))
    await calls.AddMembers(adding("cid"))
    again = (await calls.CreateConversation(creation("bob", "ann"))).conversation
    assert (again.head_version, again.member_count) == (2, 3)
    other = await refusal(calls.CreateConversation(creation("ann")))
    assert other.code is ErrorCode.ALREADY_EXISTS


async def test_a_creation_that_broke_off_is_completed_by_repeating_it(
    world: World, calls: ConversationHandlers
) -> None:
    full = world.faults.refuse("commit", refusal=Refusal.NO_SPACE)
    assert (await refusal(calls.CreateConversation(creation("ann")))).code is ErrorCode.UNAVAILABLE
    assert full.hits == 1
    made = (await calls.CreateConversation(creation("ann"))).conversation
    assert (made.head_version, made.member_count) == (1, 1)


async def test_a_creation_needs_its_tenant(calls: ConversationHandlers) -> None:
    error = await refusal(calls.CreateConversation(creation("ann", tenant="nobody")))
    assert error.code is ErrorCode.NOT_FOUND


async def test_a_creation_with_a_bad_id_names_it_and_leaves_nothing(
    calls: ConversationHandlers,
) -> None:
    """COD-03: NUL and over-long ids: INVALID_ARGUMENT naming the field, before a seq is given."""
    for bad in ("x\x00y", "x" * 5000, ""):
        request = creation("ann")
        request.conversation_id = bad
        error = await refusal(calls.CreateConversation(request))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "conversation_id")
    for fine in ("a/b", "😀"):
        request = creation("ann")
        request.conversation_id = fine
        assert (await calls.CreateConversation(request)).conversation.conversation_id == fine


async def test_members_are_added_and_removed_once(calls: ConversationHandlers) -> None:
    await calls.CreateConversation(creation("ann"))
    added = await calls.AddMembers(adding("cid", "ann", "bob"))
    assert (added.conversation_seq, added.conversation.member_count) == (2, 3)
    again = await calls.AddMembers(adding("cid", "bob"))
    assert (again.conversation_seq, again.conversation.head_version) == (0, 2)
    removed = await calls.RemoveMembers(removing("bob", "nobody"))
    assert (removed.conversation_seq, removed.conversation.member_count) == (3, 2)
    assert (await calls.RemoveMembers(removing("bob"))).conversation_seq == 0


async def test_a_lost_reply_adds_members_once(
    world: World, node: Node, calls: ConversationHandlers
) -> None:
    await calls.CreateConversation(creation("ann"))
    world.faults.lose_reply("commit")
    call = world.runtime.spawn(_void(calls.AddMembers(adding("bob"))), "add")
    await world.runtime.advance(1)
    assert call.done()
    assert (await node.state()).head_version == 2
    assert (await node.state()).member_count == 2


async def _void(call) -> None:  # type: ignore[no-untyped-def]
    await call


async def test_administration_of_no_conversation_is_not_found(calls: ConversationHandlers) -> None:
    request = conversation_pb.GetConversationRequest(tenant_id=TENANT, conversation_id=ROOM)
    for call in (
        calls.AddMembers(adding("ann")),
        calls.RemoveMembers(removing("ann")),
        calls.GetConversation(request),
        calls.ListMembers(listing()),
    ):
        assert (await refusal(call)).code is ErrorCode.NOT_FOUND


async def test_members_are_listed_in_byte_order_by_pages(calls: ConversationHandlers) -> None:
    await calls.CreateConversation(creation("b", "a"))
    await calls.AddMembers(adding("ü", "c"))
    first = await calls.ListMembers(listing(limit=2))
    assert [(member.user_id, member.added_seq) for member in first.members] == [("a", 1), ("b", 1)]
    assert first.more
    rest = await calls.ListMembers(listing(after="b", limit=2))
    assert [(member.user_id, member.added_seq) for member in rest.members] == [("c", 2), ("ü", 2)]
    assert not rest.more
    error = await refusal(calls.ListMembers(listing(limit=MEMBERSHIP_CHANGE_USERS_MAX + 1)))
    assert error.field == "limit"


def outgoing(client_msg_id: str, body: bytes | None = b"hello") -> gateway_pb2.OutgoingEvent:
    message = None if body is None else event_pb2.Message(body=body)
    return gateway_pb2.OutgoingEvent(client_msg_id=client_msg_id, message=message)


async def test_commit_answers_each_event_in_its_place(
    node: Node, calls: ConversationHandlers
) -> None:
    await calls.CreateConversation(creation("ann"))
    response = await WriterHandlers(node.writer).Commit(
        writer_pb.CommitRequest(
            tenant_id=TENANT,
            conversation_id=ROOM,
            sender_user_id="ann",
            sender_device_id="server",
            events=[outgoing("m1"), outgoing("m2", None), outgoing("m3")],
        )
    )
    codec.encode(response)
    assert [result.client_msg_id for result in response.results] == ["m1", "m2", "m3"]
    assert [result.WhichOneof("outcome") for result in response.results] == [
        "accepted",
        "error",
        "accepted",
    ]
    assert [result.accepted.conversation_seq for result in response.results] == [2, 0, 3]
    assert response.results[1].error.field == "events[1].content"


async def test_commit_checks_its_sender_and_its_count(node: Node) -> None:
    handlers = WriterHandlers(node.writer)
    fine = {"tenant_id": TENANT, "conversation_id": ROOM, "sender_user_id": "ann"}
    no_device = writer_pb.CommitRequest(**fine, events=[outgoing("m")])
    assert (await refusal(handlers.Commit(no_device))).field == "sender_device_id"
    none = writer_pb.CommitRequest(**fine, sender_device_id="d")
    assert (await refusal(handlers.Commit(none))).field == "events"
    many = writer_pb.CommitRequest(
        **fine, sender_device_id="d", events=[outgoing(f"m{i}") for i in range(101)]
    )
    assert (await refusal(handlers.Commit(many))).field == "events"
    stored = await node.backends.conversations.conversation(KEY)
    assert stored is None
