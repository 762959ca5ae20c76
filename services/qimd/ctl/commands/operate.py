"""The running system: one event's way, quarantine, shards."""

from collections.abc import Callable
from typing import Final, TypeVar

import click

from qimd.core.errors import ErrorCode, QimError
from qimd.ctl.options import Options, shared
from qimd.ctl.output import Column, Row, note

T = TypeVar("T")

_STEP: Final = (
    Column("stage"),
    Column("verdict"),
    Column("at_ms", "at", time=True),
    Column("shard"),
    Column("offset"),
    Column("fencing_epoch", "epoch"),
    Column("chunk_index", "chunk"),
    Column("recipients"),
    Column("mailbox_seq"),
    Column("dispatch_id"),
)
_QUARANTINED: Final = (
    Column("at_ms", "at", time=True),
    Column("partition"),
    Column("offset"),
    Column("reason"),
    Column("size_bytes", "bytes"),
    Column("log_identity"),
)
_SHARD: Final = (
    Column("kind"),
    Column("shard"),
    Column("state"),
    Column("term"),
    Column("shard_epoch", "epoch"),
    Column("next_offset", "next"),
    Column("high_watermark", "high"),
    Column("lag"),
    Column("lagging_lanes", "lagging lanes"),
    Column("position_seq"),
)
_REBASED: Final = (
    Column("shard"),
    Column("fault"),
    Column("rebuild_epoch", "rebuild epoch"),
    Column("log_epoch", "log epoch"),
    Column("first_offset", "from offset"),
    Column("conversations"),
    Column("events"),
    Column("dry_run", "dry run"),
    Column("log_identity"),
)
_REBUILT: Final = (
    Column("partition"),
    Column("dirty"),
    Column("conversations"),
    Column("events"),
    Column("rows"),
    Column("next_offset", "from offset"),
    Column("dry_run", "dry run"),
    Column("log_identity"),
)


@click.command()
@click.argument("event_id")
@shared()
@click.pass_obj
def trace(options: Options, event_id: str) -> None:
    """Follow one event through every stage: commit, dispatch, mailbox, session.

    EVENT_ID is its 32 hexadecimal digits, as send and pull show them.
    """
    from qimd.core.ids import DIGEST_BYTES

    try:
        wanted = bytes.fromhex(event_id)
    except ValueError:
        wanted = b""
    if len(wanted) != DIGEST_BYTES:
        raise click.BadParameter(
            f"{event_id!r} is not {2 * DIGEST_BYTES} hexadecimal digits", param_hint="EVENT_ID"
        )
    with options.admin() as client:
        found = client.trace(wanted)
    note(
        f"{_kind(found.kind)} {found.conversation_seq} of {found.conversation_id} "
        f"(tenant {found.tenant_id})"
    )
    from qim.control.v1.control_service_pb2 import TraceStage, TraceVerdict

    stages = {number: name for name, number in TraceStage.items()}
    verdicts = {number: name for name, number in TraceVerdict.items()}
    rows: list[Row] = [
        {
            "stage": _short(stages, step.stage, "TRACE_STAGE_"),
            "verdict": _short(verdicts, step.verdict, "TRACE_VERDICT_"),
            "at_ms": step.at_ms or None,
            "shard": step.shard,
            "offset": step.offset if step.dispatch_id else None,
            "fencing_epoch": step.fencing_epoch,
            "dispatch_id": step.dispatch_id.hex(),
            "chunk_index": step.chunk_index if step.dispatch_id else None,
            "recipients": step.recipients if step.dispatch_id else None,
            "mailbox_seq": str(step.mailbox_seq) if step.mailbox_seq else None,
        }
        for step in found.steps
    ]
    options.out.rows(_STEP, rows)


def _kind(number: int) -> str:
    from qimd.core.records import EventKind

    try:
        return EventKind(number).name.lower()
    except ValueError:
        return f"kind {number}"


def _short(names: dict[int, str], number: int, prefix: str) -> str:
    return names.get(number, str(number)).removeprefix(prefix).lower()


@click.group()
def quarantine() -> None:
    """Records that could not be decoded, or not be produced."""


@quarantine.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True)
@shared()
@click.pass_obj
def list_quarantine(options: Options, limit: int) -> None:
    """List them, newest first."""
    with options.admin() as client:
        rows: list[Row] = [
            {
                "at_ms": one.at_ms,
                "log_identity": one.log_identity,
                "partition": one.partition,
                "offset": one.offset,
                "reason": one.reason,
                "size_bytes": one.size_bytes,
            }
            for one in client.quarantine(limit)
        ]
    options.out.rows(_QUARANTINED, rows)


