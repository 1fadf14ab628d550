from typing import Any

import pytest

from gradscope.rollouts.readers.metrics_alone.console import CUT_DICTIONARY, PrintedLines, blocks_joined, dashes_joined


@pytest.mark.parametrize(
    "line", ["{'loss': %s, 'a/b': %s}", '{"loss": %s, "a/b": %s}', "step:7 - loss:%s - a/b:%s - c:1"]
)
def test_numbers_are_read_whichever_way_python_writes_them(line: str) -> None:
    """Lines of plain numbers are decoded as JSON, others are searched."""
    quoted = () if "step" in line else ("'0.25'",)
    for number in ("0.25", "np.float64(0.25)", "2.5e-1", ".25", *quoted):
        printed = PrintedLines()
        values = printed.read("log:1", line % (number, "3")) or printed.unnumbered[0][1]
        assert {key: values[key] for key in ("loss", "a/b")} == {"loss": 0.25, "a/b": 3.0}


@pytest.mark.parametrize(
    "line",
    [
        "Step 1,200 | loss: 0.5 | reward: 0.25",
        "step=1,200 loss=0.5 reward=0.25",
        "[Step 1,200/50,000] loss: 0.5 reward: 0.25",
        "Iteration 1200 | loss: 0.5 | reward: 0.25",
    ],
)
def test_a_step_may_have_commas_between_its_thousands(line: str) -> None:
    values = PrintedLines().read("log:1", line)
    assert isinstance(values, dict)
    assert (values["step"], values["loss"], values["reward"]) == (1200, 0.5, 0.25)


@pytest.mark.parametrize("width", [0, 40, 61, 77])
@pytest.mark.parametrize("after", ["saved - done", "(TaskRunner pid=12) step 3 is saved"])
def test_a_line_of_verl_may_be_broken(width: int, after: str) -> None:
    """By a terminal of so many columns, or after each number."""
    metrics = {f"actor/metric_{index}": index / 8 for index in range(9)}
    line = "(TaskRunner pid=12) step:7" + "".join(f" - {name}:{value}" for name, value in metrics.items())
    parts = line.replace(" - ", "\n(TaskRunner pid=12) - ").split("\n")
    parts = [line[index : index + width].rstrip() for index in range(0, len(line), width)] if width else parts
    joined = list(dashes_joined((f"log:{index}", part) for index, part in enumerate([*parts, after, *parts])))
    assert [location for location, _ in joined] == ["log:0", f"log:{len(parts)}", f"log:{len(parts) + 1}"]
    assert PrintedLines().read(*joined[0]) == metrics | {"step": 7} == PrintedLines().read(*joined[2])


