"""The port on which the deployment's other processes call this one, and how it calls them.

Without TLS, on loopback, a secret that all share proves them; with TLS their certificates do, both
ways: an own authority signs them, and they carry one of the deployment's names.
"""

from contextlib import AsyncExitStack
from pathlib import Path

import grpc
from grpc import aio

from qimd.app.hops.credentials import SharedSecret, by_certificate
from qimd.app.hops.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from qimd.app.links import HopSite, Links
from qimd.app.run_settings import RunSettings
from qimd.app.setting_kinds import SettingRefused
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.core.address import joined
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("hops")

CLOSE_GRACE_S = 0.5


class PeerPort:
    """Bound from the start, answering from `serve` on. Raises SettingRefused."""

    def __init__(
        self, stack: AsyncExitStack, settings: RunSettings, secret: str, metrics: Metrics
    ) -> None:
        self._stack = stack
        self._metrics = metrics
        self._server = aio.server(
            interceptors=[StrictServerInterceptor(self._on_defect)], options=SERVER_OPTIONS
        )
        stack.push_async_callback(self._server.stop, CLOSE_GRACE_S)
        self._files = _files(settings)
        port = self._bind(settings)
        shared = SharedSecret(secret)
        self.site = HopSite(
            address=settings.hop_address or joined(settings.host, port),
            channel=self._channel,
            credentials=() if self._files else shared.credentials,
            authenticate=(
                by_certificate(settings.peer_names or ()) if self._files else shared.authenticate
            ),
        )

    async def serve(self, links: Links) -> None:
        """Answer the other processes."""
        self._stack.callback(links.close)
        self._server.add_generic_rpc_handlers([links.service()])
        await self._server.start()

    def _bind(self, settings: RunSettings) -> int:
        place = joined(settings.host, settings.hop_port)
        try:
            if self._files is None:
                return self._server.add_insecure_port(place)
            authority, certificate, key = self._files
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], authority, require_client_auth=True
            )
            return self._server.add_secure_port(place, credentials)
        except RuntimeError:
            raise SettingRefused("--hop-port", f"can't listen on {place}; is it in use?") from None

    def _channel(self, address: str) -> aio.Channel:
        if self._files is None:
            return aio.insecure_channel(address, CHANNEL_OPTIONS)
        authority, certificate, key = self._files
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        return aio.secure_channel(address, credentials, CHANNEL_OPTIONS)

    def _on_defect(self, error: Exception) -> None:
        self._metrics.defects_total.labels("hop-call").inc()
        _log.error("an exception escaped a hop", exc_info=error)


def _files(settings: RunSettings) -> tuple[bytes, bytes, bytes] | None:
    """(authority, certificate, key) in PEM; None without TLS."""
    if settings.tls is None or settings.peer_certificate_authority is None:
        return None
    certificate, key = settings.tls
    named = (
        ("--peer-certificate-authority", settings.peer_certificate_authority),
        ("--tls-certificate", certificate),
        ("--tls-private-key", key),
    )
    authority, chain, private = (_read(flag, path) for flag, path in named)
    return authority, chain, private


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingRefused(flag, f"{path} can't be read: {error.strerror}") from None
