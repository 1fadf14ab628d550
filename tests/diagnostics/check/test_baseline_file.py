from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gradscope.diagnostics.check.baseline_file import MOST_PROMPTS, change_of, read_baseline, write_baseline
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.results.check import Baseline, BaselineMetric


def metric(value: float, half: float = 0.1, prompts: dict[str, float] | None = None) -> BaselineMetric:
    estimate = Estimate(value=value, low=value - half, high=value + half, num_units=50)
    return BaselineMetric(estimate=estimate, prompts=prompts or {})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    kept = Baseline(run="a run", metrics={"pass@8": metric(0.5, prompts={"ab": 0.25}), "grad_norm": metric(1.0)})
    write_baseline(kept, tmp_path / "ci" / "baseline.json")
    assert read_baseline(tmp_path / "ci" / "baseline.json") == kept
    assert [path.name for path in (tmp_path / "ci").iterdir()] == ["baseline.json"]


def test_a_baseline_stays_small(tmp_path: Path) -> None:
    many = {f"{number:012x}": 0.5 for number in range(MOST_PROMPTS + 1)}
    write_baseline(Baseline(run="a run", metrics={"x": metric(0.5, prompts=many)}), tmp_path / "b.json")
    assert read_baseline(tmp_path / "b.json").metrics["x"].prompts == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is no baseline of version 1"),
        ('{"schema": "gradscope/baseline", "schema_version": 2}', "is no baseline of version 1"),
        ('{"schema": "gradscope/baseline", "schema_version": 1}', "is damaged: KeyError 'metrics'"),
        ('{"schema": "gradscope/baseline", "schema_version": 1, "run": "r", "metrics": {"x": 1}}', "is damaged"),
        (
            '{"schema": "gradscope/baseline", "schema_version": 1, "run": "r", "metrics": {"x": {"value": %s, '
            '"low": null, "high": null, "num_units": 1, "undefined": null, "prompts": {}}}}' % ("9" * 400),
            "is damaged: .* is no finite number",
        ),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_baseline(tmp_path / "b.json")


def test_a_missing_baseline_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.json cannot be read: No such file") as caught:
        read_baseline(tmp_path / "b.json")
    assert "--update-baseline" in str(caught.value.hint)


def test_without_pairs_the_intervals_add_in_squares() -> None:
    change, paired = change_of(metric(0.5, 0.3), metric(0.6, 0.4))
    assert len(paired) == 0
    assert change.value == pytest.approx(0.1)
    assert change.high - change.value == pytest.approx(math.hypot(0.3, 0.4))


def test_pairs_take_the_difficulty_of_prompts_out() -> None:
    rng = np.random.default_rng(0)
    hard = {f"{number:012x}": float(rng.random()) for number in range(60)}
    easier = {name: value + 0.01 + 0.002 * float(rng.normal()) for name, value in hard.items()}
    change, paired = change_of(metric(0.5, 0.1, hard), metric(0.51, 0.1, easier))
    assert len(paired) == 60
    assert 0 < change.low < 0.01 < change.high < 0.02


def test_a_few_common_prompts_do_not_decide() -> None:
    first = {f"a{number}": 0.0 for number in range(20)}
    second = {**{f"b{number}": 1.0 for number in range(14)}, **{f"a{number}": 0.0 for number in range(6)}}
    assert not len(change_of(metric(0.0, 0.1, first), metric(0.7, 0.1, second))[1])


@pytest.mark.parametrize("missing_side", [0, 1])
def test_an_undefined_side_has_no_change(missing_side: int) -> None:
    sides = [metric(0.5), metric(0.5)]
    sides[missing_side] = BaselineMetric(estimate=Estimate.undefined_because("no samples"))
    assert change_of(*sides)[0].undefined == "no samples"


def test_a_side_without_an_interval_leaves_the_change_without_one() -> None:
    one, two = (BaselineMetric(estimate=Estimate.exact(value)) for value in (1.0, 3.0))
    assert change_of(one, two)[0] == Estimate.exact(2.0)
    assert change_of(metric(1.0), two)[0] == change_of(one, metric(3.0))[0] == Estimate.exact(2.0)


def test_the_file_holds_digests_and_not_prompts(tmp_path: Path) -> None:
    write_baseline(Baseline(run="r", metrics={"x": metric(0.5, prompts={"ab12": 1.0})}), tmp_path / "b.json")
    document = json.loads((tmp_path / "b.json").read_text())
    assert document["metrics"]["x"]["prompts"] == {"ab12": 1.0}
