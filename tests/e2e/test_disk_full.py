"""A full disk: refusals that say so, nothing acknowledged lost, and on by itself afterwards."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.e2e.support.small_disk import SmallDiskServer, small_disk
from tests.e2e.support.stream import PATIENCE_S, Stream, message, named
from tests.e2e.support.tenancy import Operator, Tenancy, zeros

from qim.common.v1.error_pb2 import Error
from qim.gateway.v1 import gateway_pb2
from qimd.core.errors import QimError
from qimd.telemetry.metrics import ZEROS

BODY_BYTES = 60_000
LEFT = 3_000_000
"""What the ballast leaves: some forty messages, each of which is written more than once."""
USERS = ("ann", "bob")


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


async def until_full(stream: Stream, sent: dict[str, int], prefix: str) -> None:
    """Send until a message is refused. `sent` gets the names and seqs of those that were not."""
    while True:
        name = f"{prefix}{len(sent)}"
        outcome = await attempt(stream, name)
        if isinstance(outcome, Error):
            assert is_full(outcome), outcome
            return
        sent[name] = outcome


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
    async with tenancy.operator() as operator, tenancy.device("ann") as ann:
        await operator.create("c", USERS)
        async with tenancy.device("bob") as bob:
            await bob.mailbox(1)
            server.fill(LEFT)
            await until_full(ann, sent, "m")
            assert len(sent) > 5
            # Where a large message finds no room there may be some for small ones: to the last.
            server.fill(0)
            await until_full(ann, sent, "tiny")
            head = await operator.head("c")
            assert head == 1 + len(sent)

            # Every send is refused, whoever sends it, and every other write with it …
            for number in range(20):
                outcome = await attempt(ann, f"{'tiny' if number % 2 else ''}refused{number}")
                assert isinstance(outcome, Error)
                assert is_full(outcome), outcome
            with pytest.raises(QimError, match=r"UNAVAILABLE: .*disk"):
                await operator.create("another", USERS)
            with pytest.raises(QimError, match=r"UNAVAILABLE: .*disk"):
                await operator.add("c", ["eve"])
            assert await operator.head("c") == head

            # … while reading goes on, also for who comes anew.
            assert (await ann.history("c"))[-1].conversation_seq == head
            seqs = [each.event.conversation_seq for each in await bob.mailbox(1)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert len(await bob.sessions()) == 1
            async with tenancy.device("bob") as again:
                assert await again.ping()

            server.make_room()
            sent["after"] = await resumed(ann, "after")
            # What was refused took no number, and works under its own id now.
            sent["refused0"] = await resumed(ann, "refused0")
            assert [sent["after"], sent["refused0"]] == [head + 1, head + 2]
        await check_everything(tenancy, operator, sent)


async def test_a_server_that_is_killed_on_a_full_disk_has_everything_afterwards(
    server: SmallDiskServer,
) -> None:
    tenancy = Tenancy(server)
    sent: dict[str, int] = {}
    async with tenancy.operator() as operator, tenancy.device("ann") as ann:
        await operator.create("c", USERS)
        server.fill(LEFT)
        await until_full(ann, sent, "m")
    server.kill()
    server.make_room()
    server.start()
    async with tenancy.operator() as operator, tenancy.device("ann") as ann:
        sent["after"] = await resumed(ann, "after")
        await check_everything(tenancy, operator, sent)
