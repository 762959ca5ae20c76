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
