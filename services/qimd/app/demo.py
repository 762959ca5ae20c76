"""The demonstration: real chat through one machine that is killed twice, and not one event wrong.

    python -m qimd.app.demo [--profile dev] [--chat FILE] [--data DIR] [--members 200]
                            [--messages 1500] [--kills 2]

It starts `qimd dev` as a process of its own (or, with the profile `standard` or `scylla`, `qimd
run` on the engines that QIM_* variables name), lets every speaker send over a gRPC stream of their
own, kills the server with SIGKILL in the middle of sends and starts it again on the same data. Some
members watch live through all of it. Then it pulls every member's mailbox and session list, and
compares them with what was acknowledged: as sets of (user, conversation, event_id), in order, byte
for byte. The last line is the verdict; the exit status is 0 only for `exact`.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qimd.app.demo_server import DeploymentServer, DevServer, Server
from qimd.app.demo_verdict import Expected, Found, Verdict, compare, table
from qimd.client import AdminClient, Client, ClientConfig, Event, Sent, Session
from qimd.client.chat import Line, generated_chat, read_chat, speakers
from qimd.client.replay import Speakers, Statistics, replay_turns
from qimd.core.errors import QimError
from qimd.core.ids import ConversationId, TenantId, event_id

KEY_ID: Final = "demo-1"
SEED: Final = 20_260_901
MEMBERS_MAX: Final = 1_000
"""One membership event adds them all, so that all have the same mailbox."""
STREAMS_MAX: Final = 16
"""Speakers' streams open at once. Each is pushed every event, too: that is most of a run's work."""
WATCHERS: Final = 3
"""Members who receive live through all of it, kills included; their view is counted, too."""
VERIFY_STREAMS: Final = 16
EXAMPLES_SHOWN: Final = 5
SETTLE_TIMEOUT_S: Final = 30.0
WATCHING: Final = ClientConfig(request_timeout_s=60.0, backoff_first_s=0.05, backoff_most_s=0.5)
QUIET: Final = replace(WATCHING, push_events=False)
"""Of speakers, who only send, and of verifiers, who only pull."""


# --- the run ----------------------------------------------------------------------------------


class Demo:
    """One run on one server."""

    def __init__(self, server: Server, lines: Sequence[Line], members: Sequence[str]) -> None:
        self._server = server
        self._lines = lines
        self._members = members
        # New ones each time: a folder that is kept may serve many runs.
        self._tenant = TenantId(f"demo-{time.time_ns()}")
        self._conversation = ConversationId("chat")
        self._key = Ed25519PrivateKey.generate()
        self._verdict = Verdict(members=len(members))

    async def run(self, kills: int, advance: Callable[[str, int, int], None]) -> Verdict:
        """Send, kill, verify. `advance` gets (what, done, of)."""
        verdict = self._verdict
        await self._server.start()
        before = await asyncio.to_thread(self._set_up)
        expected = [
            Expected(event_id(self._tenant, self._conversation, seq), seq, "", b"")
            for seq in range(1, before + 1)
        ]
        statistics = Statistics()
        async with self._watching(before + len(self._lines)) as watched:
            expected += await self._send(kills, statistics, before, advance)
            await self._settle()
        entries = verdict.events_acknowledged * len(self._members)
        verdict.entries_per_second = entries / (time.monotonic() - statistics.began_s)
        for found in watched:
            compare(expected, found, verdict)
        await self._verify(expected, advance)
        verdict.add_zeros(await self._server.zeros())
        verdict.answered_as_duplicates = statistics.duplicates
        verdict.sends_per_second = statistics.sends_per_second
        verdict.ack_p50_ms, verdict.ack_p99_ms = statistics.ack_ms(0.5), statistics.ack_ms(0.99)
        verdict.ready_s = self._server.ready_s
        return verdict

    def _admin(self) -> AdminClient:
        return AdminClient(self._server.address, self._server.admin_token)

    def _set_up(self) -> int:
        """Register tenant, conversation and members; how many events that made."""
        with self._admin() as admin:
            admin.create_tenant(self._tenant, {KEY_ID: self._key.public_key().public_bytes_raw()})
            made = admin.create_conversation(self._tenant, self._conversation, self._members)
            return made.head_version

    def _client(self, user: str, device: str, config: ClientConfig = QUIET) -> Client:
        async def provider() -> str:
            now_s = int(time.time())
            claims = {
                "sub": user,
                "tenant": self._tenant,
                "device": device,
                "jti": f"{device}-{time.time_ns()}",
                "iat": now_s,
                "exp": now_s + 3600,
            }
            return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": KEY_ID})

        return Client(self._server.address, token_provider=provider, config=config)

    async def _send(
        self,
        kills: int,
        statistics: Statistics,
        before: int,
        advance: Callable[[str, int, int], None],
    ) -> list[Expected]:
        chance = random.Random(SEED)  # noqa: S311 - reproducible on purpose
        marks = [len(self._lines) * (k + 1) // (kills + 1) for k in range(kills)]
        armed = False

        async def kill_when_armed(turn: Sequence[Line]) -> None:
            nonlocal armed
            if not armed:
                return
            armed = False
            # Somewhere between the frame's way out and its commit, another place each time.
            await asyncio.sleep(chance.random() * 0.004)
            self._server.kill()
            self._verdict.kills += 1
            await self._server.start()

        expected: list[Expected] = []
        pool = Speakers(lambda user: self._client(user, "phone"), STREAMS_MAX)
        async with pool:
            async for turn in replay_turns(
                self._lines, pool, self._conversation, "demo", kill_when_armed
            ):
                statistics.add(turn)
                for line, sent in zip(turn.lines, turn.sent, strict=True):
                    self._count_in(line, sent, before + len(expected) + 1)
                    expected.append(Expected(sent.event_id, sent.seq, line.user, line.body))
                advance("sending", len(expected), len(self._lines))
                if marks and len(expected) >= marks[0]:
                    marks.pop(0)
                    # What the process has counted dies with it.
                    self._verdict.add_zeros(await self._server.zeros())
                    armed = True
        self._verdict.reconnects = pool.reconnects
        return expected

    def _count_in(self, line: Line, sent: Sent, seq: int) -> None:
        self._verdict.events_acknowledged += 1
        wanted = event_id(self._tenant, self._conversation, seq)
        self._verdict.sends_out_of_order += (sent.seq, sent.event_id) != (seq, wanted)

    @asynccontextmanager
    async def _watching(self, last_seq: int) -> AsyncIterator[list[list[Found]]]:
        """What some members are shown live; at the end their last event is waited for, a while."""
        users = self._members[:WATCHERS]
        seen: list[list[Found]] = [[] for _ in users]
        tasks = [
            asyncio.create_task(self._watch(user, last_seq, found))
            for user, found in zip(users, seen, strict=True)
        ]
        try:
            yield seen
            await asyncio.wait(tasks, timeout=SETTLE_TIMEOUT_S)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for user, end in zip(users, ends, strict=True):
            if isinstance(end, BaseException):
                self._verdict.examples.append(f"{user} stopped watching: {end!r}")
        self._verdict.watchers = len(users)

    async def _watch(self, user: str, last_seq: int, seen: list[Found]) -> None:
        async with self._client(user, "watcher", WATCHING) as client:
            async for item in client.events():
                if isinstance(item, Event):
                    seen.append(_found(item))
                    if item.seq == last_seq:
                        break
            self._verdict.client_reports += len(client.reports)

    async def _settle(self) -> None:
        """Wait until everything acknowledged is dispatched and materialised, or time is up.

        What is not there then is counted as missing.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        mailboxes = AdminClient(self._server.mailbox_address, self._server.admin_token)
        with self._admin() as admin, mailboxes:
            while time.monotonic() < deadline_s:
                head = await asyncio.to_thread(
                    admin.get_conversation, self._tenant, self._conversation
                )
                shards = await asyncio.to_thread(mailboxes.mailbox_shards)
                lag = sum(shard.high_watermark - shard.next_offset for shard in shards)
                if head.dispatched_through == head.head_version and lag == 0:
                    return
                await asyncio.sleep(0.02)

    async def _verify(
        self, expected: Sequence[Expected], advance: Callable[[str, int, int], None]
    ) -> None:
        room = asyncio.Semaphore(VERIFY_STREAMS)
        done = 0

        async def one(index: int, user: str) -> None:
            nonlocal done
            async with room, self._client(user, "verifier") as client:
                found = [
                    _found(item)
                    async for item in client.events(until_caught_up=True)
                    if isinstance(item, Event) and item.conversation == self._conversation
                ]
                compare(expected, found, self._verdict)
                mark = expected[len(expected) // 2].seq if index % 3 == 0 else 0
                await self._compare_session(client, user, expected, mark)
                self._verdict.client_reports += len(client.reports)
            done += 1
            advance("verifying", done, len(self._members))

        async with asyncio.TaskGroup() as group:
            for index, user in enumerate(self._members):
                group.create_task(one(index, user))

    async def _compare_session(
        self, client: Client, user: str, expected: Sequence[Expected], mark: int
    ) -> None:
        """Compare the session list with a plain recount. A third of the members read a half."""
        wanted = (expected[-1].seq, expected[-1].event_id)
        row = await self._session(client)
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while (row is None or row.last_seq < wanted[0]) and time.monotonic() < deadline_s:
            # The projection is another reader of the log: it may be a moment behind the mailbox.
            await asyncio.sleep(0.02)
            row = await self._session(client)
        if mark:
            await client.mark_read(self._conversation, mark)
            row = await self._session(client)
        found = row and (row.last_seq, row.last_event_id, row.unread)
        # The mark may be further: an own message behind nothing unread moves it (SES-01).
        read = row.read_through_seq if row else 0
        others = [one.seq for one in expected if one.sender not in ("", user)]
        unread = sum(seq > mark for seq in others)
        if found != (*wanted, unread) or read < mark or any(mark < seq <= read for seq in others):
            self._verdict.session_lists_wrong += 1
            self._verdict.examples.append(
                f"session list of {user}: (last seq, last event, unread) is {found}, not "
                f"{(*wanted, unread)}; read through {read}, not {mark}"
            )

    async def _session(self, client: Client) -> Session | None:
        rows = [s async for s in client.sessions() if s.conversation == self._conversation]
        return rows[0] if len(rows) == 1 else None


def _found(event: Event) -> Found:
    return Found(event.event_id, event.seq, event.sender, event.body, event.mailbox_seq)


# --- the command ------------------------------------------------------------------------------


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A line on standard error that is rewritten in place; nothing where that is no terminal."""
    terminal = sys.stderr.isatty()

    def advance(what: str, done: int, of: int) -> None:
        if terminal:
            print(f"\r\x1b[K{what} {done}/{of}", end="", file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m qimd.app.demo", description=(__doc__ or "").split("\n\n", 1)[0]
    )
    parser.add_argument(
        "--profile", choices=("dev", "standard", "scylla"), default="dev", help="what it runs on"
    )
    parser.add_argument("--chat", type=Path, metavar="FILE", help="replay this recorded chat")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the data in this folder")
    parser.add_argument("--members", type=int, default=200, help="of a generated chat")
    parser.add_argument("--messages", type=int, default=1500, help="of a generated chat")
    parser.add_argument("--kills", type=int, default=2, help="SIGKILLs during the run")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args(given)
    if not 2 <= arguments.members <= MEMBERS_MAX:
        parser.error(f"--members must be in 2..{MEMBERS_MAX}")
    if not arguments.messages >= 1:
        parser.error("--messages must be 1 or more")
    if not 0 <= arguments.kills <= 10:
        parser.error("--kills must be in 0..10")
    return arguments


async def _run(arguments: argparse.Namespace, data: Path) -> Verdict:
    if arguments.chat:
        lines = read_chat(arguments.chat)
        members = speakers(lines)
    else:
        members = [f"member-{n:04d}" for n in range(arguments.members)]
        lines = generated_chat(members, arguments.messages, SEED)
    server = await _server(arguments.profile, data)
    try:
        with progress() as advance:
            return await Demo(server, lines, members).run(arguments.kills, advance)
    finally:
        await asyncio.to_thread(server.stop)


async def _server(profile: str, data: Path) -> Server:
    if profile == "dev":
        return DevServer(data)
    server = DeploymentServer(data, {"standard": "redis", "scylla": "scylla"}[profile])
    await server.make_topic()
    return server


def main(given: Sequence[str] | None = None) -> int:
    """Run the demonstration; its exit status."""
    # A server that is killed is what this is about: gRPC's own notice of it is no finding.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    arguments = _arguments(given)
    try:
        if arguments.data:
            arguments.data.mkdir(parents=True, exist_ok=True)
            verdict = asyncio.run(_run(arguments, arguments.data))
        else:
            with tempfile.TemporaryDirectory(prefix="qim-demo-") as folder:
                verdict = asyncio.run(_run(arguments, Path(folder)))
    except (QimError, OSError, RuntimeError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        print(f"the demo could not run: {told}", file=sys.stderr)
        return 2
    faults = verdict.faults()
    for example in verdict.examples[:EXAMPLES_SHOWN]:
        print(example, file=sys.stderr)
    if arguments.json:
        print(json.dumps(asdict(verdict) | {"exact": not faults}, indent=2))
    else:
        print(table(verdict))
        print("exact" if not faults else f"NOT exact: {', '.join(faults)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
