"""Rules taken away: a table of names and of what replaces the function that keeps a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.models.explore import Model, Report, explore


@dataclass(frozen=True)
class Removal:
    """A rule, and the world without it: `owner.attribute` replaced by `without`.

    `models` are tried one after the other, the smallest first, until one shows what the rule is
    for; `sees` is a part of the violation that must come of it.
    """

    rule: str
    owner: object
    attribute: str
    without: object
    models: Sequence[Model[Any]]
    sees: str

    def explored(self) -> Report:
        """What an exploration without the rule finds."""
        kept = vars(self.owner)[self.attribute]
        setattr(self.owner, self.attribute, self.without)
        try:
            for model in self.models:
                report = explore(model)
                if report.violation:
                    break
            return report
        finally:
            setattr(self.owner, self.attribute, kept)
