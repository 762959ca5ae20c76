"""The end of a run: what was promised, against what is there.

Each function looks at one promise and yields what is broken, in words. `World` calls them all once
everything is healed and has come to rest; the first sentence is the run's failure.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qim.conversation.v1.event_pb2 import ConversationEvent
from qimd.contract.codec import decode
from qimd.core.ids import event_id
from qimd.core.records import ConversationKey, EventKind, UserKey
from qimd.ports.projection import SessionRow
from qimd.telemetry.metrics import ZEROS

if TYPE_CHECKING:
    from tests.sim.world import World


def all_broken(world: "World") -> Iterator[str]:
    """Everything that is broken."""
    yield from store(world)
    yield from answers(world)
    yield from mailboxes(world)
    yield from log_function(world)
    yield from devices(world)
    yield from sessions(world)
    yield from zeros(world)


def store(world: "World") -> Iterator[str]:
    """Numbers without gaps, ids that are a function of them, times and epochs that only rise."""
    for key, stored in world.cluster.conversations.conversations.items():
        last_ms = last_epoch = 0
        for place, (event, epoch) in enumerate(stored.events, 1):
            if event.conversation_seq != place:
                yield f"{key.conversation}: seq {event.conversation_seq} stands at place {place}"
            if event.event_id != event_id(key.tenant, key.conversation, event.conversation_seq):
                yield f"{key.conversation}: seq {place} has another event_id than it must"
            if event.created_at_ms < last_ms:
                yield f"{key.conversation}: time goes back at seq {place}"
            if epoch < last_epoch:
                yield f"{key.conversation}: epoch {epoch} follows {last_epoch} at seq {place}"
            last_ms, last_epoch = event.created_at_ms, epoch
        if stored.state.dispatched_through != stored.state.head_version:
            yield f"{key.conversation}: the outbox is not empty"
        if stored.audited_through != stored.state.dispatched_through:
            yield f"{key.conversation}: the audit ends at {stored.audited_through}"


def answers(world: "World") -> Iterator[str]:
    """Accepted is durable, at most once; "nothing was written" is true."""
    stored: dict[tuple[ConversationKey, str], list[tuple[int, bytes, ConversationEvent]]] = {}
    for key, conversation in world.cluster.conversations.conversations.items():
        for event, _ in conversation.events:
            message = decode(ConversationEvent, event.encoded)
            if message.client_msg_id:
                place = (event.conversation_seq, event.event_id, message)
                stored.setdefault((key, message.client_msg_id), []).append(place)
    for said in world.ledger.said:
        found = stored.get((said.key, said.client_msg_id), [])
        name = f"{said.user}'s {said.client_msg_id}"
        if len(found) > 1:
            yield f"{name} is there {len(found)} times"
        if said.accepted is not None:
            places = [(seq, identity) for seq, identity, _ in found]
            if (said.accepted.conversation_seq, said.accepted.event_id) not in places:
                yield f"{name} was accepted as seq {said.accepted.conversation_seq}, and is not it"
        elif found and not said.open_tries:
            yield f"{name} is there, although every answer said that nothing was written"
        for _, _, message in found:
            body = message.message.body or message.reaction.reaction.encode()
            if (message.sender_user_id, body) != (said.user, said.body):
                yield f"{name} has another's content"


def mailboxes(world: "World") -> Iterator[str]:
    """Triples equal, no doubles, order kept, nothing from outside of a membership."""
    expected = world.model.expected()
    for user in dict.fromkeys((*expected, *world.cluster.mailbox.entries)):
        entries = world.cluster.mailbox.entries.get(user, [])
        found: Counter[tuple[str, int]] = Counter(
            (entry.ref.key.conversation, entry.ref.conversation_seq) for entry in entries
        )
        wanted = expected.get(user, {})
        for conversation, seq in wanted:
            if not found[conversation, seq]:
                yield f"lost: {user.user} lacks seq {seq} of {conversation}"
        for (conversation, seq), count in found.items():
            if (conversation, seq) not in wanted:
                yield f"{user.user} has seq {seq} of {conversation}, outside of its memberships"
            elif count > 1:
                yield f"{user.user} has seq {seq} of {conversation} {count} times"
        last: dict[str, int] = {}
        for entry in entries:
            conversation = entry.ref.key.conversation
            if entry.ref.conversation_seq < last.get(conversation, 0):
                yield f"disorder: {user.user} gets seq {entry.ref.conversation_seq} of " \
                      f"{conversation} behind {last[conversation]}"  # fmt: skip
            last[conversation] = entry.ref.conversation_seq


def log_function(world: "World") -> Iterator[str]:
    """Entries and epoch marks are what a plain reading of the log gives, number for number."""
    if world.log_lost:
        # What was read before is not there to be read again; the triples say what must be there.
        return
    of_log: dict[tuple[UserKey, int], bytes] = {}
    for shard, stored in world.cluster.mailbox.shards.items():
        entries, marks = world.model.of_log(shard)
        of_log.update(entries)
        for key, wanted in marks.items():
            if stored.marks.get(key, []) != wanted:
                yield (
                    f"shard {shard} keeps epoch marks {stored.marks.get(key, [])} of "
                    f"{key.conversation}; the log gives {wanted}"
                )
    held = {
        (user, int(entry.seq)): bytes(entry.ref.event_id)
        for user, entries_of in world.cluster.mailbox.entries.items()
        for entry in entries_of
    }
    for place in dict.fromkeys((*of_log, *held)):
        if of_log.get(place) != held.get(place):
            user, seq = place
            side = "only the log gives" if place in of_log else "only the mailbox has"
            yield f"{side} the entry of {user.user} at {seq}"


def devices(world: "World") -> Iterator[str]:
    """Every device's pulled history equals its mailbox."""
    for device in world.all_devices():
        held = {
            int(entry.seq): (
                entry.ref.key.conversation,
                entry.ref.conversation_seq,
                bytes(entry.ref.event_id),
            )
            for entry in world.cluster.mailbox.entries.get(device.key.owner, [])
        }
        if device.seen != held:
            yield (f"{device.name} pulled {len(device.seen)} events, its mailbox holds {len(held)}")


