from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from gradscope.render.files.csv_tables import render_csv, tidy_tables
from gradscope.render.files.document import document_of
from gradscope.render.files.write import write_files
from tests.render import examples


def test_everything_that_a_result_gives_is_written(tmp_path: Path) -> None:
    report = examples.rank_report()
    written = write_files(report, document_of(report), tmp_path)
    assert [path.name for path in written] == [
        "rank.json",
        "rank_curve.csv",
        "rank_spectra.csv",
        "rank_steps.csv",
        "rank_spectra.safetensors",
        "rank_curve.png",
        "rank_curve.svg",
        "rank_sizes.png",
        "rank_sizes.svg",
        "rank_nulls.png",
        "rank_nulls.svg",
        "rank_spectrum.png",
        "rank_spectrum.svg",
        "rank_sparsity.png",
        "rank_sparsity.svg",
    ]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    assert json.loads((tmp_path / "rank.json").read_text())["schema"] == "gradscope/rank"


def test_spectra_are_arrays_under_names_that_say_whose(tmp_path: Path) -> None:
    report = examples.rank_report()
    write_files(report, document_of(report), tmp_path)
    arrays = load_file(tmp_path / "rank_spectra.safetensors")
    assert len(arrays) == len(report.spectra)
    assert arrays["00001/logged/G8/step"].tolist() == list(report.spectra[-3].singular_values)


def test_a_csv_reads_back_as_the_numbers_that_were_measured() -> None:
    report = examples.degeneracy_report()
    rows = list(csv.DictReader(render_csv(tidy_tables(report)["degeneracy_by_step"]).splitlines()))
    assert len(rows) == 20
    assert float(rows[4]["pass_rate"]) == report.by_step[4].pass_rate.value
    assert float(rows[4]["pass_rate_low"]) == report.by_step[4].pass_rate.low
    assert rows[2]["logged"] == ""


def test_an_undefined_number_is_an_empty_cell_with_its_reason_in_the_next() -> None:
    row = tidy_tables(examples.passk_report())["passk_tables"][7]
    assert (row["k"], row["pass_at_k"], row["pass_at_k_undefined"]) == (
        32,
        None,
        "k = 32 exceeds the 16 samples of a prompt",
    )


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (
            examples.degeneracy_report(),
            [
                "degeneracy_by_step",
                "degeneracy_by_group_size",
                "degeneracy_by_policy",
                "degeneracy_predictions",
                "degeneracy_advantages",
                "degeneracy_by_reward",
                "degeneracy_histogram",
                "degeneracy_plans",
            ],
        ),
        (examples.passk_report(), ["passk_tables", "passk_differences"]),
        (examples.passk_report(num_files=1), ["passk_tables"]),
        (examples.weight_report(), ["rank_spectra", "rank_steps"]),
        (examples.replay_report(), ["replay_steps"]),
        (examples.check_report(), ["check_verdicts"]),
    ],
)
def test_each_result_has_its_tables(report: object, names: list[str]) -> None:
    assert list(tidy_tables(report)) == names  # type: ignore[arg-type]


def test_mappings_become_columns() -> None:
    row = tidy_tables(examples.replay_report())["replay_steps"][0]
    assert row["logged.grad_norm"] == 0.52
    row = tidy_tables(examples.rank_report())["rank_steps"][0]
    assert row["sparsity.zero_rows"] == 0.41
    assert tidy_tables(examples.rank_report())["rank_spectra"][0]["num_columns"] == 99_264
