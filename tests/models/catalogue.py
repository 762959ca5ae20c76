"""All models at the bounds of a test run, and all rules."""

from typing import Any, Final

from tests.models import cursor_rules, lane_rules, owner_rules
from tests.models.explore import Model
from tests.models.rules import Removal

MODELS: Final[tuple[Model[Any], ...]] = (
    *owner_rules.MODELS,
    *lane_rules.MODELS,
    *cursor_rules.MODELS,
)
REMOVALS: Final[tuple[Removal, ...]] = (
    *owner_rules.REMOVALS,
    *lane_rules.REMOVALS,
    *cursor_rules.REMOVALS,
)
