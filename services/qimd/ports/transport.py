"""Frame transport: a pair of queues of typed frames. gRPC is one binding, the simulator another."""

from typing import Protocol, TypeVar

from qimd.core.errors import QimError

In_co = TypeVar("In_co", covariant=True)
Out_contra = TypeVar("Out_contra", contravariant=True)


class FrameStream(Protocol[In_co, Out_contra]):
    """One client's stream, as its handler sees it."""

    @property
    def peer(self) -> str:
        """The peer's address, for logs and limits."""

    async def receive(self) -> In_co | QimError | None:
        """The next frame; a QimError for one that the contract refuses (the stream lives on); None
        once the client has ended its side or is gone.
        """

    def offer(self, frame: Out_contra) -> bool:
        """Hand a frame over if the transport takes it at once; False if it would have to wait."""

    async def send(self, frame: Out_contra) -> None:
        """Hand a frame over. It returns when the transport took it, which is no delivery."""

    async def close(self, error: QimError | None) -> None:
        """End the stream, with an error's status or OK. Frames handed over before still go out."""
