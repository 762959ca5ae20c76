"""What a server meets from clients that are odd, broken or hostile.

Odd ids and bodies come out exactly as they went in, on every way out. What breaks the contract is
refused by a typed error, and costs no one else anything: the stream it came on goes on.
"""

import base64
import json
import random
import subprocess
from typing import Any

import grpc
import pytest
from tests.e2e.support.stream import Stream, message, named, reason_of, refusal
from tests.e2e.support.tenancy import Operator, Tenancy, fresh, refused
from tests.unit.contract.samples import bad_client_frames, groups

from qim.control.v1 import control_service_pb2 as control_pb
from qim.conversation.v1 import conversation_service_pb2 as conversation_pb
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qim.mailbox.v1 import mailbox_service_pb2 as mailbox_pb
from qim.session.v1 import session_service_pb2 as session_pb
from qim.tenant.v1 import tenant_service_pb2 as tenant_pb
from qim.tenant.v1.tenant_service_pb2_grpc import TenantServiceStub
from qim.writer.v1 import writer_service_pb2 as writer_pb
from qimd.contract.grpc_status import from_rpc_error
from qimd.core.ids import ConversationId, TenantId, event_id

pytestmark = pytest.mark.usefixtures("idle")

CONTRACT = "CONTRACT_VIOLATION"
PREVIEW_BYTES = 256

NAMES = {
    "slash": "a/b/../c?d#e%2F",
    "colon": "a:b::c",
    "emoji": "👩‍👩‍👧‍👦",
    "right to left": "\u202eשלום عالم\u202c",
    "space and quotes": " '\"`$(x) \\ ",
    "not normalised": "e\u0301\ufeff\U0010ffff",
    "128 bytes": "界" * 42 + "yz",
}
BODIES = {
    "empty": b"",
    "NUL": b"a\x00b\x00",
    "text": "שלום 👩‍👩‍👧‍👦\r\n\t".encode(),
    "no text": bytes(range(256)),
    "half a character": "é".encode()[:1],
    "a protobuf message": ClientFrame(request_id=7).SerializeToString(),
    "64 KiB": random.Random(5).randbytes(65_536),
}


def rows(done: "subprocess.CompletedProcess[bytes]") -> list[dict[str, Any]]:
    """What qimctl wrote with `-o json`."""
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def content(row: dict[str, Any], key: str = "content") -> bytes:
    """The bytes of a value that may be no text."""
    if row[key] is None:
        return base64.b64decode(row[f"{key}_base64"], validate=True)
    text: str = row[key]
    return text.encode()


# --- ids --------------------------------------------------------------------------------------


async def test_odd_ids_come_out_as_they_went_in_on_every_way_out(
    tenancy: Tenancy, operator: Operator
) -> None:
    """COD-03: '/' and emoji round-trip byte-exact through gateway, store, log, mailbox, and CLI."""
    people = list(NAMES.values())
    rooms = [f"{name[:30]}{fresh('')}" for name in people[:-1]] + [people[-1]]
    for room in rooms:
        await operator.create(room, people)
    sent: dict[str, list[bytes]] = {}
    for person in people:
        # The id of the device and of the message are as odd as those of the person.
        async with tenancy.device(person, person) as stream:
            for room in rooms:
                (result,) = await stream.say(room, message(person, person.encode()))
                sent.setdefault(room, []).append(result.accepted.event_id)
    wanted = {
        event_id(TenantId("dev"), ConversationId(room), seq + 2)
        for room in rooms
        for seq in range(len(people))
    }
    assert {each for events in sent.values() for each in events} == wanted
    for person in people:
        async with tenancy.device(person) as stream:
            events = [each.event for each in await stream.mailbox(len(rooms) * (len(people) + 1))]
            said = [each for each in events if each.HasField("message")]
            assert {each.event_id for each in said} == wanted
            assert all(
                each.sender_user_id
                == each.sender_device_id
                == each.client_msg_id
                == each.message.body.decode()
                for each in said
            )
            for room in rooms:
                row = await stream.session(room, len(people) + 1)
                assert row.last_event.sender_user_id == people[-1]
                assert row.last_event.preview == people[-1].encode()[:PREVIEW_BYTES]
                history = await stream.history(room)
                assert [each.sender_user_id for each in history[1:]] == people
                assert list(history[0].membership_change.added_user_ids) == sorted(people)

    for person in (NAMES["right to left"], NAMES["128 bytes"]):
        acting = ("--user", person, "--device", "cli", "-o", "json")
        pulled = [row for row in rows(tenancy.qimctl("pull", *acting)) if row["kind"] == "message"]
        assert {bytes.fromhex(row["event_id"]) for row in pulled} == wanted
        assert {row["conversation"] for row in pulled} == set(rooms)
        for row in pulled:
            assert row["sender"] == row["sender_device"] == row["client_msg_id"] == row["content"]
        listed = rows(tenancy.qimctl("sessions", *acting))
        assert {row["conversation"] for row in listed} == set(rooms)
        assert {row["last_sender"] for row in listed} == {people[-1]}
    room = rooms[0]
    members = rows(tenancy.qimctl("members", "list", room, "-o", "json"))
    assert [row["user"] for row in members] == sorted(people)
    history = rows(tenancy.qimctl("history", room, "--user", people[0], "-o", "json"))
    assert [row["sender"] for row in history[1:]] == people


