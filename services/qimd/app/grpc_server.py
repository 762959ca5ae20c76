"""The gRPC face of a node: the gateway's streams, the administration calls, health, reflection."""

import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from qim.gateway.v1 import gateway_pb2
from qimd.app.grpc_stream import GatewayCalls, StreamHandler
from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import ProcessSettings
from qimd.auth.admin import AdminToken
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.contract.grpc_status import to_rpc_status
from qimd.core.address import joined
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import (
    CLIENT_PING_INTERVAL_MIN_MS,
    FRAME_BYTES_MAX,
    UNAUTH_CONNECTION_TIMEOUT_S,
)
from qimd.ports.runtime import Runtime
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("grpc")

GATEWAY: Final[ServiceDescriptor] = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"]

DEPENDENCY_PREFIX: Final = "qim.dependency."

_STATUS: Final = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
}

KEEPALIVE_INTERVAL_MS: Final = 30_000
"""Between the server's own pings on an idle connection: below the idle limits of common NATs."""

PING_TIMEOUT_MS: Final = 10_000
"""A peer that does not answer a ping by then is gone. Without it, a stopped peer keeps its stream
for a minute (measured)."""

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # With it, a second server on a used port would start and take half of the connections.
    ("grpc.so_reuseport", 0),
    # Half of what clients are told: a ping that arrives early by the network's jitter is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_INTERVAL_MIN_MS // 2),
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # A connection that opens no stream is closed as one that does not authenticate.
    ("grpc.max_connection_idle_ms", int(UNAUTH_CONNECTION_TIMEOUT_S * 1000)),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
)

UnaryCall = Callable[[Message], Awaitable[Message]]


class GrpcServer:
    """One listening server: `bind`, `offer` what it serves, `start`."""

    def __init__(
        self,
        *,
        settings: ProcessSettings,
        admin_token: AdminToken,
        runtime: Runtime,
        metrics: Metrics,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._metrics = metrics
        self._admin = AdminTokenInterceptor(admin_token, metrics)
        self._server = grpc.aio.server(
            interceptors=[
                # Outermost: without the token, not even a request's bytes are looked at.
                self._admin,
                # Behind it: what may ask for a trace by its metadata is allowed to call.
                *interceptors,
                StrictServerInterceptor(self._on_defect),
            ],
            options=OPTIONS,
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names: tuple[str, ...] = ()
        self.port = 0

    def offer(
        self,
        *,
        streams: StreamHandler | None,
        services: Sequence[tuple[ServiceDescriptor, object]],
    ) -> None:
        """What it serves, once and before `start`: clients' streams, and the administration
        services with their handlers.
        """
        self._admin.services = frozenset(service.full_name for service, _ in services)
        self._server.add_generic_rpc_handlers(
            [unary_service(each, handlers, self._metrics) for each, handlers in services]
        )
        if streams is not None:
            calls = GatewayCalls(streams, self._runtime)
            self._server.add_generic_rpc_handlers([_gateway_service(calls)])
        gateway = () if streams is None else (GATEWAY.full_name,)
        self._names = (*gateway, *(service.full_name for service, _ in services))
        listed = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, self._server)

    @property
    def address(self) -> str:
        """host:port, as a client dials it."""
        return joined(self._settings.host, self.port)

    def bind(self) -> None:
        """Take the port; `port` is the real one from then on.

        Raises SettingRefused for a port in use, an address that is not this machine's, or a
        certificate that can't be read.
        """
        host, port = self._settings.host, self._settings.grpc_port
        if port:
            _check_free(host, port)
        try:
            self.port = self._add_port(joined(host, port))
        except RuntimeError:
            raise SettingRefused("--grpc-port", f"can't listen on {joined(host, port)}") from None

    async def start(self) -> None:
        """Begin to answer; NOT_SERVING until `set_serving`."""
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """What the health service says of the server and of each service."""
        for name in ("", *self._names):
            await self._health.set(name, _STATUS[serving])

    async def set_dependency(self, name: str, up: bool) -> None:
        """What the health service says of an engine, as `qim.dependency.<name>`."""
        await self._health.set(f"{DEPENDENCY_PREFIX}{name}", _STATUS[up])

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, give what is under way `grace_s`, then cancel it."""
        await self._server.stop(grace_s)

    def _on_defect(self, error: Exception) -> None:
        self._metrics.defects_total.labels("grpc-call").inc()
        self._metrics.errors_total.labels(ErrorCode.INTERNAL.name).inc()
        _log.error("an exception escaped a call", exc_info=error)

    def _add_port(self, address: str) -> int:
        tls = self._settings.tls
        if tls is None:
            return self._server.add_insecure_port(address)
        certificate, key = tls
        try:
            pair = (key.read_bytes(), certificate.read_bytes())
        except OSError as error:
            raise SettingRefused(
                "--tls-certificate", f"{error.filename} can't be read: {error.strerror}"
            ) from None
        return self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))


def _check_free(host: str, port: int) -> None:
    """Refuse a used port by name; gRPC's own failure says nothing but that it failed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC does: the connections of a killed predecessor must not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SettingRefused(
                    "--grpc-port", f"port {port} of {host} is in use; choose another, or 0"
                ) from None
            flag = "--host" if error.errno != errno.EACCES else "--grpc-port"
            raise SettingRefused(flag, f"{joined(host, port)}: {error.strerror}") from None


# --- services ---------------------------------------------------------------------------------


def unary_service(
    service: ServiceDescriptor, handlers: object, metrics: Metrics
) -> grpc.GenericRpcHandler:
    """A service whose methods are the handlers' of the same names, `request -> response`.

    A method of the contract that the handlers lack fails here, at start.
    """
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        call: UnaryCall = getattr(handlers, method.name)
        methods[method.name] = grpc.unary_unary_rpc_method_handler(
            _counted(call, metrics),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _counted(call: UnaryCall, metrics: Metrics) -> Callable[[Message, Any], Awaitable[Message]]:
    """The call as gRPC wants it; refusals are counted by code."""

    async def answer(request: Message, _context: object) -> Message:
        try:
            return await call(request)
        except QimError as error:
            metrics.errors_total.labels(error.code.name).inc()
            raise

    return answer


def _gateway_service(calls: GatewayCalls) -> grpc.GenericRpcHandler:
    connect = grpc.stream_stream_rpc_method_handler(
        # Typed for gRPC's synchronous API; it takes EncodedFrame through the strict interceptor.
        cast("Any", calls.connect),
        request_deserializer=gateway_pb2.ClientFrame.FromString,
        response_serializer=gateway_pb2.ServerFrame.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(GATEWAY.full_name, {"Connect": connect})


class AdminTokenInterceptor(grpc.aio.ServerInterceptor):
    """Lets a call to an administration service pass only with the admin token."""

    def __init__(self, token: AdminToken, metrics: Metrics) -> None:
        self._token = token
        self._metrics = metrics
        self.services: frozenset[str] = frozenset()
        """Full names of those that ask for it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See grpc.aio. A refusal is a method that only refuses."""
        service = handler_call_details.method.strip("/").partition("/")[0]
        if service in self.services:
            metadata = dict(handler_call_details.invocation_metadata or ())
            try:
                self._token.check(metadata.get("authorization"))
            except QimError as error:
                self._metrics.errors_total.labels(error.code.name).inc()
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: QimError) -> "grpc.RpcMethodHandler[Any, Any]":
    async def refuse(_request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        await context.abort_with_status(to_rpc_status(error))

    return grpc.unary_unary_rpc_method_handler(cast("Any", refuse))
