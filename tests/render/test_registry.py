from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from gradscope.render.registry import SPECS, draw_figures, load, metrics_of, render_table, spec_of
from tests.render import examples
from tests.render.report_example import run_report


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_a_row_names_exists_and_takes_its_result(spec) -> None:
    for name, num_arguments in ((spec.table, 1), (spec.figures, 1), (spec.arrays, 2)):
        if name is not None:
            parameters = list(inspect.signature(load(name), eval_str=True).parameters.values())
            needed = [one for one in parameters if one.default is inspect.Parameter.empty]
            assert len(needed) == num_arguments
            assert parameters[0].annotation is spec.result


def test_no_two_rows_share_a_name_or_a_type() -> None:
    assert len({spec.name for spec in SPECS}) == len({spec.result for spec in SPECS}) == len(SPECS)


@pytest.mark.parametrize(
    ("report", "name"),
    [
        (examples.rank_report(), "rank"),
        (examples.passk_report(), "passk"),
        (examples.claims_report(), "claims"),
        (examples.spike_report(), "spike"),
        (run_report(), "report"),
    ],
)
def test_a_result_finds_its_row(report: object, name: str) -> None:
    assert spec_of(report).name == name


@pytest.mark.parametrize("ask", [spec_of, render_table, draw_figures])
def test_what_no_command_finds_has_no_row(ask) -> None:
    with pytest.raises(TypeError, match="no command finds a dict"):
        ask({})


def test_inputs_are_those_of_every_file() -> None:
    report = examples.passk_report()
    assert spec_of(report).sources(report) == tuple(table.source for table in report.tables)
    check = examples.check_report()
    assert spec_of(check).sources(check) == (check.source,)


def test_a_command_without_metrics_of_its_own_defines_none() -> None:
    assert metrics_of("report_index") == []
    assert metrics_of("passk") == ["pass_at_k", "pass_hat_k", "compression_factor", "frac_won", "frac_lost"]


def test_a_result_without_figures_loads_no_matplotlib() -> None:
    code = (
        "import sys\n"
        "from gradscope.render.registry import draw_figures, render_table\n"
        "from tests.render.examples import check_report\n"
        "assert 'rich' not in sys.modules\n"
        "render_table(check_report())\n"
        "assert not {name for name in sys.modules if name.startswith('gradscope.render.terminal.rank')}\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