async def test_ids_that_read_alike_joined_never_meet(tenancy: Tenancy) -> None:
    """Keys are joined injectively: tenant 'a' with 'b/c' is not tenant 'a/b' with 'c'."""
    first, second = fresh("a"), ""
    second = f"{first}/b"
    pairs = [(first, "b/c"), (second, "c"), (f"{first}:b", "c"), (first, "b:c")]
    async with tenancy.server.channel() as channel:
        operator = Operator(tenancy, channel)
        for tenant in dict.fromkeys(tenant for tenant, _ in pairs):
            request = tenant_pb.CreateTenantRequest(
                tenant_id=tenant,
                keys=[tenant_pb.TenantKey(key_id=tenancy.key_id, public_key=tenancy.public_key)],
            )
            await operator.call(TenantServiceStub(channel).CreateTenant, request)
    for number, (tenant, room) in enumerate(pairs):
        own = Tenancy(tenancy.server, tenant)
        async with own.operator() as operator, own.device("ann") as stream:
            await operator.create(room, ["ann", "bob"])
            (result,) = await stream.say(room, message("m", b"%d" % number))
            assert (result.accepted.conversation_seq, result.accepted.duplicate) == (2, False)
    for number, (tenant, room) in enumerate(pairs):
        entries = 2 * sum(owner == tenant for owner, _ in pairs)
        async with Tenancy(tenancy.server, tenant).device("bob") as stream:
            (body,) = [
                each.event.message.body
                for each in await stream.mailbox(entries)
                if each.event.conversation_id == room and each.event.HasField("message")
            ]
            assert body == b"%d" % number
            assert (await stream.session(room, 2)).unread_count == 1


@pytest.mark.parametrize("bad", ["", "x\x00y", "x\ny", "x\x7fy", "x\x85y", "i" * 5_000])
async def test_an_id_that_is_none_is_refused_before_a_number_is_taken(
    tenancy: Tenancy, operator: Operator, bad: str
) -> None:
    """COD-03: NUL and over-long ids: INVALID_ARGUMENT naming the field, before a seq is allocated,
    and the stream stays open; a NUL in a body is content like any other."""
    room = fresh("c")
    await operator.create(room, ["ann"])
    assert await refused(operator.create(bad, ["ann"])) == ("INVALID_ARGUMENT", "conversation_id")
    assert await refused(operator.add(room, [bad])) == ("INVALID_ARGUMENT", "user_ids[0]")
    async with tenancy.device("ann") as stream:
        asked = gateway_pb2.Send(conversation_id=bad, events=[message("m", b"a\x00b")])
        answer = await stream.ask(send=asked)
        assert refusal(answer) == ("INVALID_ARGUMENT", "send.conversation_id")
        (result,) = await stream.say(room, message(bad))
        assert refusal(result) == ("INVALID_ARGUMENT", "send.events[0].client_msg_id")
        assert await operator.head(room) == 1
        (result,) = await stream.say(room, message("m", b"a\x00b"))
        assert result.accepted.conversation_seq == 2
        assert (await stream.history(room))[1].message.body == b"a\x00b"
    async with Stream(tenancy.server.grpc) as stream:
        assert refusal(await stream.auth(tenancy.token(bad))) == ("UNAUTHENTICATED", "")


