"""A full disk: refusals that say so, nothing acknowledged lost, and on by itself afterwards."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.e2e.support.small_disk import SmallDiskServer, small_disk
from tests.e2e.support.stream import PATIENCE_S, Stream, message, named
from tests.e2e.support.tenancy import Operator, Tenancy, fresh, zeros

from qim.common.v1.error_pb2 import Error
from qim.gateway.v1 import gateway_pb2
from qimd.contract.errors import error_message
from qimd.core.errors import QimError
from qimd.telemetry.metrics import ZEROS

BODY_BYTES = 60_000
LEFT = 3_000_000
"""What the ballast leaves: some forty messages, each of which is written more than once."""
USERS = ("ann", "bob")
REFUSALS = 20
"""So many in a row, however small the message, are a full disk."""


@pytest.fixture
def server() -> Iterator[SmallDiskServer]:
    with small_disk() as made, made:
        yield made


def body(name: str) -> bytes:
    """A message's own bytes: few if its name says so."""
    return name.encode().ljust(1 if name.startswith("tiny") else BODY_BYTES, b".")


async def attempt(stream: Stream, name: str) -> int | Error:
    """Send one message; its seq, or the error."""
    send = gateway_pb2.Send(conversation_id="c", events=[message(name, body(name))])
    frame = await stream.ask(send=send)
    if frame.WhichOneof("frame") == "error":
        return frame.error
    (result,) = frame.send_ack.results
    return result.error if result.HasField("error") else result.accepted.conversation_seq


def is_full(error: Error) -> bool:
    """The refusal that a full disk gives: typed, to be tried again, and naming the disk."""
    return named(error) == ("UNAVAILABLE", "") and error.retryable and "disk" in error.message


async def until_full(
    server: SmallDiskServer, stream: Stream, sent: dict[str, int], refused: list[str]
) -> None:
    """Send large and small messages until none is accepted any more.

    The server frees what room it can, so that one refusal is not the last word; what it frees is
    taken from it again. `sent` gets the names and seqs of those that were accepted.
    """
    in_a_row = 0
    while in_a_row < REFUSALS:
        name = f"{'tiny' if in_a_row % 2 else 'large'}{len(sent) + len(refused)}"
        outcome = await attempt(stream, name)
        if isinstance(outcome, Error):
            assert is_full(outcome), outcome
            refused.append(name)
            in_a_row += 1
            server.fill(0)
        else:
            sent[name] = outcome
            in_a_row = 0


async def until_refused(server: SmallDiskServer, call: Callable[[str], Awaitable[object]]) -> None:
    """Make administration calls, each with a name of its own, until one finds no room."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            server.fill(0)
            try:
                await call(fresh("x"))
            except QimError as error:
                refusal = error_message(error)
                break
    assert is_full(refusal), refusal


async def resumed(stream: Stream, name: str) -> int:
    """Send a message until it is accepted, as a client does; its seq."""
    async with asyncio.timeout(PATIENCE_S):
        while isinstance(outcome := await attempt(stream, name), Error):
            assert is_full(outcome), outcome
    return outcome


async def check_everything(tenancy: Tenancy, operator: Operator, sent: dict[str, int]) -> None:
    """Every acknowledged message is in every mailbox, once, in order, byte for byte."""
    head = await operator.head("c")
    assert sorted(sent.values()) == list(range(2, head + 1))
    for user in USERS:
        async with tenancy.device(user, "checker") as stream:
            events = [each.event for each in await stream.mailbox(head)]
            assert [each.conversation_seq for each in events] == list(range(1, head + 1))
            found = {each.client_msg_id: each.conversation_seq for each in events[1:]}
            assert found == sent
            assert all(each.message.body == body(each.client_msg_id) for each in events[1:])
            row = await stream.session("c", head)
            assert row.unread_count == (0 if user == "ann" else head - 1)
    assert zeros(tenancy.server) == dict.fromkeys(ZEROS, 0.0)


async def test_a_full_disk_refuses_loses_nothing_and_goes_on_by_itself(
    server: SmallDiskServer,
) -> None:
    tenancy = Tenancy(server)
    sent: dict[str, int] = {}
    refused: list[str] = []
    async with tenancy.operator() as operator, tenancy.device("ann") as ann:
        await operator.create("c", USERS)
        await operator.create("spare", ["zoe"])
        async with tenancy.device("bob") as bob:
            await bob.mailbox(1)
            server.fill(LEFT)
            await until_full(server, ann, sent, refused)
            assert len(sent) > 5
            # Every other write is refused with them …
            await until_refused(server, lambda name: operator.create(name, ["zoe"]))
            await until_refused(server, lambda name: operator.add("spare", [name]))
            head = await operator.head("c")
            assert head == 1 + len(sent)

            # … while reading goes on, also for who comes anew.
            assert (await ann.history("c"))[-1].conversation_seq == head
            seqs = [each.event.conversation_seq for each in await bob.mailbox(1)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert "c" in {row.conversation_id for row in await bob.sessions()}
            async with tenancy.device("bob") as again:
                assert await again.ping()

            server.make_room()
            sent["after"] = await resumed(ann, "after")
            # What was refused took no number, and works under its own id now.
            sent[refused[0]] = await resumed(ann, refused[0])
            assert [sent["after"], sent[refused[0]]] == [head + 1, head + 2]
        await check_everything(tenancy, operator, sent)


async def test_a_server_that_is_killed_on_a_full_disk_has_everything_afterwards(
    server: SmallDiskServer,
) -> None:
    tenancy = Tenancy(server)
    sent: dict[str, int] = {}
    async with tenancy.operator() as operator, tenancy.device("ann") as ann:
        await operator.create("c", USERS)
        server.fill(LEFT)
        await until_full(server, ann, sent, [])
    server.kill()
    server.make_room()
    server.start()
    async with tenancy.operator() as operator, tenancy.device("ann") as ann:
        sent["after"] = await resumed(ann, "after")
        await check_everything(tenancy, operator, sent)
