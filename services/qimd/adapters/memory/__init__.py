"""Engines in memory, with the weakest engine's limits and a seam for faults.

For tests and the simulator.
"""

from qimd.adapters.memory.cluster import MemoryBackends as MemoryBackends
from qimd.adapters.memory.cluster import MemoryCluster as MemoryCluster
from qimd.adapters.memory.network import Call as Call
from qimd.adapters.memory.network import FaultPlan as FaultPlan
from qimd.adapters.memory.network import FaultRule as FaultRule
from qimd.adapters.memory.network import Lost as Lost
from qimd.adapters.memory.network import Network as Network
from qimd.adapters.memory.network import Refused as Refused
