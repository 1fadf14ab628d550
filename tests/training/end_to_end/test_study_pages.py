"""What the pages of the studies print, computed once more from a row a seed, by lines that share no code with them."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

DOCS = REPOSITORY / "docs" / "research"
BY_SEED = sorted(DOCS.glob("study_*_by_seed.csv"))
PAIR = re.compile(r"(?P<value>[+-][\d.]+)(?: \[(?P<low>[+-][\d.]+), (?P<high>[+-][\d.]+)\])?$")
MARGIN = re.compile(r"within ([\d.]+) of it|the margin is ([\d.]+)")


def table_of(text: str, *columns: str) -> list[dict[str, str]]:
    """The rows of the table of a text that begins with these columns."""
    lines = text.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(f"| {' | '.join(columns)} |"))
    rows = [[cell.strip().strip("*") for cell in line.strip("|").split(" | ")] for line in lines[at:]]
    end = next((index for index, line in enumerate(lines[at:]) if not line.startswith("|")), len(rows))
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:end]]


def generated(page: str, part: str) -> str:
    return page.partition(f"<!-- {part} of benchmarks/")[2].partition("<!-- end of")[0]


def numbers_of(file: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Arm and metric -> seed -> number."""
    by_name: dict[tuple[str, str], dict[int, float]] = {}
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            for metric in list(row)[3:]:
                if row[metric]:
                    by_name.setdefault((row["arm"], metric), {})[int(row["seed"])] = float(row[metric])
    return by_name


def flipped(numbers: np.ndarray) -> np.ndarray:
    """The sums under every choice of signs."""
    signs = (np.arange(2 ** len(numbers), dtype=np.int32)[:, None] >> np.arange(len(numbers), dtype=np.int32)) & 1
    return numbers.sum() - 2 * np.concatenate([part @ numbers for part in np.array_split(signs.astype(np.int8), 64)])


def p_of(change: np.ndarray, margin: float | None) -> float:
    if margin is None:
        return float(np.mean(np.abs(flipped(change)) >= abs(change.sum()) - 1e-9))
    sides = [margin + change, margin - change]
    return max(float(np.mean(flipped(side) >= side.sum() - 1e-9)) for side in sides)


def half_of(numbers: np.ndarray) -> float:
    return float(student.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5)


def same_pair(printed: str, change: np.ndarray) -> None:
    result = PAIR.match(printed)
    assert result, printed
    assert float(result["value"]) == pytest.approx(change.mean(), abs=5.1e-4)
    if result["low"] is None:
        assert np.ptp(change) == 0
    else:
        ends = (change.mean() - half_of(change), change.mean() + half_of(change))
        assert (float(result["low"]), float(result["high"])) == pytest.approx(ends, abs=5.1e-4)


def change_of(numbers: dict[tuple[str, str], dict[int, float]], pair: str, metric: str) -> np.ndarray:
    arm, _, other = pair.partition(" - ")
    first, two = numbers[arm, metric], numbers[other, metric]
    return np.array([first[seed] - two[seed] for seed in sorted(first) if seed in two])


def test_a_study_publishes_every_seed() -> None:
    assert BY_SEED
    for file in BY_SEED:
        assert all(sorted(of_seeds) == list(range(100, 120)) for of_seeds in numbers_of(file).values())


@pytest.fixture(params=BY_SEED, ids=lambda file: file.stem)
def study(request: pytest.FixtureRequest) -> tuple[str, str, dict[tuple[str, str], dict[int, float]]]:
    """The page of a study, its tables, and the numbers of its seeds."""
    page = (DOCS / f"{request.param.stem.removesuffix('_by_seed')}.md").read_text()
    return page, generated(page, "tables"), numbers_of(request.param)


