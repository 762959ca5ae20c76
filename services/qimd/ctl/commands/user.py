"""What a user's device does: send, read, replay a recorded chat."""

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from qimd.ctl.options import Options, as_user, shared
from qimd.ctl.output import Column, Emit, Row, note

if TYPE_CHECKING:
    from qimd.client import Client, Event, Rebased

T = TypeVar("T")

_SENT: Final = (
    Column("conversation"),
    Column("conversation_seq", "seq"),
    Column("event_id"),
    Column("created_at_ms", "created", time=True),
    Column("duplicate"),
    Column("client_msg_id"),
)
_EVENT: Final = (
    Column("created_at_ms", "created", time=True),
    Column("conversation"),
    Column("conversation_seq", "seq"),
    Column("kind"),
    Column("sender"),
    Column("event_id"),
    Column("content"),
)
_SESSION: Final = (
    Column("conversation"),
    Column("unread"),
    Column("read_through_seq", "read"),
    Column("activity_at_ms", "activity", time=True),
    Column("last_seq", "last"),
    Column("last_sender", "sender"),
    Column("preview"),
)
_REPLAYED: Final = (
    Column("conversation"),
    Column("members"),
    Column("sent"),
    Column("duplicates"),
    Column("seconds"),
    Column("sends_per_second", "sends/s"),
    Column("ack_p50_ms", "ack p50 ms"),
    Column("ack_p99_ms", "ack p99 ms"),
    Column("in_order"),
)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a client's work; what stopped the client for good becomes a refusal."""
    import asyncio

    from qimd.client import ClientStopped

    try:
        return asyncio.run(work)
    except ClientStopped as error:
        raise click.ClickException(f"{error}. Another --device does not get in the way.") from None


@click.command()
@click.argument("conversation")
@click.argument("body", required=False)
@click.option(
    "--msg-id", default="", metavar="ID", help="client_msg_id; the same takes effect once."
)
@click.option("--react-to", type=int, metavar="SEQ", help="Send BODY as a reaction to this event.")
@as_user
@shared()
@click.pass_obj
def send(
    options: Options,
    conversation: str,
    body: str | None,
    msg_id: str,
    react_to: int | None,
    user: str | None,
    device: str,
) -> None:
    """Send BODY, or standard input where there is none. Done means durable."""
    content = sys.stdin.buffer.read() if body is None else body.encode(errors="surrogateescape")
    client = options.client(user, device, push_events=False)

    async def work() -> Row:
        async with client:
            if react_to is None:
                sent = await client.send(conversation, content, client_msg_id=msg_id)
            else:
                sent = await client.react(
                    conversation, react_to, content.decode(), client_msg_id=msg_id
                )
        return {
            "conversation": conversation,
            "conversation_seq": sent.seq,
            "event_id": sent.event_id.hex(),
            "created_at_ms": sent.created_at_ms,
            "duplicate": sent.duplicate,
            "client_msg_id": sent.client_msg_id,
        }

    options.out.record(_SENT, run(work()))


@click.command()
@click.option(
    "--ack/--no-ack",
    default=False,
    show_default=True,
    help="Move this device's position behind what is shown.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after so many events.")
@as_user
@shared()
@click.pass_obj
def pull(options: Options, ack: bool, limit: int | None, user: str | None, device: str) -> None:
    """Show what is in the user's mailbox behind this device's position."""
    client = options.client(user, device, auto_ack=False)

    async def work(emit: Emit) -> None:
        async with client:
            shown = 0
            async for item in client.events(until_caught_up=True):
                emit(_event_row(item))
                shown += 1
                if shown == limit:
                    break
            if ack:
                await client.ack()
            _tell_reports(client)

    with options.out.stream(_EVENT) as emit:
        run(work(emit))


@click.command()
@click.option("--all", "everything", is_flag=True, help="Begin with what is there already.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after so many events.")
@as_user
@shared()
@click.pass_obj
def tail(
    options: Options, everything: bool, limit: int | None, user: str | None, device: str
) -> None:
    """Show events as they come, until interrupted. No position moves."""
    client = options.client(user, device, auto_ack=False)

    async def work(emit: Emit) -> None:
        async with client:
            if not everything:
                async for _ in client.events(until_caught_up=True):
                    pass
            note("following; Ctrl-C ends it")
            shown = 0
            async for item in client.events():
                emit(_event_row(item))
                shown += 1
                if shown == limit:
                    break
            _tell_reports(client)

    with options.out.stream(_EVENT) as emit:
        run(work(emit))


@click.command()
@as_user
@shared()
@click.pass_obj
def sessions(options: Options, user: str | None, device: str) -> None:
    """List the user's conversations, the latest activity first."""
    client = options.client(user, device)

    async def work() -> list[Row]:
        async with client:
            return [
                {
                    "conversation": one.conversation,
                    "unread": one.unread,
                    "read_through_seq": one.read_through_seq,
                    "activity_at_ms": one.activity_at_ms,
                    "last_seq": one.last_seq,
                    "last_event_id": one.last_event_id.hex(),
                    "last_sender": one.last_sender,
                    "preview": one.preview,
                }
                async for one in client.sessions()
            ]

    options.out.rows(_SESSION, run(work()))


