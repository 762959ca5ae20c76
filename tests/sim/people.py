"""Does the plan's deeds: what users and administrators want, asked for until there is an answer.

A SEND goes over the sender's own stream, if there is one, or as a unary call to any server, as a
gateway elsewhere would make it. Whoever asks again does so under the same client_msg_id; some give
up after one try, and what they were told last is what they may rely on (`ledger`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tests.sim.device import ANSWER_S, TOLD_RATE, Device, Gone, Link
from tests.sim.ledger import Said
from tests.sim.loop import Process
from tests.sim.plan import Act, Deed
from tests.sim.runtime import stream

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qimd.app.wiring import Node
from qimd.contract.errors import error_of
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import DeviceId, UserId
from qimd.core.records import Accepted, ConversationKey, Draft, EventKind, UserKey
from qimd.ports.services import Commit
from qimd.ports.store import IdempotencyKey, ShardKind

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 0.9
_FINAL: Final = frozenset({ErrorCode.NOT_MEMBER, ErrorCode.INVALID_ARGUMENT})
Answers = list[Accepted | QimError | None]


class People:
    """All users of a world, and its administrator."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._process = Process(world.loop, "people")
        self._said = 0
        self._created = {key: asyncio.Event() for key in world.conversations}
        self.busy = 0
        """Deeds under way that do not give up."""

    def set_up(self) -> None:
        """Have the conversations made."""
        for key, members in self._world.conversations.items():
            chance = stream(self._world.plan.seed, "admin", key.conversation)
            self._spawn(partial(self._create, key, members, chance))

    def do(self, deed: Deed) -> None:
        """Begin a deed."""
        chance = stream(self._world.plan.seed, "deed", deed)
        user = self._world.user(deed.tenant, deed.user)
        key = self._world.conversation(deed.tenant, deed.conversation)
        self._world.note("people", str(deed).partition(" s  ")[2])
        match deed.act:
            case Act.SEND | Act.REACT:
                self.send(user, key, deed.count, chance, react=deed.act is Act.REACT,
                          stubborn=deed.stubborn)  # fmt: skip
            case Act.ADD | Act.REMOVE:
                self._spawn(partial(self._change, key, user.user, chance, add=deed.act is Act.ADD))
            case _:
                self._use(self._world.device(user, deed.device), deed.act, key, chance)

    # --- SENDs ---

    def send(
        self,
        user: UserKey,
        key: ConversationKey,
        count: int,
        chance: random.Random,
        *,
        react: bool = False,
        stubborn: bool = True,
    ) -> None:
        """Let a user say something."""
        drafts: list[Draft] = []
        for _ in range(1 if react else count):
            self._said += 1
            name = f"m{self._said}"
            kind = EventKind.REACTION if react else EventKind.MESSAGE
            drafts.append(Draft(name, kind, name.encode(), target_seq=1 if react else 0))
        said = [Said(key, user.user, draft.client_msg_id, draft.body) for draft in drafts]
        self._world.ledger.said.extend(said)
        left = list(zip(said, drafts, strict=True))
        self._spawn(partial(self._say, user, key, left, chance, stubborn))

    async def _say(
        self,
        user: UserKey,
        key: ConversationKey,
        left: list[tuple[Said, Draft]],
        chance: random.Random,
        stubborn: bool,
    ) -> None:
        while left:
            answers = await self._try(user, key, [draft for _, draft in left], chance)
            again: list[tuple[Said, Draft]] = []
            for (said, draft), answer in zip(left, answers, strict=True):
                wrong = self._world.ledger.answered(said, answer)
                wrong = wrong or self._untrue(said, answer)
                if wrong is not None:
                    self._world.violate(wrong)
                final = isinstance(answer, QimError) and answer.code in _FINAL
                # Some of what was accepted is asked for once more: its first result is the answer.
                if not final and (not isinstance(answer, Accepted) or chance.random() < 0.1):
                    again.append((said, draft))
            left = again if stubborn else []
            if left:
                await asyncio.sleep(chance.uniform(PAUSE_MIN_S, PAUSE_MAX_S))

    def _untrue(self, said: Said, answer: Accepted | QimError | None) -> str | None:
        """What is wrong with "nothing was written", if it was said and something is there."""
        if said.open_tries or not isinstance(answer, QimError):
            return None
        stored = self._world.cluster.conversations.conversations.get(said.key)
        name = IdempotencyKey(UserId(said.user), said.client_msg_id)
        if stored is None or name not in stored.idempotency or said.accepted is not None:
            return None
        return f"{said.user} was told of {said.client_msg_id}: {answer}; and it is there"

    async def _try(
        self, user: UserKey, key: ConversationKey, drafts: list[Draft], chance: random.Random
    ) -> Answers:
        online = [
            device.link
            for device in self._world.devices_of(user)
            if device.link is not None and device.link.ready
        ]
        try:
            if online and chance.random() < 0.4:
                link = online[int(chance.random() * len(online))]
                frame = await link.ask(
                    send=gateway_pb2.Send(
                        conversation_id=key.conversation, events=[_outgoing(one) for one in drafts]
                    )
                )
                return [_answer(result) for result in frame.send_ack.results]
            command = Commit(key, user.user, DeviceId("d0"), drafts)
            given = await self._anywhere(key, lambda node: node.writer.commit(command), chance)
            return list(given)
        except QimError as error:
            return [error] * len(drafts)
        except (Gone, TimeoutError):
            return [None] * len(drafts)

    async def _anywhere(
        self, key: ConversationKey, call: Callable[[Node], Awaitable[T]], chance: random.Random
    ) -> T:
        shard = self._world.table.writer_shard(key.tenant, key.conversation)
        servers = self._world.servers
        # Most have been told where to go by now; the others try anywhere.
        if chance.random() < TOLD_RATE:
            servers = [one for one in servers if one.owns(ShardKind.WRITER, shard)]
        if not servers:
            raise unavailable("nothing was written: nobody serves the conversation")
        server = servers[int(chance.random() * len(servers))]

        async def made(node: Node) -> T:
            return await call(node)

        return await server.ask(made, ANSWER_S)

    # --- administration ---

    async def _create(
        self, key: ConversationKey, members: list[UserId], chance: random.Random
    ) -> None:
        await self._until_done(
            key,
            lambda node: node.writer.create_conversation(key.tenant, key.conversation, members),
            chance,
        )
        # Its first event is the creation's: an addition that came first would be another creation.
        self._created[key].set()

    async def _change(
        self, key: ConversationKey, user: UserId, chance: random.Random, *, add: bool
    ) -> None:
        await self._created[key].wait()
        await self._until_done(
            key,
            lambda node: (node.writer.add_members if add else node.writer.remove_members)(
                key.tenant, key.conversation, [user]
            ),
            chance,
        )

    async def _until_done(
        self, key: ConversationKey, call: Callable[[Node], Awaitable[object]], chance: random.Random
    ) -> None:
        while True:
            try:
                await self._anywhere(key, call, chance)
            except QimError as error:
                # A conversation that is not made yet, too: somebody is about to make it.
                if not (error.retryable or error.code is ErrorCode.NOT_FOUND):
                    self._world.violate(f"the administrator was told {error}")
                    return
            except TimeoutError:
                pass
            else:
                return
            await asyncio.sleep(chance.uniform(PAUSE_MIN_S, PAUSE_MAX_S))

    # --- what a device asks for ---

    def _use(self, device: Device, act: Act, key: ConversationKey, chance: random.Random) -> None:
        match act:
            case Act.CONNECT:
                device.connect()
            case Act.DISCONNECT:
                device.disconnect()
            case Act.FORGET:
                device.forget()
            case Act.MARK:
                self._look(device, partial(self._mark, device, key, chance))
            case Act.LIST:
                self._look(device, partial(self._list, device))
            case Act.HISTORY:
                self._look(device, partial(self._history, device, key, chance))
            case Act.REPORT:
                self._look(device, partial(self._report, device, key))
            case Act.STEAL:
                self._look(device, partial(self._steal, device, chance))
            case _:
                raise ValueError(f"{act} needs no device")

    def _look(self, device: Device, ask: Callable[[Link], Awaitable[None]]) -> None:
        """Have somebody open the device for one thing, and put it away again if it was off."""

        async def tried() -> None:
            was_wanted = device.wanted
            # One try: what is not answered now was not needed.
            with suppress(QimError, Gone):
                await ask(await device.opened())
            if not was_wanted and not self._world.finale:
                device.disconnect()

        device.process.spawn(tried(), "look")

    async def _mark(
        self, device: Device, key: ConversationKey, chance: random.Random, link: Link
    ) -> None:
        known = [seq for name, seq, _ in device.seen.values() if name == key.conversation]
        if not known:
            return
        through = known[int(chance.random() * len(known))] + chance.choice((0, 0, 0, 5))
        marks = self._world.ledger.marks.setdefault(
            (key.tenant, device.key.user, key.conversation), []
        )
        marks.append((through, -1))
        place = len(marks) - 1
        asked = gateway_pb2.MarkRead(conversation_id=key.conversation, read_through_seq=through)
        answer = (await link.ask(mark_read=asked)).read_ok
        marks[place] = (through, answer.read_through_seq)

    async def _list(self, device: Device, link: Link) -> None:
        told: list[str] = []
        token = b""
        while True:
            asked = gateway_pb2.PullSessionList(page_token=token, limit=1)
            page = (await link.ask(pull_session_list=asked)).session_list
            told.extend(session.conversation_id for session in page.sessions)
            token = page.next_page_token
            if not token:
                break
        if len(told) != len(dict.fromkeys(told)):
            self._world.violate(f"{device.name}'s session list shows a conversation twice: {told}")

    async def _history(
        self, device: Device, key: ConversationKey, chance: random.Random, link: Link
    ) -> None:
        asked = gateway_pb2.PullHistory(
            conversation_id=key.conversation, limit=chance.choice((1, 5, 500))
        )
        page = (await link.ask(pull_history=asked)).history_page
        visible = self._world.model.visible(key, device.key.user)
        for event in page.events:
            if event.conversation_seq not in visible:
                self._world.violate(
                    f"{device.name} was shown seq {event.conversation_seq} of "
                    f"{key.conversation}, outside of its memberships"
                )

    async def _report(self, device: Device, key: ConversationKey, link: Link) -> None:
        known = [seq for name, seq, _ in device.seen.values() if name == key.conversation]
        if not known:
            return
        asked = gateway_pb2.Report(
            kind=gateway_pb2.REPORT_KIND_GAP,
            conversation_id=key.conversation,
            from_conversation_seq=min(known),
            through_conversation_seq=max(known) + 2,
            covered_through_seq=device.covered,
        )
        if (await link.ask(report=asked)).report_ok.confirmed:
            self._world.violate(f"the server takes {device.name}'s report of a gap for true")

    async def _steal(self, device: Device, chance: random.Random, link: Link) -> None:
        others = [
            token for key, token in self._world.tokens.items() if key.owner != device.key.owner
        ]
        if not others:
            return
        asked = gateway_pb2.PullMailbox(cursor_token=others[int(chance.random() * len(others))])
        self._world.saw_text("another's cursor was tried")
        frame = await link.ask(pull_mailbox=asked)
        if frame.WhichOneof("frame") == "mailbox_page":
            self._world.violate(f"{device.name} was served under another user's cursor")

    def _spawn(self, do: Callable[[], Awaitable[None]]) -> None:
        async def counted() -> None:
            self.busy += 1
            await do()
            self.busy -= 1

        self._process.spawn(counted(), "deed")


def _outgoing(draft: Draft) -> gateway_pb2.OutgoingEvent:
    if draft.kind == EventKind.REACTION:
        reaction = event_pb2.Reaction(target_seq=draft.target_seq, reaction=draft.body.decode())
        return gateway_pb2.OutgoingEvent(client_msg_id=draft.client_msg_id, reaction=reaction)
    message = event_pb2.Message(body=draft.body)
    return gateway_pb2.OutgoingEvent(client_msg_id=draft.client_msg_id, message=message)


def _answer(result: gateway_pb2.SendResult) -> Accepted | QimError:
    if result.WhichOneof("outcome") == "error":
        return error_of(result.error)
    accepted = result.accepted
    return Accepted(
        accepted.event_id,  # type: ignore[arg-type]
        accepted.conversation_seq,
        accepted.created_at_ms,
        accepted.duplicate,
    )
