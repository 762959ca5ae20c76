"""Tenants, conversations and their members."""

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from qimd.ctl.options import Options, shared
from qimd.ctl.output import Column, Row

if TYPE_CHECKING:
    from qim.conversation.v1.conversation_service_pb2 import Conversation
    from qim.tenant.v1.tenant_service_pb2 import Tenant

_TENANT: Final = (Column("tenant"), Column("keys"), Column("created_at_ms", "created", time=True))
_CONVERSATION: Final = (
    Column("tenant"),
    Column("conversation"),
    Column("member_count", "members"),
    Column("head_version"),
    Column("dispatched_through"),
    Column("membership_version"),
    Column("fencing_epoch"),
    Column("created_at_ms", "created", time=True),
)
_MEMBER: Final = (Column("user"), Column("added_seq"))


@click.group()
def tenant() -> None:
    """Tenants and the keys that sign their users' tokens."""


@tenant.command("create")
@click.argument("tenant_id", metavar="TENANT")
@click.option(
    "--key",
    "keys",
    metavar="ID=BASE64",
    multiple=True,
    help="A public key: its id, and 32 raw Ed25519 bytes in base64. May be repeated.",
)
@shared()
@click.pass_obj
def create_tenant(options: Options, tenant_id: str, keys: Sequence[str]) -> None:
    """Create a tenant. Repeating it with the same keys changes nothing."""
    parsed = dict(map(_key, keys))
    with options.admin() as client:
        made = client.create_tenant(tenant_id, parsed)
    options.out.record(_TENANT, _tenant_row(made))


@tenant.command("get")
@click.argument("tenant_id", metavar="TENANT")
@shared()
@click.pass_obj
def get_tenant(options: Options, tenant_id: str) -> None:
    """Show a tenant and the ids of its keys."""
    with options.admin() as client:
        found = client.get_tenant(tenant_id)
    options.out.record(_TENANT, _tenant_row(found))


_KEY_CHARACTERS: Final = 44
"""32 bytes in base64. Counted from the end, since an id may hold a `=` and base64 ends with one."""


def _key(text: str) -> tuple[str, bytes]:
    head, value = text[:-_KEY_CHARACTERS], text[-_KEY_CHARACTERS:]
    try:
        key = base64.b64decode(value, validate=True)
    except binascii.Error:
        key = b""
    if not head.endswith("=") or not key:
        raise click.BadParameter(
            f"{text!r} is not ID=BASE64 with 32 bytes", param_hint="--key"
        ) from None
    return head[:-1], key


def _tenant_row(found: "Tenant") -> Row:
    return {
        "tenant": found.tenant_id,
        "keys": [key.key_id for key in found.keys],
        "created_at_ms": found.created_at_ms,
    }


@click.group()
def conversation() -> None:
    """Conversations."""


@conversation.command("create")
@click.argument("name", metavar="CONVERSATION")
@click.option("--member", "members", metavar="USER", multiple=True, help="May be repeated.")
@shared()
@click.pass_obj
def create_conversation(options: Options, name: str, members: Sequence[str]) -> None:
    """Create a conversation with its first members. Repeating it changes nothing."""
    with options.admin() as client:
        made = client.create_conversation(options.the_tenant(), name, members)
    options.out.record(_CONVERSATION, _conversation_row(made))


@conversation.command("get")
@click.argument("name", metavar="CONVERSATION")
@shared()
@click.pass_obj
def get_conversation(options: Options, name: str) -> None:
    """Show a conversation's head, how far it is dispatched, and its members' number."""
    with options.admin() as client:
        found = client.get_conversation(options.the_tenant(), name)
    options.out.record(_CONVERSATION, _conversation_row(found))


def _conversation_row(found: "Conversation") -> Row:
    return {
        "tenant": found.tenant_id,
        "conversation": found.conversation_id,
        "member_count": found.member_count,
        "head_version": found.head_version,
        "dispatched_through": found.dispatched_through,
        "membership_version": found.membership_version,
        "fencing_epoch": found.fencing_epoch,
        "created_at_ms": found.created_at_ms,
    }


@click.group()
def members() -> None:
    """Members of a conversation."""


@members.command("list")
@click.argument("name", metavar="CONVERSATION")
@shared()
@click.pass_obj
def list_members(options: Options, name: str) -> None:
    """List the members, and the event that added each."""
    with options.admin() as client:
        found = client.members(options.the_tenant(), name)
        rows: list[Row] = [{"user": one.user_id, "added_seq": one.added_seq} for one in found]
    options.out.rows(_MEMBER, rows)


@members.command("add")
@click.argument("name", metavar="CONVERSATION")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@shared()
@click.pass_obj
def add_members(options: Options, name: str, users: Sequence[str]) -> None:
    """Add members; they see what comes from here on."""
    with options.admin() as client:
        changed = client.add_members(options.the_tenant(), name, users)
    options.out.record(_CONVERSATION, _conversation_row(changed))


@members.command("remove")
@click.argument("name", metavar="CONVERSATION")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@shared()
@click.pass_obj
def remove_members(options: Options, name: str, users: Sequence[str]) -> None:
    """Remove members; they keep what they have received."""
    with options.admin() as client:
        changed = client.remove_members(options.the_tenant(), name, users)
    options.out.record(_CONVERSATION, _conversation_row(changed))


COMMANDS: Final[tuple[click.Command, ...]] = (tenant, conversation, members)