@pytest.mark.parametrize("updates", [1, 2, 4])
def test_a_rollout_of_slimes_is_of_the_first_of_its_updates(updates: int) -> None:
    printed, rows = PrintedLines(), list[Any]()
    for rollout in (*range(3), *([1, 2] if updates == 1 else [])):  # a run that was resumed
        lines = [f"perf {rollout}: {{'rollout/truncated': 0.5}}", f"rollout {rollout}: {{'rollout/raw_reward': 0.5}}"]
        lines += [f"step {rollout * updates + index}: {{'train/grad_norm': 1.5}}" for index in range(updates)]
        rows += [printed.read("log:1", line) for line in [*lines, f"eval {rollout}: {{'eval/aime': 0.5}}"]]
    steps = {name: [row["step"] for row in rows if name in row] for name in ("rollout/raw_reward", "train/grad_norm")}
    resumed = [1, 2] if updates == 1 else []
    assert steps["rollout/raw_reward"] == [0, updates, 2 * updates, *resumed]
    assert steps["train/grad_norm"] == [*range(3 * updates), *resumed]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("(pid=1) step:3 - a/loss:-0.5 - x:np.float64(2e-3) - bad:abc", {"a/loss": -0.5, "x": 0.002, "step": 3}),
        ("Step 4 | loss:0.5 rewards:inf", {"loss": 0.5, "rewards": float("inf"), "step": 4}),
        ("rollout 5: {'rollout/reward': 0.25, 'x': 'text'}", {"rollout/reward": 0.25, "step": 5}),
        ("(Trainer pid=1) m.py:131] Step 5: {'actor/kl': 0.25, 'x': 1}", {"actor/kl": 0.25, "x": 1.0, "step": 5}),
        ("t - INFO - Completed steps 64: {'rl/kl': '0.250', 'x': '1e-3'}", {"rl/kl": 0.25, "x": 0.001, "step": 64}),
        ("Step 5: {'answer': 3, 'score': 1}", None),
        ("global_step=6, Mean Reward = 0.5, lr = 1e-6", {"mean_reward": 0.5, "lr": 1e-6, "step": 6}),
        ("Step 7 | Time: 3.00s | Seq. Length: 20.0 tokens/sample", {"seq_length": 20.0, "step": 7}),
        ("step:8 - val-core/GSM8K/acc:0.5", {"val-core/GSM8K/acc": 0.5, "step": 8}),
        ("rollout 9: {'KL': 0.5, 'x/GSM8K': 1}", {"KL": 0.5, "x/GSM8K": 1.0, "step": 9}),
        ("[math100]  12/100 | loss=-0.5 | reward=0.25", {"loss": -0.5, "reward": 0.25, "step": 12}),
        ("[3/50] loss: 0.5, kl: 0.1", {"loss": 0.5, "kl": 0.1, "step": 3}),
        ("Step 4/50: reward=0.5 (best)", {"reward": 0.5, "step": 4}),
        ("Step 4/50 | reward: 0.5 | Val Acc: 0.25", {"reward": 0.5, "val_acc": 0.25, "step": 4}),
        (
            "step 5 rewards=[1.0, 0.0, 0.5,0.5] kl: tensor([1. 0.]), n=[1-]",
            {"rewards": 0.5, "kl": 0.5, "n": "[1-]", "step": 5},
        ),
        ("step 6 rewards=[]", None),
        ("step 7 reward 0.3 loss 0.1", {"reward": 0.3, "loss": 0.1, "step": 7}),
        ("[12:00] Step 8: Reward -0.3, mean_KL 1e-3", {"reward": -0.3, "mean_kl": 0.001, "step": 8}),
        (
            "Iter 5: Train loss 0.5, Total rewards mean 0.25, It/sec 0.1, Peak mem 10 GB",
            {"train_loss": 0.5, "total_rewards_mean": 0.25, "It/sec": 0.1, "peak_mem": 10.0, "step": 5},
        ),
        ("[Step 6] avg reward 0.5, loss 1", {"avg_reward": 0.5, "loss": 1.0, "step": 6}),
        ("Step 7: took 3 s, then 5", None),
        (
            "Train epoch [1/1]:  10%|x | 5/50 [01:00<10:00, 1.2s/it, pg=-0.5, rm=0.25, kl=0.1]",
            {"pg": -0.5, "rm": 0.25, "kl": 0.1, "step": 5},
        ),
        ("prompts: 64/64 [00:05<00:00, 12it/s, est. speed input: 10.5 toks/s, output: 3 toks/s]", None),
        pytest.param("1/2 [it/s, " * 50_000, None, id="bars in time that grows with the line"),
        pytest.param("step 1 " + "a loss, " * 50_000, None, id="words in time that grows with the line"),
        ("Update 9 | loss: 0.5 | return 3", {"loss": 0.5, "step": 9}),
        ("Episode 10\tReward 5", {"reward": 5.0, "episode": 10}),
        ("Episode #11: total_reward=2, loss=1", {"total_reward": 2.0, "loss": 1.0, "episode": 11}),
        ("Step 1: Add 5", None),
        ("step 2 reward 0.5 for the best", None),
        pytest.param("step 3 " + "- " * 100_000, None, id="in time that grows with the line"),
        ("In episode 3, reward=1", None),
        ("(User provided step: 7 is less than current step: 8. Dropping entry: {'x': 1})", None),
        ("(User provided step: 7 is less. Dropping: {'loss': 1, 'kl': 2})", {"loss": 1.0, "kl": 2.0, "step": 7}),
        ("Metrics: {'format_reward': 1.0, 'answer/score': 0.0, 'reward': 1.0}", None),
        ("Epoch 1/3 | loss=0.5", None),
        ("Epoch 1/3 | loss=0.5 reward=1", {"loss": 0.5, "reward": 1.0, "epoch": 1}),
        ("[Round 4] mean_reward: 1", {"mean_reward": 1.0, "round": 4}),
        ("[Epoch 0.60] reward=1", None),
        ("iteration:    7  mean_reward:  0.5", {"mean_reward": 0.5, "step": 7}),
        ("step   7  |  mean_reward   0.5  |  kl   1", {"mean_reward": 0.5, "kl": 1.0, "step": 7}),
        ("iter=2 reward=1 dead_groups=3/8", {"reward": 1.0, "frac_dead_groups": 0.375, "step": 2}),
        ("step 2/9 | reward 1 | degenerate 3 / 8", {"reward": 1.0, "frac_degenerate_groups": 0.375, "step": 2}),
        ("Step 2: reward=1, files=3/8, zero_shot=3/8.5, dead=0/0", {"reward": 1.0, "step": 2}),
        pytest.param("step 1: " + "dead/" * 100_000, None, id="groups in time that grows with the line"),
        ("INFO - Epoch 1/3, Step 20, Loss: -0.5", {"loss": -0.5, "epoch": 1, "step": 20}),
        ("[Epoch 2] batch 4/50: loss=0.5", {"loss": 0.5, "epoch": 2, "step": 4}),
        ("Epoch [1/3], Iter [5/9], Reward: 1", {"reward": 1.0, "epoch": 1, "step": 5}),
        ("Epoch:[1/2](20/9751), Reward: -2, KL_ref: 0.5", {"reward": -2.0, "kl_ref": 0.5, "epoch": 1, "step": 20}),
        ("Epoch (1/3), loss: 0.5", None),
        ("Iteration 2/3, Step 4/50, GRPO iter 1/1, loss: 0.5", {"loss": 0.5, "epoch": 2, "step": 4}),
        ("iter 5/9, env step 3/8: reward=1", {"reward": 1.0, "step": 5}),
        ("[step 9/20] rewards=['0.50', '1.00'] lr=0", {"rewards": 0.75, "lr": 0.0, "step": 9}),
        pytest.param("epoch 1 " * 50_000, None, id="epochs in time that grows with the line"),
        ("eval 10/64 | reward=0.5", None),
        ("copied 3/4 files: reward=0.5", None),
        ("first do step 1 of the plan", None),
        ("[step 0001] SKIP rewards=[1,0] elapsed=2s", {"rewards": 0.5, "step": 1}),
        ("step 2 skipped mean reward=1", {"mean_reward": 1.0, "step": 2}),
        ("step 3 skipped groups=3 reward=1", {"skipped_groups": 3.0, "reward": 1.0, "step": 3}),
        ("LR this iteration: 5.00e-07 | T=0.8", None),
        ("step 1.5 | loss=0.5", None),
        ("step 4.0 | loss=0.5", {"loss": 0.5, "step": 4}),
        ("Supported: {'reward', 'score'}. Defaulting to 'score'.", None),
        ("Step 8/30", None),
        ("  • Loss: 0.5", None),
        ("{'loss': 0.5, 'reward': 1.", CUT_DICTIONARY),
    ],
)
def test_lines(line: str, values: Any) -> None:
    assert PrintedLines().read("x:1", line) == values


