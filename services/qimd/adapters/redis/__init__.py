"""Redis as the authoritative store: one standalone Redis, every step one Lua script.

`open_redis` looks at the server and gives the ports; `engine` calls it, `keys` names what is in it,
`scripts` says what the files in `lua/` hold to.
"""

from qimd.adapters.redis.backends import RedisStores, open_redis
from qimd.adapters.redis.gates import GateRefused

__all__ = ["GateRefused", "RedisStores", "open_redis"]
