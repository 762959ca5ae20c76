"""Benchmarks: each measure runs the real thing beside a raw engine or a bare peer.

`make bench` runs all of them; `python -m bench NAME...` some. None of them judges: they print what
was measured, what it was compared with in the same run, and on what machine (docs/performance.md).
"""

import os

# Before anything imports grpc: its own notices are no results.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