# --- bodies -----------------------------------------------------------------------------------


async def test_any_bytes_are_a_body_and_come_out_exactly(
    tenancy: Tenancy, operator: Operator
) -> None:
    room, users = fresh("c"), [fresh("u"), fresh("u")]
    await operator.create(room, users)
    async with tenancy.device(users[0]) as stream:
        results = await stream.say(
            room, *(message(name, body) for name, body in BODIES.items() if name != "64 KiB")
        )
        (last,) = await stream.say(room, message("64 KiB", BODIES["64 KiB"]))
    assert [each.accepted.conversation_seq for each in (*results, last)] == list(range(2, 9))
    for user in users:
        async with tenancy.device(user, "reader") as stream:
            mailbox = [each.event for each in await stream.mailbox(len(BODIES) + 1)]
            history = await stream.history(room)
            row = await stream.session(room, len(BODIES) + 1)
        for events in (mailbox, history):
            assert {e.client_msg_id: e.message.body for e in events[1:]} == BODIES
        assert row.last_event.preview == BODIES["64 KiB"][:PREVIEW_BYTES]
    shown = rows(tenancy.qimctl("pull", "--user", users[1], "-o", "json"))
    assert {row["client_msg_id"]: content(row) for row in shown[1:]} == BODIES
    (listed,) = rows(tenancy.qimctl("sessions", "--user", users[1], "-o", "json"))
    assert content(listed, "preview") == BODIES["64 KiB"][:PREVIEW_BYTES]
    for name in ("empty", "no text"):
        again = fresh("m")
        sending = ("send", room, "--user", users[0], "--msg-id", again, "-o", "json")
        done = tenancy.qimctl(*sending, stdin=BODIES[name])
        assert done.returncode == 0, done.stderr
        async with tenancy.device(users[1]) as stream:
            newest = (await stream.history(room, limit=1))[0]
        assert (newest.client_msg_id, newest.message.body) == (again, BODIES[name])


# --- frames -----------------------------------------------------------------------------------


def newer_frame(request_id: int) -> bytes:
    """A frame whose kind only a newer client knows: field 100 of the oneof."""
    return ClientFrame(request_id=request_id).SerializeToString() + b"\xa2\x06\x03new"


async def test_a_frame_of_a_newer_client_is_unimplemented_by_its_request_id(
    tenancy: Tenancy,
) -> None:
    async with tenancy.device("ann") as stream:
        await stream.write(newer_frame(77))
        assert refusal(await stream.answer(77)) == ("UNIMPLEMENTED", "")
        assert await stream.ping()
    async with Stream(tenancy.server.grpc) as stream:
        # Before AUTH it is no other than any frame that comes too early.
        await stream.write(newer_frame(77))
        assert refusal(await stream.answer(77)) == ("UNAUTHENTICATED", "")
        assert (await stream.auth(tenancy.token("ann"))).WhichOneof("frame") == "auth_ok"


async def test_a_newer_field_and_a_newer_content_cost_nothing_else(
    tenancy: Tenancy, operator: Operator
) -> None:
    room = fresh("c")
    await operator.create(room, ["ann"])
    newer_field = b"\xa2\x06\x03new"
    async with tenancy.device("ann") as stream:
        send = gateway_pb2.Send(conversation_id=room, events=[message("m1")])
        frame = ClientFrame(request_id=50, send=send).SerializeToString()
        await stream.write(frame + newer_field)
        assert (await stream.answer(50)).send_ack.results[0].accepted.conversation_seq == 2
        unknown = gateway_pb2.OutgoingEvent.FromString(b"\x0a\x02m2" + newer_field)
        mixed = await stream.say(room, unknown, message("m3"))
        assert refusal(mixed[0]) == ("UNIMPLEMENTED", "send.events[0]")
        assert mixed[1].accepted.conversation_seq == 3


@pytest.mark.parametrize(("name", "data"), list(bad_client_frames().items()))
async def test_a_frame_that_breaks_the_contract_is_refused_and_the_stream_lives_on(
    tenancy: Tenancy, name: str, data: bytes
) -> None:
    for authenticated in (True, False):
        async with Stream(tenancy.server.grpc) as stream:
            if authenticated:
                await stream.auth(tenancy.token(fresh("ann")))
            await stream.write(data)
            code, _ = refusal(await stream.next())
            assert code == CONTRACT, name
            if not authenticated:
                await stream.auth(tenancy.token(fresh("ann")))
            assert await stream.ping()