@click.command()
@click.argument("conversation")
@click.option(
    "--before", type=int, default=0, metavar="SEQ", help="Below this event. [default: the end]"
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N")
@as_user
@shared()
@click.pass_obj
def history(
    options: Options, conversation: str, before: int, limit: int, user: str | None, device: str
) -> None:
    """Show the newest events of a conversation, in its order."""
    client = options.client(user, device)

    async def work() -> list[Row]:
        async with client:
            page = await client.history(conversation, before_seq=before, limit=limit)
        if page.more:
            note(f"there is more: --before {page.events[0].seq}")
        return [_event_row(event) for event in page.events]

    options.out.rows(_EVENT, run(work()))


@click.command("mark-read")
@click.argument("conversation")
@click.argument("seq", type=click.IntRange(min=0))
@as_user
@shared()
@click.pass_obj
def mark_read(options: Options, conversation: str, seq: int, user: str | None, device: str) -> None:
    """Raise the user's read mark to SEQ; it never goes back."""
    client = options.client(user, device)

    async def work() -> Row:
        async with client:
            mark = await client.mark_read(conversation, seq)
        return {
            "conversation": mark.conversation,
            "read_through_seq": mark.read_through_seq,
            "unread": mark.unread,
        }

    columns = (Column("conversation"), Column("read_through_seq"), Column("unread"))
    options.out.record(columns, run(work()))


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--conversation", metavar="ID", help="Made if it is not there. [default: a new one]")
@click.option(
    "--streams",
    type=click.IntRange(1, 1_000),
    default=64,
    show_default=True,
    metavar="N",
    help="Streams open at once; the longest silent speaker makes room.",
)
@shared()
@click.pass_obj
def replay(options: Options, file: Path, conversation: str | None, streams: int) -> None:
    """Replay a recorded chat: every speaker on a stream of their own, in the order of `n`.

    FILE has one JSON object a line: n, kind (message, action; others are passed over), user, text.
    """
    import secrets

    from qimd.client.chat import read_chat, speakers
    from qimd.client.replay import Speakers, Statistics, replay_turns
    from qimd.ctl.progress import progress

    lines = read_chat(file)
    people = speakers(lines)
    name = conversation or f"{file.stem}-{secrets.token_hex(4)}"[-128:]
    with options.admin() as admin:
        admin.create_conversation(options.the_tenant(), name, people)
    statistics = Statistics()

    async def work() -> None:
        pool = Speakers(
            lambda user: options.client(user, f"replay-{user}"[:100], push_events=False), streams
        )
        async with pool:
            with progress(f"replaying {file.name}", len(lines)) as advance:
                async for turn in replay_turns(lines, pool, name, file.stem):
                    statistics.add(turn)
                    advance(len(turn.lines))

    run(work())
    options.out.record(
        _REPLAYED,
        {
            "conversation": name,
            "members": len(people),
            "sent": statistics.sent,
            "duplicates": statistics.duplicates,
            "seconds": round(statistics.seconds, 2),
            "sends_per_second": round(statistics.sends_per_second),
            "ack_p50_ms": round(statistics.ack_ms(0.50), 1),
            "ack_p99_ms": round(statistics.ack_ms(0.99), 1),
            "in_order": statistics.in_order,
        },
    )


def _event_row(item: "Event | Rebased") -> Row:
    from qimd.client import EventKind, Rebased

    if isinstance(item, Rebased):
        return {
            "kind": "rebased",
            "lost_from_seq": str(item.lost_from_seq),
            "lost_through_seq": str(item.lost_through_seq),
            "content": f"gone: {item.lost_from_seq} to {item.lost_through_seq}",
        }
    row: dict[str, Any] = {
        "conversation": item.conversation,
        "conversation_seq": item.seq,
        "event_id": item.event_id.hex(),
        "kind": _kind(item.kind),
        "sender": item.sender,
        "sender_device": item.sender_device,
        "created_at_ms": item.created_at_ms,
        "client_msg_id": item.client_msg_id,
        # As text: a JSON number of this size is another number to most readers. A history has none.
        "mailbox_seq": str(item.mailbox_seq) if item.mailbox_seq else None,
        "content": item.body,
    }
    if item.kind == EventKind.REACTION:
        row |= {"target_seq": item.target_seq, "content": item.reaction}
    elif item.kind == EventKind.MEMBERSHIP:
        changes = [f"+{user}" for user in item.added] + [f"-{user}" for user in item.removed]
        row |= {"added": item.added, "removed": item.removed, "content": " ".join(changes)}
    return row


def _kind(kind: int) -> str:
    from qimd.client import EventKind

    try:
        return EventKind(kind).name.lower()
    except ValueError:
        return f"kind {kind}"


def _tell_reports(client: "Client") -> None:
    for report in client.reports:
        confirmed = {None: "not answered", True: "confirmed", False: "not confirmed"}
        note(
            f"warning: {report.kind.name} in {report.conversation}, seq {report.from_seq} to "
            f"{report.through_seq}; reported to the server: {confirmed[report.confirmed]}"
        )


COMMANDS: Final[tuple[click.Command, ...]] = (
    send,
    pull,
    tail,
    sessions,
    history,
    mark_read,
    replay,
)
