"""Every order of events within the bounds, and what each rule is for."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.models.catalogue import MODELS, REMOVALS
from tests.models.explore import Model, Report, explore
from tests.models.rules import Removal


def _id(model: Model[Any]) -> str:
    return f"{model.name}: " + ", ".join(f"{name} {most}" for name, most in model.bounds.items())


@pytest.mark.parametrize("model", MODELS, ids=_id)
def test_no_order_of_events_breaks_a_promise(
    model: Model[Any], tell: Callable[[Report], None]
) -> None:
    report = explore(model)
    tell(report)
    assert report.violation is None, str(report)


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.rule)
def test_without_a_rule_something_breaks(removal: Removal) -> None:
    violation = removal.explored().violation
    assert violation is not None, f"nothing shows what it is for that {removal.rule}"
    assert removal.sees in violation.problem, str(violation)
    assert violation.path


def test_every_rule_is_named_once_and_is_back_in_its_place() -> None:
    assert len({removal.rule for removal in REMOVALS}) == len(REMOVALS)
    for removal in REMOVALS:
        assert vars(removal.owner)[removal.attribute] is not removal.without
