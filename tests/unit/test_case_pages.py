"""docs/cases.md and docs/faults.md say where each case and fault is shown: of every one."""

import pytest
from tests.support.cases import CASES, FAULTS, Page

NAMES = {
    CASES: {
        *("COD-01", "COD-02", "COD-03", "COD-05", "COD-06"),
        *("GW-01", "GW-02", "GW-05", "GW-06"),
        *("WR-01", "WR-03", "WR-04", "WR-05"),
        *("FAN-01", "FAN-03", "FAN-04", "FAN-05"),
        *("MBX-01", "MBX-02", "MBX-04", "MBX-06", "MBX-08"),
        *("SES-01", "SES-02", "SES-04", "SES-06"),
        "AUT-07",
    },
    FAULTS: {
        *("F01", "F03", "F05", "F06", "F08", "F09", "F11"),
        *("F12", "F15", "F17", "F19", "F21", "F22", "F23"),
    },
}
"""Cases of codec, writer, fanout, mailbox and session; of the gateway what needs no second node; of
tokens what a stream must survive. Faults of the engines."""

each_page = pytest.mark.parametrize("page", NAMES, ids=lambda page: page.path.stem)


@each_page
def test_every_case_is_shown_by_a_test_that_names_it(page: Page) -> None:
    shown = page.shown()
    assert {name for name in NAMES[page] if not shown.get(name)} == set()


@each_page
def test_the_page_names_tests_that_exist_and_name_the_case(page: Page) -> None:
    """`python -m tests.support.cases` writes the column anew."""
    shown, table = page.shown(), page.table()
    assert set(table) == NAMES[page]
    for name, tests in table.items():
        assert tests, name
        assert set(tests) <= set(shown[name]), name
