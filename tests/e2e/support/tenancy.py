"""What a test does as an operator of one tenant: tokens, conversations, mailboxes, counters."""

import asyncio
import base64
import itertools
import re
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.e2e.support.dev import DevServer
from tests.e2e.support.stream import PATIENCE_S, Stream, device_stream

from qim.conversation.v1 import conversation_service_pb2 as conversation_pb
from qim.conversation.v1.conversation_service_pb2_grpc import ConversationServiceStub
from qim.gateway.v1.gateway_pb2 import DeliveredEvent
from qim.mailbox.v1 import mailbox_service_pb2 as mailbox_pb
from qim.mailbox.v1.mailbox_service_pb2_grpc import MailboxServiceStub
from qimd.contract.grpc_status import from_rpc_error
from qimd.core.errors import QimError
from qimd.telemetry.metrics import ZEROS

_numbers = itertools.count(1)


def fresh(name: str) -> str:
    """A name that no other test of this run uses."""
    return f"{name}-{next(_numbers)}"


class Tenancy:
    """One tenant of a running server, the seeded one unless another is named."""

    def __init__(self, server: DevServer, tenant: str = "dev") -> None:
        self.server = server
        self.tenant = tenant
        document = server.credentials
        self.key_id = document["key_id"]
        self._key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(document["private_key"]))

    @property
    def public_key(self) -> bytes:
        """The key that its tokens are signed with: 32 raw bytes."""
        return self._key.public_key().public_bytes_raw()

    def token(self, user: str, device: str = "phone", **claims: object) -> str:
        """An access token, its claims replaced by those given."""
        now_s = int(time.time())
        payload: dict[str, object] = {
            "sub": user,
            "tenant": self.tenant,
            "device": device,
            "jti": secrets.token_hex(8),
            "iat": now_s,
            "exp": now_s + 3600,
            **claims,
        }
        return jwt.encode(payload, self._key, algorithm="EdDSA", headers={"kid": self.key_id})

    def device(self, user: str, device: str = "phone") -> AbstractAsyncContextManager[Stream]:
        """An authenticated stream of a user's device."""
        return device_stream(self.server.grpc, self.token(user, device))

    def operator(self) -> AbstractAsyncContextManager["Operator"]:
        """Administration calls, on a connection of their own."""
        return _operator(self)

    def qimctl(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """`qimctl …` against this server, to its end."""
        command = [sys.executable, "-c", "from qimd.ctl.main import main; main()"]
        return subprocess.run(
            [*command, "--data", str(self.server.data), "--tenant", self.tenant, *arguments],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )


class Operator:
    """Administration calls. A refusal is raised as its QimError."""

    def __init__(self, tenancy: Tenancy, channel: grpc.aio.Channel) -> None:
        self._tenant = tenancy.tenant
        self._metadata = tenancy.server.admin
        self._conversations = ConversationServiceStub(channel)
        self._mailbox = MailboxServiceStub(channel)

    async def call(self, method: Any, request: Any) -> Any:
        """One call on the admin token. Raises QimError."""
        try:
            return await method(request, timeout=PATIENCE_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def create(
        self, conversation: str, members: Sequence[str]
    ) -> conversation_pb.Conversation:
        """CreateConversation."""
        request = conversation_pb.CreateConversationRequest(
            tenant_id=self._tenant, conversation_id=conversation, member_user_ids=members
        )
        return (await self.call(self._conversations.CreateConversation, request)).conversation

    async def add(
        self, conversation: str, users: Sequence[str]
    ) -> conversation_pb.AddMembersResponse:
        """AddMembers."""
        request = conversation_pb.AddMembersRequest(
            tenant_id=self._tenant, conversation_id=conversation, user_ids=users
        )
        answer: conversation_pb.AddMembersResponse = await self.call(
            self._conversations.AddMembers, request
        )
        return answer

    async def remove(
        self, conversation: str, users: Sequence[str]
    ) -> conversation_pb.RemoveMembersResponse:
        """RemoveMembers."""
        request = conversation_pb.RemoveMembersRequest(
            tenant_id=self._tenant, conversation_id=conversation, user_ids=users
        )
        answer: conversation_pb.RemoveMembersResponse = await self.call(
            self._conversations.RemoveMembers, request
        )
        return answer

    async def get(self, conversation: str) -> conversation_pb.Conversation:
        """GetConversation."""
        request = conversation_pb.GetConversationRequest(
            tenant_id=self._tenant, conversation_id=conversation
        )
        return (await self.call(self._conversations.GetConversation, request)).conversation

    async def members(
        self, conversation: str, *, after: str = "", limit: int = 0
    ) -> conversation_pb.ListMembersResponse:
        """ListMembers."""
        request = conversation_pb.ListMembersRequest(
            tenant_id=self._tenant, conversation_id=conversation, after_user_id=after, limit=limit
        )
        answer: conversation_pb.ListMembersResponse = await self.call(
            self._conversations.ListMembers, request
        )
        return answer

    async def head(self, conversation: str) -> int:
        """head_version: what a refusal must leave as it was."""
        return int((await self.get(conversation)).head_version)

    async def mailbox(self, user: str, count: int = 0) -> list[DeliveredEvent]:
        """A user's whole mailbox, once it holds `count` events. It moves no position."""
        found: list[DeliveredEvent] = []
        after = 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                page = await self.call(
                    self._mailbox.ReadMailbox,
                    mailbox_pb.ReadMailboxRequest(
                        tenant_id=self._tenant, user_id=user, after_seq=after
                    ),
                )
                found += page.events
                after = page.covered_through_seq
                if not page.more and len(found) >= count:
                    return found


@asynccontextmanager
async def _operator(tenancy: Tenancy) -> AsyncIterator[Operator]:
    async with tenancy.server.channel() as channel:
        yield Operator(tenancy, channel)


async def refused(call: Any) -> tuple[str, str]:
    """(code, field) of an administration call that must be refused."""
    try:
        answer = await call
    except QimError as error:
        return error.code.name, error.field
    raise AssertionError(f"it was not refused: {answer}")


def samples(server: DevServer) -> dict[str, float]:
    """Every sample of /metrics by its text, labels included."""
    lines = (line for line in server.get("/metrics").splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def zeros(server: DevServer) -> dict[str, float]:
    """The five counters that must stay zero."""
    found = samples(server)
    return {name: found[name] for name in ZEROS}


def resident_bytes(server: DevServer) -> int:
    """VmRSS of the server."""
    assert server.process is not None
    with open(f"/proc/{server.process.pid}/status") as status:
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status.read(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
