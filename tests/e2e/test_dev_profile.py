"""`qimd dev` as a process: its start, its end, and what it survives."""

import asyncio
import json
import shlex
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.e2e.support.dev import DevServer, ready_limit_s, run

from qim.conversation.v1 import conversation_service_pb2, conversation_service_pb2_grpc
from qim.conversation.v1.event_pb2 import Message
from qim.gateway.v1 import gateway_pb2_grpc
from qim.gateway.v1.gateway_pb2 import Auth, ClientFrame, OutgoingEvent
from qim.mailbox.v1 import mailbox_service_pb2, mailbox_service_pb2_grpc
from qim.writer.v1 import writer_service_pb2, writer_service_pb2_grpc
from qimd.app.banner import dev_token
from qimd.app.credentials import load_or_create
from qimd.contract.grpc_aio import StrictChannel
from qimd.contract.grpc_status import from_rpc_error
from qimd.core.errors import ErrorCode
from qimd.telemetry.metrics import ZEROS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DevServer]:
    with DevServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def channel(server: DevServer) -> AsyncIterator[grpc.aio.Channel]:
    async with server.channel() as opened:
        yield opened


# --- start ------------------------------------------------------------------------------------


def test_a_first_start_is_ready_in_time_and_says_how_to_go_on(server: DevServer) -> None:
    assert server.ready_after_s < ready_limit_s()
    for part in (server.grpc, server.metrics, str(server.data), "dev-credentials.json", "dev"):
        assert part in server.banner
    assert "qimctl" in server.banner


def test_the_commands_of_the_banner_work_as_they_are_printed(server: DevServer) -> None:
    _, _, behind = server.banner.partition("Next:\n")
    commands = [line.strip() for line in behind.splitlines() if "qimctl " in line]
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "Hello, Bob" in done.stdout


def test_no_secret_is_printed_or_logged(server: DevServer) -> None:
    credentials = server.credentials
    server.stop()
    text = server.banner + server.log.read_text()
    cursor_keys = json.loads((server.data / "dev-credentials.json").read_text())["cursor_keys"]
    secrets = [
        credentials["admin_token"],
        credentials["private_key"],
        *cursor_keys["keys"].values(),
    ]
    assert all(secret not in text for secret in secrets)
    assert "eyJ" not in text


def test_every_line_of_the_log_is_a_record(server: DevServer) -> None:
    server.stop()
    records = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all(record["event"] and record["logger"].startswith("qimd.") for record in records)
    assert {"ready", "draining", "stopped"} <= {record["event"] for record in records}


def test_the_metrics_endpoint_shows_the_five_zeros_at_zero(server: DevServer) -> None:
    samples = dict(
        line.rsplit(" ", 1)
        for line in server.get("/metrics").splitlines()
        if not line.startswith("#")
    )
    assert {name: samples[name] for name in ZEROS} == dict.fromkeys(ZEROS, "0.0")
    assert server.get("/readyz") == "ready\n"


