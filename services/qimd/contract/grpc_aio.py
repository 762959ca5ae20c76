"""The strict codec on grpc.aio: a channel for generated stubs, and a server interceptor.

stub = GatewayStub(StrictChannel(grpc.aio.insecure_channel(address)))
server = grpc.aio.server(interceptors=[StrictServerInterceptor()])
"""

from qimd.contract.grpc_aio_client import StrictChannel
from qimd.contract.grpc_aio_server import StrictServerInterceptor

__all__ = ["StrictChannel", "StrictServerInterceptor"]
