"""Where the real engines of the tests are; `python -m tests.engines` installs and starts them.

An engine's address comes from `QIM_TEST_<NAME>` (a machine where it runs already), else from what
`make engines` started and wrote down.
"""

import json
import os
from pathlib import Path
from typing import Final

ENGINES: Final = ("redis", "etcd", "kafka", "cassandra")
ADDRESSES: Final = Path(__file__).resolve().parents[2] / "build/engines/addresses.json"


def address(name: str) -> str | None:
    """`host:port` of an engine that runs; None if there is none here."""
    given = os.environ.get(f"QIM_TEST_{name.upper()}")
    if given:
        return given
    if not ADDRESSES.exists():
        return None
    found: dict[str, str] = json.loads(ADDRESSES.read_text())
    return found.get(name)


def settings() -> dict[str, str]:
    """The QIM_* variables with which `qimd run` finds the engines that run here."""
    found = {name: address(name) for name in ENGINES}
    variables = {
        "QIM_REDIS": found["redis"],
        "QIM_ETCD": found["etcd"],
        "QIM_REDPANDA_BROKERS": found["kafka"],
    }
    if (cassandra := found["cassandra"]) is not None:
        host, _, port = cassandra.rpartition(":")
        variables |= {
            "QIM_SCYLLA_HOSTS": host,
            "QIM_SCYLLA_PORT": port,
            "QIM_SCYLLA_KEYSPACE": "qim_demo",
            "QIM_SCYLLA_DC": "datacenter1",
            "QIM_SCYLLA_RF": "1",
        }
    return {name: value for name, value in variables.items() if value is not None}