def sessions(world: "World") -> Iterator[str]:
    """Session list and unread, against a plain recomputation."""
    expected = world.model.expected()
    for user, wanted in expected.items():
        rows = {row.key.conversation: row for row in world.session_rows(user)}
        last: dict[str, int] = {}
        for conversation, seq in wanted:
            last[conversation] = max(seq, last.get(conversation, 0))
        if rows.keys() != last.keys():
            yield f"{user.user}'s session list has {sorted(rows)}, not {sorted(last)}"
            continue
        for conversation, row in rows.items():
            yield from _row(world, user, conversation, row)


def _row(world: "World", user: UserKey, conversation: str, row: SessionRow) -> Iterator[str]:
    key = row.key
    visible = world.model.visible(key, user.user)
    events = [
        event
        for event, _ in world.cluster.conversations.conversations[key].events
        if event.conversation_seq in visible
    ]
    name = f"{user.user}'s row of {conversation}"
    if row.applied_seq != events[-1].conversation_seq:
        yield f"{name} ends at seq {row.applied_seq}, not {events[-1].conversation_seq}"
    if row.activity_ms != max(event.created_at_ms for event in events):
        yield f"{name} was active at {row.activity_ms}"
    foreign = [
        event.conversation_seq
        for event in events
        if event.kind == EventKind.MESSAGE and event.sender != user.user
    ]
    unread = sum(seq > row.read_through for seq in foreign)
    if row.unread != unread:
        yield f"{name} says {row.unread} unread; {unread} lie above its mark {row.read_through}"
    marks = world.ledger.marks.get((key.tenant, user.user, conversation), [])
    if not marks and not world.log_lost:
        mark = count = 0
        for event in events:
            if event.sender == user.user:
                mark = event.conversation_seq if not count else mark
            elif event.kind == EventKind.MESSAGE:
                count += 1
        if row.read_through != mark:
            yield f"{name} is read through {row.read_through}; its own events say {mark}"
    answered = max((told for _, told in marks), default=0)
    if row.read_through < answered and not world.outages:
        yield f"{name} is read through {row.read_through}, after {answered} was acknowledged"


def zeros(world: "World") -> Iterator[str]:
    """The five that must stay zero, and defects, of every process that ever ran."""
    for server in world.servers:
        for metrics in server.metrics:
            for name in (*ZEROS, "defects_total"):
                for family in getattr(metrics, name).collect():
                    for sample in family.samples:
                        if not sample.name.endswith("_created") and sample.value:
                            yield f"{name} is {sample.value:g} on {server.name} {sample.labels}"