def test_a_mean_reward_alone_in_a_line_is_of_the_step_after_it_where_it_comes_first() -> None:
    lines = [
        "Average Reward: 0.5",
        "Step 1/9, loss: 1",
        "Average Reward: 0.25",
        "Step 2/9, loss: 2",
        "Step 3/9, loss: 3",
    ]

    def rewards(*name: str) -> list[Any]:
        printed = PrintedLines()
        read = [printed.read(f"x:{index}", line) for index, line in enumerate(name)]
        return [values.get("average_reward") for values in read if isinstance(values, dict)]

    assert rewards(*lines) == [0.5, 0.25, None]
    assert rewards(*lines[1:]) == [None, None, None]
    assert rewards(lines[0], "Saved 3 files", lines[1]) == [None]


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


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("**Step 1:** Total weekly consumption = 3.5 pounds/duck * 10 ducks = 35 pounds", None),
        ("* We add the distances from Step 1 and Step 2: 124 km + 372 km = 596 km.", None),
        ("  3. In step 2, x = 24", None),
        ("  ...8400 - 7000 = **1400 tires** ↵  ### Step 6: The loss ↵ - Total loss = 1400 * 250", None),
        ("2026-12-01 10:00:00,123 - INFO - ### Step 7: loss = 0.5 ###", 7),
        ("**step 7** reward=0.5, kl=0.1", 7),
        ("* step 7: loss = 0.5", 7),
        ("***** step 7: accuracy = 0.5 *****", 7),
    ],
)
def test_the_steps_of_a_solution_that_is_printed_are_none_of_training(line: str, step: int | None) -> None:
    values = PrintedLines().read("log:1", line)
    assert (values if values is None else dict(values)["step"]) == step
