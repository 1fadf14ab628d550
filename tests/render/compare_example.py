"""A comparison made by hand: two formulations at two learning rates, one difference decided, one undefined."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.results.compare import ComparedCell, ComparedCurve, ComparedPair, Comparison
from tests.render.examples import HOSTILE, source

METRICS = ("pass@1", "train_reward")
CELLS = (("grpo", 1e-4), ("grpo", 2e-4), (HOSTILE, 1e-4), (HOSTILE, 2e-4))


def _name(cell: tuple[str, float]) -> str:
    return f"{cell[0]}, learning_rate {cell[1]}"


def _around(value: float) -> Estimate:
    return Estimate(value=value, low=value - 0.04, high=value + 0.04, num_units=8)


def _cell(place: int) -> ComparedCell:
    advantage, rate = CELLS[place]
    return ComparedCell(
        name=_name(CELLS[place]),
        advantage=advantage,
        settings={"learning_rate": rate},
        seeds=tuple(range(8)),
        metrics={name: _around(0.5 + 0.05 * place) for name in METRICS},
    )


def _pair(first: int, second: int, metric: str) -> ComparedPair:
    undefined = "one pair does not tell how much pairs differ by chance" if metric == "pass@1" and first == 2 else None
    decided = metric == "train_reward" and (first, second) == (0, 2)
    p_value = None if undefined else 0.001 if decided else 0.3
    return ComparedPair(
        first=_name(CELLS[first]),
        second=_name(CELLS[second]),
        changed="learning_rate" if CELLS[first][0] == CELLS[second][0] else "advantage",
        metric=metric,
        difference=Estimate.exact(0.02) if undefined else _around(0.1 if decided else -0.01),
        p_value=p_value,
        p_holm=None if undefined else 0.007 if decided else 1.0,
        sign_flip_p_value=1.0 if undefined else 0.0078 if decided else 0.3,
        sign_flip_p_holm=None if undefined else 0.016 if decided else 1.0,
        verdict="decides" if decided else "open",
        least_detectable=Estimate.undefined_because(undefined) if undefined else Estimate.exact(0.12, num_units=8),
        spread=None if undefined else 0.08,
        num_pairs=1 if undefined else 8,
        test="paired t",
        undefined=undefined,
    )


def comparison(num_cells: int = 4) -> Comparison:
    """The comparison, of its first so many cells."""
    places = [(0, 1), (0, 2), (1, 3), (2, 3)]
    pairs = [place for place in places if max(place) < num_cells]
    return Comparison(
        source=source(),
        cells=tuple(_cell(place) for place in range(num_cells)),
        pairs=tuple(_pair(*place, metric) for place in pairs for metric in METRICS),
        curves=tuple(
            ComparedCurve(
                cell=_name(CELLS[place]),
                metric=metric,
                steps=(1.5, 3.5, 5.5),
                mean=(0.3, 0.4, 0.5 + 0.02 * place),
                low=(0.25, 0.35, 0.4),
                high=(0.35, 0.45, 0.6),
            )
            for place in range(num_cells)
            for metric in ("reward", "frac_reward_zero_std")
        ),
        metrics=METRICS,
        num_tests=7,
        left_out={f"grid/{HOSTILE}": "2 of 4 steps are done"},
        findings=(f"train_reward: {_name(CELLS[2])} is above {_name(CELLS[0])} by 0.100.",),
    )
