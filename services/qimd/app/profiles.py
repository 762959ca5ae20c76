"""The engines behind `qimd run`: opened by the settings, gated, bundled as ports.

Nothing here falls back: an engine that can't be reached or is not fit ends the start, with the
setting's name.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import quote

import grpc

from qimd.adapters.etcd import EtcdLease, claim_key, open_etcd
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
from qimd.app.engine_access import Access
from qimd.app.roles import CONNECTION, MAILBOX, WRITER
from qimd.app.run_settings import RunSettings
from qimd.app.runtime import AsyncioRuntime
from qimd.app.setting_kinds import SettingRefused
from qimd.control.shadow import MismatchAlarm
from qimd.core.address import joined
from qimd.core.errors import QimError, unavailable
from qimd.fanout.logic import largest_record_bytes
from qimd.ports.data import Backends
from qimd.ports.health import Dependency, Ping
from qimd.ports.log import LogFault
from qimd.ports.mailbox import MailboxStore
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("server")


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
        lease = await _etcd(settings, stack)
        await _claim_log(settings, log, lease)
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
    access = Access.of(settings, "kafka")
    cluster = replace(
        Cluster.at(",".join(settings.redpanda_brokers)),
        client_id=settings.session_dispatch_client_group,
        tls=access.tls,
        username=access.user,
        password=access.password,
        sasl_mechanism=settings.kafka_sasl_mechanism,
    )
    async with open_kafka(cluster, runtime, settings.dispatch_topic) as log:
        yield log


async def make_topic(settings: RunSettings, replicas: int) -> bool:
    """Make the dispatch topic as the gates want it, with twice the recovery window of retention;
    False if it is there already, and as `qimd run` wants it. Raises SettingRefused.
    """
    runtime = AsyncioRuntime(Metrics())
    async with open_dispatch_log(settings, runtime) as log:
        made = await _made(settings, log, replicas)
        if not made:
            await _gate_log(settings, log, runtime)
    return made


async def _made(settings: RunSettings, log: KafkaLog, replicas: int) -> bool:
    try:
        if await _is_there(log):
            return False
        await create_topic(
            log,
            partitions=settings.mailbox_shards,
            retention_ms=2 * settings.recovery_window_ms,
            max_record_bytes=largest_record_bytes(settings.dispatch_chunk_recipients) + 1,
            replicas=replicas,
        )
    except QimError as refused:
        raise await _log_refused(settings, "--dispatch-topic", refused) from None
    return True


async def _is_there(log: KafkaLog) -> bool:
    try:
        await log.identity()
    except LogFault:
        return False
    return True


async def _redis(settings: RunSettings, stack: AsyncExitStack) -> RedisStores:
    access = Access.of(settings, "redis")
    secret = f":{quote(access.password, safe='')}@" if access.password else ""
    try:
        stores = await open_redis(
            f"redis://{quote(access.user, safe='')}{secret}{settings.redis}/0",
            settings.deployment,
            tls=access.tls,
            may_lose_acknowledged_writes=settings.accept_loss_of_acknowledged_writes,
        )
    except (GateRefused, QimError, ValueError) as refused:
        told = SettingRefused("--redis", f"{settings.redis}: {refused}")
        raise await _explained(told, refused, access, [settings.redis]) from None
    stack.push_async_callback(stores.close)
    return stores


async def _scylla(settings: RunSettings, stack: AsyncExitStack) -> ScyllaBackends:
    access = Access.of(settings, "scylla")
    place = ScyllaSettings(
        hosts=settings.scylla_hosts or (),
        keyspace=settings.scylla_keyspace or "",
        datacenter=settings.scylla_dc or "",
        replication_factor=settings.scylla_rf or 0,
        port=settings.scylla_port,
        username=access.user,
        password=access.password,
        tls=access.tls,
    )
    try:
        stores = await open_scylla(place, settings.deployment)
    except (SchemaTooNew, QimError) as refused:
        told = SettingRefused("--scylla-hosts", f"{','.join(place.hosts)}: {refused}")
        nodes = [joined(host, place.port) for host in place.hosts]
        raise await _explained(told, refused, access, nodes) from None
    stack.push_async_callback(stores.close)
    return stores


async def _etcd(settings: RunSettings, stack: AsyncExitStack) -> EtcdLease:
    """Owners wait for an etcd that is away, but never for one that they can't be let in to."""
    access = Access.of(settings, "etcd")
    host, _, port = settings.etcd.rpartition(":")
    lease = open_etcd(
        host, int(port), f"{settings.deployment}/leases", tls=_channel_credentials(access)
    )
    stack.push_async_callback(lease.close)
    try:
        await lease.view(ShardKind.WRITER, 0)
    except QimError:
        fault = await access.fault_at([settings.etcd])
        if fault is not None:
            raise fault from None
    return lease


def _channel_credentials(access: Access) -> grpc.ChannelCredentials | None:
    if access.pem is None:
        return None
    authority, chain, key = (
        text.encode() or None for text in (access.pem.authority, access.pem.chain, access.pem.key)
    )
    return grpc.ssl_channel_credentials(authority, key, chain)


async def _explained(
    told: SettingRefused, cause: Exception, access: Access, addresses: Sequence[str]
) -> SettingRefused:
    """The refusal of the setting that keeps an engine from being entered, or `told` if none does.

    Whatever is no QimError was said by the engine itself: it had let us in.
    """
    fault = await access.fault_at(addresses) if isinstance(cause, QimError) else None
    return fault or told


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
        late = unavailable(f"the log does not answer within {timeout_s:g} s")
        raise await _log_refused(settings, "--redpanda-brokers", late) from None
    except (LogRefused, LogFault, QimError) as refused:
        raise await _log_refused(settings, "--dispatch-topic", refused) from None


async def _claim_log(settings: RunSettings, log: KafkaLog, lease: EtcdLease) -> None:
    """Refuse the log of another deployment: each would drop the other's dispatches as stale."""
    try:
        identity = await log.identity()
    except (LogFault, QimError) as refused:
        raise await _log_refused(settings, "--dispatch-topic", refused) from None
    name = f"logs/{identity.cluster_id}/{identity.topic_id}"
    try:
        deployment = await lease.claim(name, settings.deployment)
    except QimError as error:
        # As for leases: an etcd that is away is waited for, by whoever owns something.
        _log.warning("whose log it is can't be looked at", error=error, topic=identity.topic)
        return
    if deployment != settings.deployment:
        raise SettingRefused(
            "--dispatch-topic",
            f"{settings.dispatch_topic} is the log of the deployment {deployment}, not of "
            f"{settings.deployment}: each has a topic of its own. If {deployment} is gone for "
            f"good, delete {claim_key(name)} in etcd",
        )


async def _log_refused(settings: RunSettings, flag: str, cause: Exception) -> SettingRefused:
    brokers = settings.redpanda_brokers
    told = SettingRefused(flag, f"{settings.dispatch_topic} on {','.join(brokers)}: {cause}")
    return await _explained(told, cause, Access.of(settings, "kafka"), brokers)
