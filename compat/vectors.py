"""Vectors of what the contract fixes beside bytes of messages: routing, ids, cursor signatures."""

import hashlib
import hmac
import json
from pathlib import Path

from compat.cases import TEXTS
from compat.messages import TOP
from qimd.contract.cursor import CursorClaims, CursorKeys, sign_cursor
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId, dispatch_id, event_id
from qimd.core.records import DeviceKey
from qimd.core.routing import RoutingTable, lane_of, route_hash, slot_of
from qimd.core.seq import mailbox_seq

CURSOR_KEY = hashlib.sha256(b"a key for vectors alone").digest()
SHARDS = (1, 2, 8, 256)


def folder(release: str) -> Path:
    """Where a release's vectors lie."""
    return TOP / "compat" / "golden" / release / "vectors"


def routing() -> list[dict[str, object]]:
    """Hash, slot, lane and default shards of ids."""
    rows: list[dict[str, object]] = []
    for tenant in ("t", "tenant-1", *TEXTS):
        for entity in ("u", "user-000001", *TEXTS):
            route = route_hash(tenant, entity)
            shards = {
                str(count): RoutingTable(1, count, count).mailbox(TenantId(tenant), UserId(entity))[
                    0
                ]
                for count in SHARDS
            }
            rows.append(
                {
                    "tenant": tenant,
                    "id": entity,
                    "hash": f"{route:016x}",
                    "slot": slot_of(route),
                    "lane": lane_of(route),
                    "shard_of_count": shards,
                }
            )
    return rows


def ids() -> list[dict[str, object]]:
    """event_id, dispatch_id and mailbox_seq."""
    rows: list[dict[str, object]] = []
    for tenant, conversation, seq in (
        ("t", "c", 1),
        ("t:c", "", 1),
        ("t", ":c", 1),
        *((text, text, (1 << 53) - 1) for text in TEXTS),
    ):
        event = event_id(TenantId(tenant), ConversationId(conversation), seq)
        rows.append(
            {
                "tenant": tenant,
                "conversation": conversation,
                "conversation_seq": str(seq),
                "event_id": event.hex(),
                "dispatch_id_shard_3_chunk_1": dispatch_id(event, 3, 1).hex(),
            }
        )
    rows += [
        {
            "shard_epoch": epoch,
            "offset": str(offset),
            "mailbox_seq": str(mailbox_seq(epoch, offset)),
        }
        for epoch, offset in ((1, 0), (1, 1), (2, 0), (4095, (1 << 43) - 1))
    ]
    return rows


def cursors() -> list[dict[str, object]]:
    """Cursor tokens under a known key."""
    keys = CursorKeys(current="k1", keys={"k1": CURSOR_KEY})
    rows: list[dict[str, object]] = []
    for index, text in enumerate(TEXTS):
        claims = CursorClaims(
            mailbox_shard=index,
            lane=63 - index,
            shard_epoch=1 + index,
            device=DeviceKey(TenantId(text), UserId(text), DeviceId(text)),
            issued_at_ms=1_700_000_000_000 + index,
            key_id="k1",
        )
        token = sign_cursor(claims, keys)
        rows.append({"key": CURSOR_KEY.hex(), "text": text, "index": index, "token": token.hex()})
    return rows


def independent_signature(cursor: bytes) -> bytes:
    """The signature as proto/qim/cursor states it, computed without the project's code."""
    return hmac.new(CURSOR_KEY, b"qim.cursor.v1\x00" + cursor, hashlib.sha256).digest()


def files() -> dict[str, bytes]:
    """File name → content."""
    made = {"routing.json": routing(), "ids.json": ids(), "cursors.json": cursors()}
    return {
        name: (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()
        for name, rows in made.items()
    }
