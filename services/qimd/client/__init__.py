"""The public SDK: `Client` for a device, `AdminClient` for an operator's tools.

It needs grpcio and protobuf alone. Everything an application uses is exported here; the modules
behind it are private.
"""

from qimd.client.admin import AdminClient
from qimd.client.client import Client
from qimd.client.config import ClientConfig, TokenProvider
from qimd.client.model import (
    ClientStopped,
    Event,
    History,
    Message,
    OutcomeUnknown,
    Position,
    Reaction,
    ReadMark,
    Rebased,
    Replaced,
    Report,
    ReportKind,
    Sent,
    Session,
)
from qimd.client.positions import FilePositions, MemoryPositions, PositionStore
from qimd.core.errors import ErrorCode, QimError
from qimd.core.records import EventKind

__all__ = [
    "AdminClient",
    "Client",
    "ClientConfig",
    "ClientStopped",
    "ErrorCode",
    "Event",
    "EventKind",
    "FilePositions",
    "History",
    "MemoryPositions",
    "Message",
    "OutcomeUnknown",
    "Position",
    "PositionStore",
    "QimError",
    "Reaction",
    "ReadMark",
    "Rebased",
    "Replaced",
    "Report",
    "ReportKind",
    "Sent",
    "Session",
    "TokenProvider",
]
