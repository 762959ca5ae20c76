"""The mailbox store's shadow: how far it follows, and the cut-over."""

from typing import TYPE_CHECKING, Final

import click

from qimd.ctl.options import Options, shared
from qimd.ctl.output import Column, Row, note

if TYPE_CHECKING:
    from qim.control.v1.shadow_service_pb2 import ShadowPair

_SHARD: Final = (
    Column("shard"),
    Column("position_seq"),
    Column("shadow_position_seq"),
    Column("waiting"),
    Column("state"),
)


@click.group()
def shadow() -> None:
    """The second mailbox store that follows the first one (--mailbox-shadow-backend)."""


@shadow.command("show")
@shared()
@click.pass_obj
def show_shadow(options: Options) -> None:
    """Show how far it follows in each shard of the process, and what differs."""
    with options.admin() as client:
        pair = client.describe_shadow()
    _tell(pair)
    options.out.rows(_SHARD, _rows(pair))


@shadow.command("switch")
@click.argument("primary")
@click.option("--dry-run", is_flag=True, help="Show what it will touch, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared()
@click.pass_obj
def switch_shadow(options: Options, primary: str, dry_run: bool, yes: bool) -> None:
    """Serve mailboxes from the engine PRIMARY (redis or scylla), and let the other one follow.

    Refused while an answer differs or the shadow is behind; the way back only while it is behind.
    Speaks for one process: switch each, then set --mailbox-backend to what they serve from.
    """
    with options.admin() as client:
        pair = client.switch_shadow(primary, dry_run=True)
        _tell(pair)
        if not dry_run:
            if not yes:
                click.confirm(f"Serve from {primary}?", abort=True, err=True)
            pair = client.switch_shadow(primary, dry_run=False)
            note(f"mailboxes are served from {pair.primary}")
    options.out.rows(_SHARD, _rows(pair))


def _tell(pair: "ShadowPair") -> None:
    note(
        f"mailboxes are served from {pair.primary}, followed by {pair.shadow}: "
        f"{pair.compared} answers compared, {pair.mismatches} differ"
    )
    if pair.devices_waiting or pair.devices_missed:
        note(f"{pair.devices_waiting} devices wait, {pair.devices_missed} were missed")
    for sample in pair.samples:
        note(
            f"{sample.asked}\n  {pair.primary}: {sample.primary}\n  {pair.shadow}: {sample.shadow}"
        )
    note(f"a cut-over is refused: {pair.obstacle}" if pair.obstacle else "a cut-over is possible")


def _rows(pair: "ShadowPair") -> list[Row]:
    return [
        {
            "shard": one.mailbox_shard_id,
            "position_seq": str(one.position_seq),
            "shadow_position_seq": str(one.shadow_position_seq),
            "waiting": one.waiting,
            "state": f"lost: {one.lost}" if one.lost else "follows",
        }
        for one in pair.shards
    ]


COMMANDS: Final[tuple[click.Command, ...]] = (shadow,)
