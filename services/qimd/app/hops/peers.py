"""The peers of this process, one a process that it calls."""

from qim.hop.v1.hop_service_pb2 import Hint
from qimd.app.hops.directory import Directory
from qimd.app.hops.peer import ChannelFactory, Credentials, Peer, PeerListener
from qimd.ports.runtime import Runtime
from qimd.telemetry.metrics import Metrics


class Peers:
    """Streams by address, opened when they are first used, and anew after they were lost."""

    def __init__(
        self,
        *,
        directory: Directory,
        channel_factory: ChannelFactory,
        credentials: Credentials,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._directory = directory
        self._channel_factory = channel_factory
        self._credentials = credentials
        self._runtime = runtime
        self._metrics = metrics
        self._peers: dict[str, Peer] = {}
        self.listener: PeerListener | None = None
        """Who is told of hints and of lost streams: a connection process's `Registrar`."""

    def at(self, address: str) -> Peer:
        """The peer at an address. It may drain, or be about to find that nobody is there."""
        found = self._peers.get(address)
        if found is not None:
            return found
        peer = Peer(
            address,
            self._channel_factory(address),
            self._credentials,
            self,
            self._runtime,
            self._metrics,
        )
        self._peers[address] = peer
        peer.start()
        return peer

    def close(self) -> None:
        """Give up every stream."""
        for peer in list(self._peers.values()):
            peer.close()

    # --- PeerListener ---

    def hinted(self, hint: Hint) -> None:
        """See `PeerListener`."""
        if self.listener is not None:
            self.listener.hinted(hint)

    def lost(self, peer: Peer) -> None:
        """See `PeerListener`."""
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
        # What it owned may be owned elsewhere by now.
        self._directory.forget_all(peer.address)
        if self.listener is not None:
            self.listener.lost(peer)
