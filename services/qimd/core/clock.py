"""Time as a decision: what a writer stamps on an event.

Reading a clock is a port (`ports.runtime`).
"""

from qimd.core.errors import unavailable
from qimd.core.parameters import CLOCK_REGRESSION_REJECT_MS


def event_time_ms(now_ms: int, last_ms: int) -> int:
    """The time of a conversation's next event: never before the last one's.

    Raises QimError(UNAVAILABLE) if the clock stands more than `clock_regression_reject_ms` before
    the last event: it refuses until the clock catches up, since a clamp over hours would lie.
    """
    if last_ms - now_ms > CLOCK_REGRESSION_REJECT_MS:
        raise unavailable(
            f"the server's clock went back {last_ms - now_ms} ms; "
            f"events are refused until it catches up"
        )
    return max(now_ms, last_ms)
