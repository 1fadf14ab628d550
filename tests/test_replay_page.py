"""The page of replay: its table of causes is the code's."""

import pytest

from gradscope.reason import CAUSES
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "replay.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_has_its_row(name: str) -> None:
    (row,) = [cells for cells in ROWS if cells[0] == f"`{name}`"]
    assert (row[1], row[3]) == (CAUSES[name].verdict, CAUSES[name].advice)
    assert row[2]


def test_the_table_has_no_other_rows() -> None:
    assert [cells[0].strip("`") for cells in ROWS] == list(CAUSES)