async def test_a_thousand_random_frames_never_end_a_stream(tenancy: Tenancy) -> None:
    chance = random.Random(20_261_101)
    good = ClientFrame(
        request_id=9, send=gateway_pb2.Send(conversation_id="c", events=[message("m")])
    ).SerializeToString()
    async with tenancy.device(fresh("ann")) as stream:
        # Above every id that a spoiled frame can have.
        stream.last_id = 1 << 62
        for number in range(1_000):
            data = bytearray(good if number % 2 else chance.randbytes(chance.randrange(60)))
            if number % 2:
                for _ in range(chance.randrange(1, 4)):
                    data[chance.randrange(len(data))] = chance.randrange(256)
                del data[chance.randrange(1, len(data) + 1) :]
            await stream.write(bytes(data))
            if number % 50 == 0:
                assert await stream.ping()
        assert await stream.ping()
        # Each was answered, by one frame: an error, or what a frame that is good by chance gets.
        answers = [await stream.next() for _ in range(1_000)]
        codes = {named(each.error)[0] for each in answers if each.WhichOneof("frame") == "error"}
    assert codes <= {CONTRACT, "UNIMPLEMENTED", "INVALID_ARGUMENT", "NOT_MEMBER"}
    assert CONTRACT in codes


async def test_requests_that_are_out_of_order_are_refused_by_their_id(tenancy: Tenancy) -> None:
    async with Stream(tenancy.server.grpc) as stream:
        assert refusal(await stream.ask(ping=gateway_pb2.Ping())) == ("UNAUTHENTICATED", "")
        zero = await stream.auth(tenancy.token("ann"), version=0)
        assert refusal(zero) == ("INVALID_ARGUMENT", "auth.protocol_version")
        newer = await stream.auth(tenancy.token("ann"), version=99)
        assert newer.auth_ok.protocol_version == 1
        again = await stream.auth(tenancy.token("ann"))
        assert refusal(again) == ("INVALID_ARGUMENT", "auth")
        # What only a later release serves is answered like what it does not know.
        refresh = gateway_pb2.Refresh(refresh_token="r")
        assert refusal(await stream.ask(refresh=refresh)) == ("UNIMPLEMENTED", "")
        assert await stream.ping()


async def test_reports_and_marks_that_can_t_be_are_refused(
    tenancy: Tenancy, operator: Operator
) -> None:
    room, user = fresh("c"), fresh("ann")
    await operator.create(room, [user])

    def report(**fields: Any) -> gateway_pb2.Report:
        whole = {
            "kind": gateway_pb2.REPORT_KIND_GAP,
            "conversation_id": room,
            "from_conversation_seq": 1,
            "through_conversation_seq": 1,
        }
        return gateway_pb2.Report(**{**whole, **fields})

    async with tenancy.device(user) as stream:
        await stream.mailbox(1)
        for bad, field in (
            ({"kind": 99}, "report.kind"),
            ({"from_conversation_seq": 0}, "report.from_conversation_seq"),
            ({"from_conversation_seq": 2}, "report.from_conversation_seq"),
            ({"through_conversation_seq": 1 << 53}, "report.through_conversation_seq"),
            ({"covered_through_seq": 1 << 63}, "report.covered_through_seq"),
        ):
            answer = await stream.ask(report=report(**bad))
            assert refusal(answer) == ("INVALID_ARGUMENT", field)
        # Nothing is missing, so a report of a gap is not confirmed, and counts nothing.
        assert not (await stream.ask(report=report())).report_ok.confirmed
        for asked in (
            {"mark_read": gateway_pb2.MarkRead(conversation_id="no such", read_through_seq=1)},
            {"pull_history": gateway_pb2.PullHistory(conversation_id="no such")},
            {"send": gateway_pb2.Send(conversation_id="no such", events=[message("m")])},
        ):
            assert refusal(await stream.ask(**asked)) == ("NOT_MEMBER", "")
        above = (1 << 64) - 1
        assert (await stream.mark_read(room, above)).read_through_seq == 1
        assert len(await stream.history(room, before=above)) == 1


# --- tokens -----------------------------------------------------------------------------------


