"""What a broken build is: a patch of some functions, for as long as one world lasts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Patch = Callable[[object, str, object], None]
"""(owner, attribute, replacement)."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is taken away. `name` is the rule as the design's readers know it."""

    name: str
    break_it: Callable[[Patch], None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The build without the rule."""
        patches: list[Any] = []

        def put(owner: object, attribute: str, replacement: object) -> None:
            one = patch.object(owner, attribute, replacement)
            one.start()
            patches.append(one)

        self.break_it(put)
        try:
            yield
        finally:
            for one in reversed(patches):
                one.stop()