@click.command()
@shared()
@click.pass_obj
def shards(options: Options) -> None:
    """Show the mailbox shards and the list's partitions, by the roles of the process asked."""
    with options.admin() as client:
        mailbox, projection = (
            _of_role(client.mailbox_shards),
            _of_role(client.projection_partitions),
        )
    if mailbox is None and projection is None:
        raise QimError(
            ErrorCode.INVALID_ARGUMENT,
            "the process has neither mailbox shards nor session partitions: ask one of the role "
            "mailbox or session",
        )
    rows: list[Row] = [
        {
            "kind": "mailbox",
            "shard": one.mailbox_shard_id,
            "state": one.fault or ("owned" if one.term else "not owned here"),
            "term": one.term,
            "shard_epoch": one.shard_epoch,
            "next_offset": one.next_offset,
            "high_watermark": one.high_watermark,
            "lag": max(0, one.high_watermark - one.next_offset),
            "lagging_lanes": [f"{lane.lane} ({lane.stalled_ms} ms)" for lane in one.lagging_lanes],
            "position_seq": str(one.position_seq),
            "watermark_floor_seq": str(one.watermark_floor_seq),
        }
        for one in mailbox or ()
    ]
    rows += [
        {
            "kind": "session",
            "shard": one.partition,
            "state": one.dirty or ("ready" if one.ready else "catching up"),
            "next_offset": one.next_offset,
            "high_watermark": one.high_watermark,
            "lag": max(0, one.high_watermark - one.next_offset),
        }
        for one in projection or ()
    ]
    options.out.rows(_SHARD, rows)


def _of_role(call: Callable[[], T]) -> T | None:
    """What a process of the role answers; None of one without it."""
    try:
        return call()
    except QimError as error:
        if error.code is ErrorCode.UNIMPLEMENTED:
            return None
        raise


@click.command()
@click.argument("shard", type=click.IntRange(0))
@click.option("--dry-run", is_flag=True, help="Show what it will touch, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared()
@click.pass_obj
def rebase(options: Options, shard: int, dry_run: bool, yes: bool) -> None:
    """Bring a halted mailbox shard back: its log is another one, or no longer covers its position.

    What its members lack is rebuilt from the store under a new shard_epoch, and the log is read on
    under the next. Devices are told by CURSOR_REBASED if anything of theirs can't be served.
    """
    with options.admin() as client:
        plan = client.rebase_shard(shard, dry_run=True)
        note(f"mailbox shard {shard} has halted: {plan.fault}")
        note(
            f"the rebuild goes through {plan.events} events of {plan.conversations} conversations "
            f"as shard_epoch {plan.rebuild_epoch}; the log {plan.log_identity} is read from offset "
            f"{plan.first_offset} on as shard_epoch {plan.log_epoch}"
        )
        if not dry_run:
            if not yes:
                click.confirm("Go on?", abort=True, err=True)
            plan = client.rebase_shard(shard, dry_run=False)
    options.out.record(
        _REBASED,
        {
            "shard": plan.mailbox_shard_id,
            "fault": plan.fault,
            "rebuild_epoch": plan.rebuild_epoch,
            "log_epoch": plan.log_epoch,
            "log_identity": plan.log_identity,
            "first_offset": plan.first_offset,
            "conversations": plan.conversations,
            "events": plan.events,
            "dry_run": plan.dry_run,
        },
    )


@click.command("rebuild-projection")
@click.argument("partition", type=click.IntRange(0))
@click.option("--dry-run", is_flag=True, help="Show what it will touch, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared()
@click.pass_obj
def rebuild_projection(options: Options, partition: int, dry_run: bool, yes: bool) -> None:
    """Bring a dirty partition of the session list back where a restart does not: its log is another
    one, or no longer covers its checkpoint.

    The session rows of its users are recounted from the store, and the log is read on from its end.
    Read marks stay. Nobody is served before every dirty partition is mended. A rebuild that takes
    longer than --timeout goes on in the server: `qimctl shards` shows when it is done.
    """
    with options.admin() as client:
        plan = client.rebuild_projection(partition, dry_run=True)
        note(f"projection partition {partition} is dirty: {plan.dirty}")
        note(
            f"the rebuild goes through {plan.events} events of {plan.conversations} conversations; "
            f"the log {plan.log_identity} is read from offset {plan.next_offset} on"
        )
        if not dry_run:
            if not yes:
                click.confirm("Go on?", abort=True, err=True)
            plan = client.rebuild_projection(partition, dry_run=False)
    options.out.record(
        _REBUILT,
        {
            "partition": plan.partition,
            "dirty": plan.dirty,
            "conversations": plan.conversations,
            "events": plan.events,
            "rows": plan.rows,
            "next_offset": plan.next_offset,
            "log_identity": plan.log_identity,
            "dry_run": plan.dry_run,
        },
    )


COMMANDS: Final[tuple[click.Command, ...]] = (trace, quarantine, shards, rebase, rebuild_projection)
