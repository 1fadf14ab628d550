from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gradscope.render.files.document import document_of
from gradscope.render.files.write import write_files
from gradscope.render.registry import render_table
from tests.render.compare_example import comparison


def printed(num_cells: int = 4) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(render_table(comparison(num_cells)))
    return stream.getvalue()


def test_the_table_fits_80_columns_and_escapes_what_it_shows() -> None:
    text = printed()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_table_has_cells_differences_p_values_and_reasons() -> None:
    text = printed()
    assert "learning_rate 0.0002 - 0.0001 +0.020 —(1) —(1) —(1)" in " ".join(text.split())
    for part in (
        "4 cells, 7 tests",
        "0.500 [0.46, 0.54]  0.500 [0.46, 0.54]",
        "+0.100 [+0.06, +0.14]  0.001  0.007  0.016",
        "learning_rate 0.0002 - 0.0001",
        "(1) one pair does not tell how much pairs differ by chance",
        "p corrected = ",
        "p corrected, sign flips = ",
    ):
        assert part in text
    assert text.count("  at grpo") == 2


def test_one_cell_has_no_table_of_differences() -> None:
    text = printed(1)
    assert "Holm  flips" not in text


@pytest.mark.slow
def test_the_same_comparison_gives_the_same_files(tmp_path: Path) -> None:
    report = comparison()
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        write_files(report, document_of(report) | {"created_at": "now"}, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert [name for name in files if name.endswith(".csv")] == [
        "compare_cells.csv",
        "compare_curves.csv",
        "compare_pairs.csv",
    ]
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


def test_few_pairs_have_no_corrected_sign_flips_but_a_note() -> None:
    few = replace(comparison(), pairs=tuple(replace(pair, sign_flip_p_holm=None) for pair in comparison().pairs))
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(render_table(few))
    assert "fewer than 8 pairs: sign flips cannot decide" in stream.getvalue()