async def test_health_and_reflection_answer(channel: grpc.aio.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    answer = await health.Check(
        health_pb2.HealthCheckRequest(service="qim.gateway.v1.Gateway"), timeout=10
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=10)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {each.name for each in (await call.read()).list_services_response.service}
    call.cancel()
    assert names >= {
        "qim.gateway.v1.Gateway",
        "qim.writer.v1.WriterService",
        "qim.conversation.v1.ConversationService",
        "qim.mailbox.v1.MailboxService",
        "qim.session.v1.SessionService",
        "qim.tenant.v1.TenantService",
        "qim.control.v1.ControlService",
    }


async def test_an_administration_call_without_the_admin_token_is_refused(
    channel: grpc.aio.Channel,
) -> None:
    stub = mailbox_service_pb2_grpc.MailboxServiceStub(StrictChannel(channel))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.DescribeShards(mailbox_service_pb2.DescribeShardsRequest(), timeout=10)
    assert from_rpc_error(refused.value).code is ErrorCode.UNAUTHENTICATED


# --- what is refused --------------------------------------------------------------------------


def test_a_second_start_on_the_same_folder_names_the_holder(server: DevServer) -> None:
    assert server.process is not None
    second = run("dev", "--data", str(server.data), "--grpc-port", "0", "--metrics-port", "0")
    assert second.returncode == 2
    assert second.stdout == ""
    for part in ("--data", f"process {server.process.pid}", "since 20", server.grpc):
        assert part in second.stderr
    assert len(second.stderr.splitlines()) == 1


@pytest.mark.parametrize("flag", ["--grpc-port", "--metrics-port"])
def test_a_port_in_use_is_refused_by_the_name_of_its_flag(tmp_path: Path, flag: str) -> None:
    ports = {"--grpc-port": "0", "--metrics-port": "0"}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports[flag] = str(other.getsockname()[1])
        arguments = [part for pair in ports.items() for part in pair]
        refused = run("dev", "--data", str(tmp_path / "data"), *arguments)
    assert refused.returncode == 2
    assert f"{flag}: port {ports[flag]}" in refused.stderr
    assert "in use" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--host", "0.0.0.0"), "--host"),
        (("--mailbox-shards", "3"), "--mailbox-shards"),
        (("--shard-lease-ttl-s", "30"), "--writer-failover-wait-s"),
        (("--data", "/proc/none"), "--data"),
    ],
)
def test_a_bad_setting_ends_the_start_with_one_line_that_names_its_flag(
    tmp_path: Path, arguments: tuple[str, ...], flag: str
) -> None:
    refused = run("dev", "--data", str(tmp_path / "data"), "--grpc-port", "0", *arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"qimd: {flag}")
    assert len(refused.stderr.splitlines()) == 1
    checked = run("check", *arguments)
    assert (checked.returncode == 2) == (flag != "--data")


def test_other_shard_counts_than_the_folders_are_refused(server: DevServer) -> None:
    server.stop()
    refused = run("dev", "--data", str(server.data), "--mailbox-shards", "4", "--metrics-port", "0")
    assert refused.returncode == 2
    assert "--mailbox-shards: 4 is refused" in refused.stderr


def test_check_and_version_start_nothing(tmp_path: Path) -> None:
    checked = run("check", "--data", str(tmp_path / "data"))
    assert checked.returncode == 0
    assert not (tmp_path / "data").exists()
    assert run("--version").stdout.startswith("qimd 0.")


# --- messages, ends and kills -----------------------------------------------------------------


class Operator:
    """Administration calls, as an operator makes them."""

    def __init__(self, server: DevServer, channel: grpc.aio.Channel) -> None:
        strict = StrictChannel(channel)
        self._metadata = server.admin
        self._writer = writer_service_pb2_grpc.WriterServiceStub(strict)
        self._conversations = conversation_service_pb2_grpc.ConversationServiceStub(strict)
        self._mailbox = mailbox_service_pb2_grpc.MailboxServiceStub(strict)

    async def create(self, conversation: str, members: list[str]) -> None:
        await self._conversations.CreateConversation(
            conversation_service_pb2.CreateConversationRequest(
                tenant_id="dev", conversation_id=conversation, member_user_ids=members
            ),
            timeout=10,
            metadata=self._metadata,
        )

    async def send(self, conversation: str, sender: str, number: int) -> int:
        answer = await self._writer.Commit(
            writer_service_pb2.CommitRequest(
                tenant_id="dev",
                conversation_id=conversation,
                sender_user_id=sender,
                sender_device_id="d",
                events=[
                    OutgoingEvent(
                        client_msg_id=f"m{number}",
                        message=Message(body=f"text {number}".encode()),
                    )
                ],
            ),
            timeout=10,
            metadata=self._metadata,
        )
        return int(answer.results[0].accepted.conversation_seq)

    async def mailbox(self, user: str) -> list[int]:
        page = await self._mailbox.ReadMailbox(
            mailbox_service_pb2.ReadMailboxRequest(tenant_id="dev", user_id=user),
            timeout=10,
            metadata=self._metadata,
        )
        return [each.event.conversation_seq for each in page.events]

    async def mailbox_of(self, user: str, count: int) -> list[int]:
        """The mailbox once it holds `count` events."""
        async with asyncio.timeout(20):
            seqs = await self.mailbox(user)
            while len(seqs) < count:
                seqs = await self.mailbox(user)
        return seqs


