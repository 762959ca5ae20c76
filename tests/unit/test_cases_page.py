"""docs/cases.md says where each public case is shown, and says it of every one."""

from tests.support.cases import shown, table

CASES = {
    *("COD-01", "COD-02", "COD-03", "COD-05", "COD-06"),
    *("GW-01", "GW-02", "GW-05", "GW-06"),
    *("WR-01", "WR-03", "WR-04", "WR-05"),
    *("FAN-01", "FAN-03", "FAN-04", "FAN-05"),
    *("MBX-01", "MBX-02", "MBX-04", "MBX-06", "MBX-08"),
    *("SES-01", "SES-02", "SES-04", "SES-06"),
    "AUT-07",
}
"""Those of codec, writer, fanout, mailbox and session; of the gateway what needs no second node;
and of tokens what a stream must survive."""


def test_every_case_is_shown_by_a_test_that_names_it() -> None:
    names = shown()
    assert {case for case in CASES if not names.get(case)} == set()


def test_the_page_names_tests_that_exist_and_name_the_case() -> None:
    """`python -m tests.support.cases` writes the column anew."""
    names, page = shown(), table()
    assert set(page) == CASES
    for case, tests in page.items():
        assert tests, case
        assert set(tests) <= set(names[case]), case