async def test_a_spoiled_cursor_token_is_refused_and_the_stream_is_usable(
    tenancy: Tenancy, operator: Operator
) -> None:
    """AUT-07: CURSOR_INVALID for a last character replaced by U+00E9, an empty signature and every
    other junk; the stream is usable afterwards, and no traceback is in the log."""
    room, user = fresh("c"), fresh("ann")
    await operator.create(room, [user, "other"])
    async with tenancy.device(user) as stream, tenancy.device("other") as other:
        await stream.mailbox(1)
        good = stream.auth_ok.cursor_token
        flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good))]
        for bad in (
            good[:-1] + "é".encode(),
            good[:-1] + b"\xe9",
            good[:-32],
            good[:-34],
            good + good,
            good + groups(101),
            b"",
            b"junk",
            base64.b64encode(good),
            other.auth_ok.cursor_token,
            *flipped,
        ):
            answer = await stream.pull(token=bad)
            assert answer.WhichOneof("frame") == "error", bad
            assert refusal(answer)[0] == "CURSOR_INVALID", bad
        page = (await stream.pull(token=good)).mailbox_page
        assert len(page.events) == 1
    async with tenancy.device(user, "tablet") as stream:
        code, _ = refusal(await stream.pull(token=good))
        assert code == "CURSOR_INVALID"
    assert "Traceback" not in tenancy.server.log.read_text()


async def test_a_spoiled_access_token_is_refused_and_the_stream_is_usable(
    tenancy: Tenancy,
) -> None:
    """AUT-07: UNAUTHENTICATED for a last character replaced by U+00E9 and an empty signature; the
    stream is usable afterwards, no traceback is in the log, and no token either."""
    good = tenancy.token(fresh("ann"))
    header, payload, signature = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","kid":"dev-1"}').decode().rstrip("=")
    async with Stream(tenancy.server.grpc) as stream:
        for bad in (
            good[:-1] + "é",
            f"{header}.{payload}.",
            f"{header}.{payload}",
            f"{none}.{payload}.",
            f"{header}.{payload}.{signature[::-1]}",
            f"{header}.{payload}.{signature}\x00",
            "",
            "junk",
            "." * 3_000,
            "a" * 5_000,
            tenancy.token("ann", tenant="no such"),
            tenancy.token("ann", exp="soon"),
            tenancy.token("ann", sub=7),
        ):
            assert refusal(await stream.auth(bad)) == ("UNAUTHENTICATED", ""), bad
        assert refusal(await stream.auth(tenancy.token("ann", exp=1))) == ("TOKEN_EXPIRED", "")
        assert (await stream.auth(good)).WhichOneof("frame") == "auth_ok"
        assert await stream.ping()
    log = tenancy.server.log.read_text()
    assert "Traceback" not in log
    assert signature not in log


# --- administration ---------------------------------------------------------------------------

CALLS: dict[str, Any] = {
    "qim.tenant.v1.TenantService/CreateTenant": tenant_pb.CreateTenantRequest(tenant_id="t"),
    "qim.tenant.v1.TenantService/GetTenant": tenant_pb.GetTenantRequest(tenant_id="dev"),
    "qim.tenant.v1.TenantService/AddTenantKey": tenant_pb.AddTenantKeyRequest(tenant_id="dev"),
    "qim.tenant.v1.TenantService/RemoveTenantKey": tenant_pb.RemoveTenantKeyRequest(),
    "qim.conversation.v1.ConversationService/CreateConversation": (
        conversation_pb.CreateConversationRequest(tenant_id="dev", conversation_id="c")
    ),
    "qim.conversation.v1.ConversationService/AddMembers": conversation_pb.AddMembersRequest(),
    "qim.conversation.v1.ConversationService/RemoveMembers": conversation_pb.RemoveMembersRequest(),
    "qim.conversation.v1.ConversationService/GetConversation": (
        conversation_pb.GetConversationRequest()
    ),
    "qim.conversation.v1.ConversationService/ListMembers": conversation_pb.ListMembersRequest(),
    "qim.writer.v1.WriterService/Commit": writer_pb.CommitRequest(tenant_id="dev"),
    "qim.mailbox.v1.MailboxService/ReadMailbox": mailbox_pb.ReadMailboxRequest(tenant_id="dev"),
    "qim.mailbox.v1.MailboxService/DescribeShards": mailbox_pb.DescribeShardsRequest(),
    "qim.session.v1.SessionService/ListSessions": session_pb.ListSessionsRequest(),
    "qim.session.v1.SessionService/MarkRead": session_pb.MarkReadRequest(),
    "qim.session.v1.SessionService/DescribePartitions": session_pb.DescribePartitionsRequest(),
    "qim.control.v1.ControlService/TraceEvent": control_pb.TraceEventRequest(),
    "qim.control.v1.ControlService/ListQuarantine": control_pb.ListQuarantineRequest(),
    "qim.control.v1.ControlService/RebaseShard": control_pb.RebaseShardRequest(),
    "qim.control.v1.ControlService/RebuildProjection": control_pb.RebuildProjectionRequest(),
}
"""Every administration call. Most of the requests are no good: who has no token must not learn."""


