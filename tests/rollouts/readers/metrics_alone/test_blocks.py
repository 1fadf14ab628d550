import pytest

from gradscope.rollouts.readers.metrics_alone.blocks import blocks_joined
from gradscope.rollouts.readers.metrics_alone.published import PrintedLines

OUTLINE = """\
Step 7
actor:
  grad_norm: 0.5
  lr: 1.0e-06
critic:
  rewards:
    max: .inf
    mean: 0.25
timing_s:
  step: 12.1
"""
"""What EasyR1 prints, whose names are cut at each /."""

FORGE = """\
12:00 INFO === [global_reduce] - METRICS STEP 7 ===
  reward/evaluate_response/avg_total_reward: 0.25
  rl_trainer/grad_norm: 0.5
==============================
"""

BOX = """\
╭──────────────────────────────────────────────────────────╮
├────────────────────── Metric Table ──────────────────────┤
│ Global Step:    7/12 │ Progress: ███░░ │   8.3%          │
│ Elapsed: 01:40 │ ETA: 18:20 │ Step Time: 100.000s        │
├──────────────────────── Rollout ─────────────────────────┤
│                                                          │
│a_name_that_is_too_long=0.12…│rewards=0.250               │
├───────────────────── Training/Actor ─────────────────────┤
│actor/grad_norm=0.500        │actor/lr=1.00e-06           │
╰──────────────────────────────────────────────────────────╯
"""

PANEL = """\
╭────────────────────── Metrics ───────────────────────╮
│  objective  kl_avg: 0.01                             │
│  optim      grad_norm: 0.50                          │
│  other      episode: 64 | training_step: 7 | scores: │
│             0.25 | packed_ratio: 0.90                │
╰──────────────────────────────────────────────────────╯
"""


def joined(text: str) -> list[tuple[str, str]]:
    return list(blocks_joined((f"log:{number}", line) for number, line in enumerate(text.splitlines(), start=1)))


@pytest.mark.parametrize("ray", ["", "(Runner pid=12) ", "\x1b[36m(Runner pid=12, ip=10.0.0.1)\x1b[0m "])
@pytest.mark.parametrize(
    ("block", "metrics"),
    [
        (
            OUTLINE,
            {
                **{"actor/grad_norm": 0.5, "actor/lr": 1e-6, "timing_s/step": 12.1},
                **{"critic/rewards/max": float("inf"), "critic/rewards/mean": 0.25},
            },
        ),
        (FORGE, {"reward/evaluate_response/avg_total_reward": 0.25, "rl_trainer/grad_norm": 0.5}),
        (BOX, {"rollout/rewards": 0.25, "training/actor/actor/grad_norm": 0.5, "training/actor/actor/lr": 1e-6}),
        (
            PANEL,
            {
                **{"objective/kl_avg": 0.01, "optim/grad_norm": 0.5, "episode": 64.0, "training_step": 7.0},
                **{"scores": 0.25, "packed_ratio": 0.9},
            },
        ),
    ],
    ids=["outline", "indented", "box", "panel"],
)
def test_a_block_of_metrics_is_a_line(block: str, metrics: dict[str, float], ray: str) -> None:
    """Twice, with other lines before, between and behind the blocks."""
    text = f"begun\n{block}\n{block}ended: 3.5\n"
    lines = joined("".join(ray + line for line in text.splitlines(keepends=True)))
    printed = PrintedLines()
    read = [values for location, line in lines if isinstance(values := printed.read(location, line), dict)]
    assert [{key: values[key] for key in metrics} for values in read] == [metrics, metrics]
    assert {values["step"] for values in read} == {7}


@pytest.mark.parametrize(
    "text",
    [
        "Step 7\nprompt: what is 2+2?\n  a: 1\n",
        "Step 7\nactor:\n",
        "Step 7",
        "╭── Metrics ──╮\n│  optim  grad_norm: 0.50 │\n╰──╯\n",  # no step
        "╭── Step 7 ──╮\n│ prompt │ reward │\n╰──╯\n",
    ],
)
def test_a_block_without_a_step_or_numbers_stays_as_it_is(text: str) -> None:
    assert [line for _, line in joined(text)] == text.splitlines()
