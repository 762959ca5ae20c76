"""The engines behind `qimd run`: opened by the settings, gated, bundled as ports.

Nothing here falls back: an engine that can't be reached or is not fit ends the start, with the
setting's name.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from qimd.adapters.etcd import open_etcd
from qimd.adapters.kafka import (
    Cluster,
    Demands,
    KafkaLog,
    LogRefused,
    create_topic,
    gate,
    open_kafka,
)
from qimd.adapters.redis import GateRefused, RedisStores, open_redis
from qimd.adapters.scylla import SchemaTooNew, ScyllaBackends, ScyllaSettings, open_scylla
from qimd.adapters.shadow import NamedStore, ShadowMailboxStore
from qimd.app.roles import CONNECTION, MAILBOX, WRITER
from qimd.app.run_settings import RunSettings
from qimd.app.runtime import AsyncioRuntime
from qimd.app.settings import SettingRefused
from qimd.control.shadow import MismatchAlarm
from qimd.core.errors import QimError
from qimd.fanout.logic import largest_record_bytes
from qimd.ports.data import Backends
from qimd.ports.health import Dependency, Ping
from qimd.ports.log import LogFault
from qimd.ports.mailbox import MailboxStore
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics


@asynccontextmanager
async def open_backends(
    settings: RunSettings, runtime: Runtime, metrics: Metrics
) -> AsyncIterator[Backends]:
    """The profile's engines, ready. Raises SettingRefused."""
    async with AsyncExitStack() as stack:
        redis = await _redis(settings, stack)
        engines: dict[str, RedisStores | ScyllaBackends] = {"redis": redis}
        if "scylla" in settings.backends:
            engines["scylla"] = await _scylla(settings, stack)
        stores = engines[settings.store_backend]
        mailbox: MailboxStore = engines[settings.mailboxes_on].mailbox
        shadow = settings.mailbox_shadow_backend
        pair: ShadowMailboxStore | None = None
        if shadow is not None:
            mailbox = pair = ShadowMailboxStore(
                NamedStore(settings.mailboxes_on, mailbox),
                NamedStore(shadow, engines[shadow].mailbox),
                runtime=runtime,
                route=lambda user: settings.table.mailbox(user.tenant, user.user),
                compared_share=settings.mailbox_shadow_share,
                on_mismatch=MismatchAlarm(metrics),
            )
        log = await stack.enter_async_context(open_dispatch_log(settings, runtime))
        await _gate_log(settings, log, runtime)
        host, _, port = settings.etcd.rpartition(":")
        lease = open_etcd(host, int(port), f"{settings.deployment}/leases")
        stack.push_async_callback(lease.close)
        yield Backends(
            tenants=stores.tenants,
            epochs=stores.epochs,
            conversations=stores.conversations,
            log=log,
            lease=lease,
            mailbox=mailbox,
            projection=redis.projection,
            quarantine=redis.quarantine,
            shadow=pair,
            dependencies=[
                Dependency("kafka", log.identity, needed=False),
                Dependency("etcd", partial(lease.view, ShardKind.WRITER, 0), needed=False),
                *(
                    Dependency(name, _ping(engine), needed=name == needed_engine(settings))
                    for name, engine in engines.items()
                ),
            ],
        )


def needed_engine(settings: RunSettings) -> str:
    """The one engine without which a process of these roles serves nothing at all.

    The log and etcd are none: without the log messages are acknowledged and mailboxes read, and
    owners that etcd does not renew step down by themselves.
    """
    if settings.roles & {WRITER, CONNECTION}:
        return settings.store_backend
    return settings.mailboxes_on if MAILBOX in settings.roles else "redis"


def _ping(stores: RedisStores | ScyllaBackends) -> Ping:
    if isinstance(stores, RedisStores):
        return partial(stores.engine.fetch, [(b"PING",)])
    # At a quorum, as `open_scylla` asks whether it is ready.
    return partial(stores.epochs.current, ShardKind.WRITER, 0)


@asynccontextmanager
async def open_dispatch_log(settings: RunSettings, runtime: Runtime) -> AsyncIterator[KafkaLog]:
    """The log alone, not gated."""
    cluster = replace(
        Cluster.at(",".join(settings.redpanda_brokers)),
        client_id=settings.session_dispatch_client_group,
    )
    async with open_kafka(cluster, runtime, settings.dispatch_topic) as log:
        yield log


async def make_topic(settings: RunSettings, replicas: int) -> None:
    """Make the dispatch topic as the gates want it, with twice the recovery window of retention.

    Raises SettingRefused.
    """
    runtime = AsyncioRuntime(Metrics())
    async with open_dispatch_log(settings, runtime) as log:
        try:
            await create_topic(
                log,
                partitions=settings.mailbox_shards,
                retention_ms=2 * settings.recovery_window_ms,
                max_record_bytes=largest_record_bytes(settings.dispatch_chunk_recipients) + 1,
                replicas=replicas,
            )
        except QimError as refused:
            raise SettingRefused("--dispatch-topic", str(refused)) from None


async def _redis(settings: RunSettings, stack: AsyncExitStack) -> RedisStores:
    try:
        stores = await open_redis(
            _redis_url(settings),
            settings.deployment,
            may_lose_acknowledged_writes=settings.accept_loss_of_acknowledged_writes,
        )
    except (GateRefused, QimError, ValueError) as refused:
        raise SettingRefused("--redis", f"{settings.redis}: {refused}") from None
    stack.push_async_callback(stores.close)
    return stores


async def _scylla(settings: RunSettings, stack: AsyncExitStack) -> ScyllaBackends:
    place = ScyllaSettings(
        hosts=settings.scylla_hosts or (),
        keyspace=settings.scylla_keyspace or "",
        datacenter=settings.scylla_dc or "",
        replication_factor=settings.scylla_rf or 0,
        port=settings.scylla_port,
    )
    try:
        stores = await open_scylla(place, settings.deployment)
    except (SchemaTooNew, QimError) as refused:
        raise SettingRefused("--scylla-hosts", f"{','.join(place.hosts)}: {refused}") from None
    stack.push_async_callback(stores.close)
    return stores


def _redis_url(settings: RunSettings) -> str:
    path = settings.redis_password_file
    if path is None:
        return f"redis://{settings.redis}/0"
    try:
        password = path.read_text().strip()
    except OSError as error:
        told = f"{path} can't be read: {error.strerror}"
        raise SettingRefused("--redis-password-file", told) from None
    return f"redis://:{quote(password, safe='')}@{settings.redis}/0"


async def _gate_log(settings: RunSettings, log: KafkaLog, runtime: Runtime) -> None:
    demands = Demands(
        partitions=settings.mailbox_shards,
        recovery_window_ms=settings.recovery_window_ms,
        record_bytes=largest_record_bytes(settings.dispatch_chunk_recipients),
        single_node=settings.single_node_log,
    )
    timeout_s = settings.session_dispatch_operation_timeout_ms / 1000
    try:
        await runtime.wait_for(gate(log, demands), timeout_s)
    except TimeoutError:
        told = f"the log does not answer within {timeout_s:g} s"
        raise SettingRefused("--redpanda-brokers", told) from None
    except (LogRefused, LogFault, QimError) as refused:
        told = f"{settings.dispatch_topic} on {','.join(settings.redpanda_brokers)}: {refused}"
        raise SettingRefused("--dispatch-topic", told) from None