def stepped_down(p_values: list[float], planned: int) -> list[float]:
    """Holm's p-values of a family of which some tests may be missing."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (planned - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def test_what_a_page_decides_follows_from_its_seeds(study) -> None:
    _, tables, numbers = study
    decided = table_of(tables, "claim", "reported", "by", "difference")
    p_values = []
    for row in decided:
        change = change_of(numbers, row["claim"], row["by"])
        same_pair(row["difference"], change)
        margin = MARGIN.search(row["decided"]) or MARGIN.search(row["least, at this spread"])
        p_values.append(p_of(change, float(margin[1] or margin[2]) if margin else None))
    for row, p_value in zip(decided, stepped_down(p_values, len(p_values)), strict=True):
        assert p_value < 1e-4 if row["p"] == "< 0.0001" else float(row["p"]) == pytest.approx(p_value, abs=5.1e-5)
        assert (row["decided"] == "not decided") == (p_value > 0.05)


def test_what_a_page_shows_beside_it_follows_from_its_seeds(study) -> None:
    _, tables, numbers = study
    for row in table_of(tables, "arm - other"):
        for metric in list(row)[1:]:
            same_pair(row[metric], change_of(numbers, row["arm - other"], metric))
    for row in table_of(tables, "arm", "learning rate"):
        for metric in list(row)[2:]:
            of_arm = np.array(list(numbers[row["arm"], metric].values()))
            value, _, half = row[metric].partition(" ± ")
            assert float(value) == pytest.approx(of_arm.mean(), abs=5.1e-4)
            assert float(half) == pytest.approx(half_of(of_arm), abs=5.1e-4) if half else np.ptp(of_arm) == 0


def test_every_figure_in_the_words_of_a_page_is_in_its_tables(study) -> None:
    page, tables, _ = study
    words = page.partition("## What came out")[2].partition("<!-- tables")[0]
    in_tables = re.findall(r"\d\.\d{2,}", tables + generated(page, "pilot"))
    expected = {f"{float(number):.{digits}f}" for number in in_tables for digits in (2, 3)}
    output = re.findall(r"(?<![\d.])\d\.\d{2,3}(?!\d)", words)
    assert output
    assert set(output) <= expected


def test_the_ranks_of_the_page_follow_from_its_prompts() -> None:
    tables = generated((DOCS / "study_rank.md").read_text(), "tables")
    with (DOCS / "study_rank_by_prompt.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))

    def ranks(matrix: str, size: str, label: str) -> np.ndarray:
        return np.array(
            [float(row[label]) for row in rows if (row["matrix"], row["R"]) == (matrix, size) and row[label]]
        )

    full = "dL/dW, mean over weights"
    change = ranks(full, "64", "per step") - ranks(full, "64", "outcome")
    output = re.search(r"per step minus outcome: (?P<pair>.*?\]), p = (?P<p>[\d.]+) by sign flips", tables)
    assert output
    same_pair(output["pair"], change)
    assert float(output["p"]) == pytest.approx(p_of(change, None), abs=5.1e-5)
    for row in table_of(tables, "matrix", "R"):
        for label in list(row)[2:]:
            of_prompts = ranks(row["matrix"], row["R"], label)
            if row[label] == "—":
                assert not len(of_prompts)
                continue
            value, low, high = (float(number) for number in re.findall(r"[\d.]+", row[label]))
            half = half_of(of_prompts)
            ends = (of_prompts.mean(), max(of_prompts.mean() - half, 1.0), of_prompts.mean() + half)
            assert (value, low, high) == pytest.approx(ends, abs=5.1e-3)


@pytest.mark.parametrize(("name", "part"), [("study_intervention", 0), ("study_intervention_real", 1)])
def test_the_changes_of_single_steps_follow_from_their_rows(name: str, part: int) -> None:
    page = (DOCS / "study_intervention.md").read_text().split("## On a real model")[part]
    with (DOCS / f"{name}.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    p_values, printed = [], []
    for row in table_of(page, "updates before", "length", "direction"):
        of_row = (row["updates before"], float(row["length"]), row["direction"])
        steps = [step for step in rows if (step["checkpoint"], float(step["length"]), step["direction"]) == of_row]
        assert int(row["batches"]) == len(steps)
        for column, number in (("q^4", "q^4 change"), ("pass@1", "pass@1 change")):
            change = 1000 * np.array([float(step[number]) for step in steps])
            ends = (change.mean(), change.mean() - half_of(change), change.mean() + half_of(change))
            pair = re.findall(r"[+-][\d.]+", row[f"{column}, change in 1/1000"])
            assert list(map(float, pair)) == pytest.approx(ends, abs=5.1e-3)
        if row["p"]:
            p_values.append(p_of(np.array([float(step["q^4 change"]) for step in steps]), None))
            printed.append(float(row["p"]))
    # what was planned and is missing counts as not decided
    assert printed == pytest.approx(stepped_down(p_values, 6), abs=5.1e-5)
