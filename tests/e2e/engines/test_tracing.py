"""One trace over processes of each role: every process has a collector of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import pytest
from tests.e2e.engines.deployment import Deployment
from tests.e2e.engines.traffic import Traffic
from tests.e2e.support.stream import device_stream, message
from tests.support.collector import Collector, attributes, collecting

from qimd.app import secret_file

SPANS: Final = {
    "connection": {"SEND", "hint", "PUSH_EVENTS"},
    "writer": {"commit", "dispatch"},
    "mailbox": {"mailbox", "push"},
    "session": {"session"},
}
"""By role: what a SEND is on its way to a member who is online."""

REQUESTS: Final = {"PULL_MAILBOX", "ACK_MAILBOX", "PULL_SESSION_LIST"}
ROOM: Final = "room"
CANARY: Final = b"c4nary-of-the-body"


class Traced:
    """A deployment of a process a role, and their collectors; `silent` has none."""

    def __init__(self, deployment: Deployment, silent: str) -> None:
        self.deployment = deployment
        self.silent = silent
        self.collectors: dict[str, Collector] = {}
        self.secrets: list[bytes] = [CANARY]

    async def start(self, stack: AsyncExitStack) -> None:
        processes = []
        for role in SPANS:
            extra: tuple[str, ...] = ()
            if role != self.silent:
                collector, place = await stack.enter_async_context(collecting())
                self.collectors[role] = collector
                extra = ("--trace-to", place, "--trace-share", "1")
            processes.append(self.deployment.process(role, role, *extra))
        await asyncio.gather(*(process.start() for process in processes))
        self.door = next(process for process in processes if process.name == "connection").grpc
        await Traffic(self.deployment, (ROOM,), ("ann", "bob")).set_up()

    async def arrived(self, role: str) -> None:
        """Return once the role's process has sent a span of each kind."""
        collector = self.collectors[role]
        await collector.until(lambda: {span.name for span in collector.spans} >= SPANS[role])

    async def say_one(self) -> bytes:
        """Ann says something, and Bob is pushed it, pulls it, and lists; the event's id."""
        tokens = [self.deployment.token(user, "phone") for user in ("ann", "bob")]
        self.secrets += (token.encode() for token in tokens)
        async with (
            device_stream(self.door, tokens[0]) as ann,
            device_stream(self.door, tokens[1]) as bob,
        ):
            self.secrets += (stream.auth_ok.cursor_token for stream in (ann, bob))
            # Once a PULL is answered, the mailbox knows that he is online.
            await bob.pull()
            [result] = await ann.say(ROOM, message("m-1", CANARY))
            seq = result.accepted.conversation_seq
            await bob.pushed(seq)
            page = (await bob.pull()).mailbox_page
            await bob.ack(page.covered_through_seq)
            await bob.session(ROOM, seq)
            return bytes(result.accepted.event_id)


@pytest.fixture(params=["", "mailbox"], ids=["all", "all but the mailbox"])
async def traced(request: pytest.FixtureRequest, deployment: Deployment) -> AsyncIterator[Traced]:
    async with AsyncExitStack() as stack:
        made = Traced(deployment, request.param)
        await made.start(stack)
        yield made


async def test_one_trace_goes_through_a_process_of_each_role_and_nothing_secret_with_it(
    traced: Traced,
) -> None:
    event_id = await traced.say_one()
    for role in traced.collectors:
        await traced.arrived(role)
    [send] = traced.collectors["connection"].named("SEND")
    for role, collector in traced.collectors.items():
        for name in SPANS[role] - {"SEND"}:
            for span in collector.named(name):
                assert (span.trace_id, span.parent_span_id) == (send.trace_id, send.span_id), name
                assert attributes(span)["qim.event_id"] == event_id.hex(), name
                assert attributes(span)["qim.conversation_id"] == ROOM, name
    for process in traced.deployment.processes:
        await traced.deployment.stop(process)
    assert {span.name for span in traced.collectors["connection"].spans} >= REQUESTS
    held = secret_file.read(traced.deployment.folder / "secrets.json")
    deep = [held.admin_token.encode(), held.peer_token.encode(), *held.cursor_keys.values()]
    for collector in traced.collectors.values():
        for secret in (*traced.secrets, *deep):
            assert secret not in collector.bytes
