"""The rooms as processes of their own: `ports.services` through hops are what they are in process.

Connection, writer, mailbox and session run in every split from all in one to each alone. What a
client sees is the same in all.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contract.hop_processes import KEY, USERS, C, M, S, W, deployed

from qim.gateway.v1 import gateway_pb2

SPLITS = {
    "all in one": [(C, W, M, S)],
    "connection and the rest": [(C,), (W, M, S)],
    "each alone": [(C,), (W,), (M,), (S,)],
    "two of everything that serves clients": [(C, W), (C, M), (S,)],
}


@pytest.fixture(params=["memory", "sqlite"])
def embedded(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
async def test_clients_see_the_same_however_the_rooms_are_split(
    embedded: str, tmp_path: Path, split: Sequence[Sequence[str]]
) -> None:
    async with deployed(embedded, tmp_path, split) as deployment:
        clients = [await deployment.client(user, at) for at, user in enumerate(USERS)]
        for client in clients:
            await client.pull(0)
        ann, *others = clients
        sent = [f"m{number}" for number in range(60)]
        for at in range(0, 60, 3):
            await ann.send(*sent[at : at + 3])
        for client in clients:
            assert await client.pull(60) == sent
            assert await client.pushed(60) == sent
        bob = others[0]
        ack = gateway_pb2.AckMailbox(last_applied_mailbox_seq=bob.position)
        answer = await bob.ask(ack_mailbox=ack)
        assert answer.ack_ok.last_applied_mailbox_seq == bob.position
        too_far = gateway_pb2.AckMailbox(last_applied_mailbox_seq=bob.position + (1 << 20))
        assert (await bob.ask(ack_mailbox=too_far)).error.code == 8
        listed = await bob.ask(pull_session_list=gateway_pb2.PullSessionList())
        [session] = listed.session_list.sessions
        assert (session.unread_count, session.last_event.preview) == (60, b"m59")
        mark = gateway_pb2.MarkRead(conversation_id=KEY.conversation, read_through_seq=31)
        assert (await bob.ask(mark_read=mark)).read_ok.unread_count == 30
        report = gateway_pb2.Report(
            kind=gateway_pb2.REPORT_KIND_GAP,
            conversation_id=KEY.conversation,
            from_conversation_seq=2,
            through_conversation_seq=3,
            covered_through_seq=bob.position,
        )
        assert (await bob.ask(report=report)).report_ok.confirmed is False


@pytest.mark.parametrize("role", [W, M, S])
async def test_clients_notice_nothing_but_time_when_a_role_moves_to_another_process(
    tmp_path: Path, role: str
) -> None:
    async with deployed("memory", tmp_path, SPLITS["each alone"]) as deployment:
        ann, bob = await deployment.client("ann"), await deployment.client("bob")
        await bob.pull(0)
        await ann.send("before")
        assert await bob.pushed(1) == ["before"]
        [old] = deployment.all(role)
        await deployment.add(role)
        drained = asyncio.ensure_future(old.drain())
        sent = [f"m{number}" for number in range(20)]
        for body in sent:
            await ann.send(body)
        await drained
        assert await bob.pull(21) == ["before", *sent]
        # Nobody was registered at the new owner for a moment; what came then is pushed as well.
        seen: set[str] = set()
        while not seen >= set(sent):
            seen.update(await bob.pushed(1))
        listed = await bob.ask(pull_session_list=gateway_pb2.PullSessionList())
        assert listed.session_list.sessions[0].unread_count == 21