async def raw(
    channel: grpc.aio.Channel, name: str, data: bytes, metadata: tuple[tuple[str, str], ...]
) -> grpc.aio.AioRpcError:
    """A call of bytes, which must be refused; its error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(f"/{name}")(data, timeout=20, metadata=metadata)
    return error.value


def test_every_administration_call_is_among_those_tried() -> None:
    modules = (conversation_pb, control_pb, mailbox_pb, session_pb, tenant_pb, writer_pb)
    declared = {
        f"{service.full_name}/{method.name}"
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert declared == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
async def test_without_the_admin_token_a_call_learns_nothing(tenancy: Tenancy, name: str) -> None:
    token = tenancy.server.credentials["admin_token"]
    async with tenancy.server.channel() as channel:
        for authorization in ((), "", token, f"Bearer {token}x", "Bearer", f"Basic {token}"):
            metadata = (("authorization", authorization),) if authorization != () else ()
            for data in (CALLS[name].SerializeToString(), b"\xff\xff"):
                error = await raw(channel, name, data, metadata)
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                assert reason_of(error) == "UNAUTHENTICATED"
        user = (("authorization", f"Bearer {tenancy.token('ann')}"),)
        assert reason_of(await raw(channel, name, b"", user)) == "UNAUTHENTICATED"


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_breaks_the_contract_is_an_invalid_argument_with_its_reason_of(
    tenancy: Tenancy, name: str
) -> None:
    good = CALLS[name].SerializeToString()
    spoiled = {
        "malformed": b"\xff\xff\xff",
        "101 deep": good + groups(101),
        "random": random.Random(len(name)).randbytes(40),
    }
    if good:
        spoiled["cut short"] = good[:-1]
        spoiled["concatenated"] = good + good
    async with tenancy.server.channel() as channel:
        for kind, data in spoiled.items():
            error = await raw(channel, name, data, tenancy.server.admin)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, kind
            assert reason_of(error) == CONTRACT, kind
            assert from_rpc_error(error).code.name == CONTRACT


async def test_administration_that_can_t_be_is_refused_by_its_field(
    tenancy: Tenancy, operator: Operator
) -> None:
    room = fresh("c")
    await operator.create(room, ["ann", "bob"])
    invalid = "INVALID_ARGUMENT"
    assert await refused(operator.create(room, ["eve"])) == ("ALREADY_EXISTS", "")
    assert await refused(operator.add(room, ["eve", "eve"])) == (invalid, "user_ids[1]")
    assert await refused(operator.get("no such")) == ("NOT_FOUND", "")
    assert await refused(operator.add("no such", ["eve"])) == ("NOT_FOUND", "")
    assert await refused(operator.members(room, after="x\x00")) == (invalid, "after_user_id")
    assert await operator.head(room) == 1
    async with Tenancy(tenancy.server, "no such tenant").operator() as stranger:
        assert await refused(stranger.create("c", ["ann"])) == ("NOT_FOUND", "tenant_id")


async def test_server_frames_sent_by_a_client_are_refused(tenancy: Tenancy) -> None:
    async with tenancy.device("ann") as stream:
        pong = ServerFrame(request_id=5, pong=gateway_pb2.Pong(server_time_ms=1))
        await stream.write(pong.SerializeToString())
        answer = await stream.next()
        assert named(answer.error)[0] in {"UNIMPLEMENTED", CONTRACT}
        assert await stream.ping()
