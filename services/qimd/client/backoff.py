"""Jittered exponential back-off: clients that lost one server must not return in one wave."""

from collections.abc import Callable
from random import SystemRandom
from typing import Final

_RANDOM: Final = SystemRandom()


class Backoff:
    """Pauses that double up to a bound, each drawn from [half of it, all of it]."""

    def __init__(
        self, first_s: float, most_s: float, random: Callable[[], float] = _RANDOM.random
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._random = random
        self._tries = 0

    def reset(self) -> None:
        """It worked."""
        self._tries = 0

    def next_s(self) -> float:
        """Seconds to wait before the next try."""
        # The exponent is bounded, so that a day of failures doesn't overflow a float.
        pause = min(self._most_s, self._first_s * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return pause * (0.5 + 0.5 * self._random())