async def test_what_was_acknowledged_before_a_kill_is_in_every_mailbox_after_the_restart(
    server: DevServer,
) -> None:
    """WR-03: what is sent again under its client_msg_id keeps its seq."""
    async with server.channel() as channel:
        operator = Operator(server, channel)
        await operator.create("c", ["alice", "bob"])
        seqs = [await operator.send("c", "alice", number) for number in range(20)]
    server.kill()
    server.start()
    assert server.ready_after_s < ready_limit_s()
    async with server.channel() as channel:
        operator = Operator(server, channel)
        assert [await operator.send("c", "alice", number) for number in range(20)] == seqs
        for user in ("alice", "bob"):
            assert await operator.mailbox_of(user, 21) == list(range(1, 22))
    samples = server.get("/metrics")
    assert all(f"\n{name} 0.0\n" in samples for name in ZEROS)


def test_a_kill_at_any_stage_of_a_start_leaves_a_folder_that_starts(tmp_path: Path) -> None:
    for stage in range(1, 12, 2):
        server = DevServer(tmp_path / f"data{stage}")
        process = server.spawn()
        # A file of the folder, or a record of the log, marks each stage of the start.
        while process.poll() is None and _progress(server) < stage:
            pass
        server.kill()
        with server:
            assert server.ready_after_s < ready_limit_s()


def _progress(server: DevServer) -> int:
    files = sum(1 for _ in server.data.iterdir()) if server.data.exists() else 0
    return files + server.log.read_text().count("\n")


async def test_a_stop_sends_clients_away_and_ends_with_status_0(server: DevServer) -> None:
    token = dev_token(load_or_create(server.data))
    async with server.channel() as channel:
        call = gateway_pb2_grpc.GatewayStub(StrictChannel(channel)).Connect(timeout=30)
        await call.write(
            ClientFrame(request_id=1, auth=Auth(protocol_version=1, access_token=token))
        )
        assert (await call.read()).WhichOneof("frame") == "auth_ok"
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        assert (await call.read()).WhichOneof("frame") == "going_away"
        assert await stopping == 0
        call.cancel()
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    ended = [record for record in events if record["event"] == "term ended"]
    assert len(ended) == 6
    assert all(record["settled"] and record["reason"] == "drained" for record in ended)
    assert token not in server.log.read_text()


def test_a_stop_during_a_start_ends_it_in_order(tmp_path: Path) -> None:
    server = DevServer(tmp_path / "data")
    process = server.spawn()
    while process.poll() is None and not server.log.read_text():
        pass
    assert server.stop() == 0
    with server:
        assert server.ready_after_s < ready_limit_s()


async def test_messages_survive_an_orderly_stop(server: DevServer) -> None:
    async with server.channel() as channel:
        operator = Operator(server, channel)
        await operator.create("c", ["alice", "bob"])
        await operator.send("c", "alice", 1)
    assert server.stop() == 0
    server.start()
    assert server.ready_after_s < ready_limit_s()
    async with server.channel() as channel:
        assert await Operator(server, channel).mailbox_of("bob", 2) == [1, 2]


def test_an_ephemeral_server_leaves_nothing_behind(tmp_path: Path) -> None:
    server = DevServer(tmp_path / "data", ("--ephemeral",))
    server.start()
    line = next(line for line in server.banner.splitlines() if "  data " in line)
    folder = Path(line.split()[1])
    assert folder.exists()
    assert folder != server.data
    assert server.stop() == 0
    assert not folder.exists()
    assert not server.data.exists()


def test_a_server_whose_folder_is_removed_says_so_and_ends(tmp_path: Path) -> None:
    """What it would go on to acknowledge could never be found again."""
    server = DevServer(tmp_path / "data").start()
    shutil.rmtree(server.data)
    assert server.process is not None
    assert server.process.wait(30) == 1
    assert "removed or replaced" in server.log.read_text()
    server.stop()
