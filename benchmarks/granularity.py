"""Granularity against variance: the same rollouts under advantages of rollouts, steps and tokens.

``python benchmarks/granularity.py --output DIR`` trains the embedded model with ``dr_grpo``, lets its weights after 20
and 60 updates answer 512 prompts, fits what is learned (the heads of ``gae`` and ``token_critic``) on half of them, and
measures on the other half how much of each formulation's update is signal, and whether it points where the outcome's
does. It writes docs/research/formulations_granularity.csv and docs/images/granularity.svg; ``--quick`` is the smoke
test. Three minutes of one core. Gradients are PyTorch's own, group by group, not those of gradscope's engines.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from gradscope.advantages.online import OnlineAdvantage, StepRollouts, online_advantage
from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import expected_updates, jackknifed
from gradscope.render.figures.style import BLUE, GREEN, MUTED, ORANGE, figure_style, label_room, new_figure, save_figure
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run_folder import checkpoint_path
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.grpo.trainer import HEADS
from gradscope.training.train import train

Array = NDArray[np.float64]
Table = list[tuple[str, Estimate, Estimate, Estimate]]

OUTCOME, DENSE = "dr_grpo", "dense reward"
"""The second is ``dr_grpo`` of the probability of the true answer after the reasoning."""
ROWS = {
    OUTCOME: "rollout",
    "grpo": "rollout",
    "sign": "rollout",
    DENSE: "rollout",
    "per_step": "step",
    "per_token": "token",
    "compensation": "token",
    "compensation_clipped": "token",
    "token_critic": "token",
    "gae": "token",
}
"""Formulation -> what has an advantage of its own."""
UPDATES = {"token_critic": (1e-3, 60), "gae": (1e-2, 300)}
"""Learning rate and updates of a head. Nothing bounds ``token_critic``, so it gets those of a default run; the values
of ``gae`` have settled."""


def main() -> int:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    checkpoints, num_prompts = ((1,), 8) if options.quick else ((20, 60), 256)
    trained: dict[str, Any] = {"task": "running-sums", "advantage": "dr_grpo", "heldout_prompts": 0}
    steps = max(checkpoints)
    run = made(
        TrainConfig(output=str(options.output / "trained"), steps=steps, checkpoint_every=checkpoints[0], **trained)
    )
    tables = {}
    for updates in checkpoints:
        weights = checkpoint_path(run, updates)
        answers = TrainConfig(
            output=str(options.output / f"answers_{updates}"),
            model=str(weights),
            reward="answer_probability",  # logs the outcome's beside it
            num_prompts=num_prompts,
            steps=2,
            learning_rate=1e-12,  # both steps by the same weights
            seed=1,
            **trained,
        )
        groups = read_steps(made(answers))
        model = AutoModelForCausalLM.from_pretrained(weights).eval()
        halves = [seen(model, [group for group in groups if group.step == step]) for step in (1, 2)]
        tables[updates] = measured(model, *halves)
    with (options.docs / "research" / "formulations_granularity.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        head = ["updates", "advantage", "of each", "signal to noise", "over dr_grpo's", "cosine of expected updates"]
        writer.writerow(head)
        for updates, table in tables.items():
            writer.writerows([updates, name, ROWS[name], *map(say, numbers)] for name, *numbers in table)
    draw(tables, options.docs / "images")
    return 0


def made(config: TrainConfig) -> Path:
    """A run that goes on where it was interrupted."""
    return train(config, resume=(Path(config.output) / "manifest.json").exists())


@dataclass(frozen=True, kw_only=True)
class Half:
    """The groups of a step, and what a formulation may ask of them."""

    groups: Sequence[RolloutGroup]
    outcome: StepRollouts
    """Rewarded by the outcome."""
    dense: StepRollouts
    """Rewarded by the probability of the answer."""


def rows_of(groups: Sequence[RolloutGroup]) -> tuple[torch.Tensor, list[slice]]:
    """Ids of prompts and completions, padded on the right, [R, L], and where the tokens before a completion's lie."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    ids = [torch.tensor([*(one.prompt_ids or ()), *(one.completion_ids or ())]) for one in rollouts]
    starts = [len(one.prompt_ids or ()) - 1 for one in rollouts]
    spans = [slice(start, start + len(one.completion_ids or ())) for start, one in zip(starts, rollouts, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), spans


@torch.no_grad()
def seen(model: Any, groups: Sequence[RolloutGroup]) -> Half:
    """What the weights say of every token."""
    logprobs: list[list[float]] = []
    highest: list[list[float]] = []
    states: list[NDArray[np.float32]] = []
    for group in groups:
        ids, spans = rows_of([group])
        output = model(ids, output_hidden_states=True)
        scores = output.logits.log_softmax(-1)
        for row, span in enumerate(spans):
            sampled = ids[row, span.start + 1 : span.stop + 1]
            logprobs.append(scores[row, span].gather(-1, sampled[:, None])[:, 0].tolist())
            highest.append(scores[row, span].amax(-1).tolist())
            states.append(output.hidden_states[-1][row, span.start : span.stop + 1].numpy())

    def rewarded(function: str) -> StepRollouts:
        return StepRollouts(
            rewards=[np.array([one.rewards[function] for one in group.rollouts], dtype=float) for group in groups],
            prompt_ids=tuple(group.prompt_id for group in groups),
            logprobs=logprobs,
            max_logprobs=highest,
            token_rewards=[one.token_rewards or () for group in groups for one in group.rollouts],
            states=states,
        )

    return Half(groups=groups, outcome=rewarded("answer"), dense=rewarded("answer_probability"))


def advantages(name: str, fitted_on: Half, half: Half) -> list[Array]:
    """Of each token of a half, [R][T]; a head is fitted on the other one first."""
    online: OnlineAdvantage | None = None
    if name in UPDATES:
        rate, updates = UPDATES[name]
        online = HEADS[name](half.outcome.states[0].shape[1], rate)  # type: ignore[index]
        for _ in range(updates):
            online.advantages(fitted_on.outcome)
    online = online or online_advantage(OUTCOME if name == DENSE else name)
    values = online.advantages(half.dense if name == DENSE else half.outcome)
    by_rollout = values if online.by_token else np.concatenate(values)
    return [np.broadcast_to(a, len(taken)) for a, taken in zip(by_rollout, half.outcome.logprobs, strict=True)]


def measured(model: Any, fitted_on: Half, half: Half) -> Table:
    """Each formulation's signal to noise, that over the outcome's, and the cosine of their expected updates."""
    of_tokens = [advantages(name, fitted_on, half) for name in ROWS]
    parameters = list(model.parameters())
    sums = []
    for index, group in enumerate(half.groups):
        ids, spans = rows_of([group])
        taken = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        begin = index * group.size
        for values in of_tokens:
            weights = torch.zeros_like(taken)
            for row, span in enumerate(spans):
                weights[row, span] = torch.tensor(values[begin + row], dtype=weights.dtype)
            gradient = torch.autograd.grad((weights * taken).sum() / group.size, parameters, retain_graph=True)
            sums.append(torch.nn.utils.parameters_to_vector(gradient))
    rows = torch.stack(sums)  # group by group, in each formulation by formulation
    of_formulation = np.tile(np.eye(len(ROWS)), len(half.groups))
    products = (rows @ rows.T).double().numpy()
    updates = expected_updates(products, of_formulation, np.repeat(np.arange(len(half.groups)), len(ROWS)))
    outcome = list(ROWS).index(OUTCOME)
    signal = np.diagonal(updates.cross, axis1=1, axis2=2) / (len(half.groups) - 1)
    ratio = signal / (updates.own - signal)  # without a factor that all share
    return [
        (
            name,
            updates.signal_to_noise(place),
            jackknifed(ratio[:, place] / ratio[:, outcome]),
            updates.cosine(place, outcome),
        )
        for place, name in enumerate(ROWS)
    ]


def say(estimate: Estimate) -> str:
    """A number with its interval."""
    if estimate.value is None:
        return "undefined"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def draw(tables: Mapping[int, Table], folder: Path) -> None:
    """Signal to noise over that of the outcome, one row a formulation; later weights are hollow."""
    labels = [f"{name} ({of_each})" for name, of_each in ROWS.items()]
    with figure_style():
        figure, (axes,) = new_figure(
            "Of finer advantages only step labels carry more, early",
            "Signal to noise of an update over that of dr_grpo on the same rollouts, with its jackknife 95 % interval. "
            f"Filled and hollow: after {' and '.join(map(str, tables))} updates",
            right=label_room(labels),
        )
        axes.axvline(1, color=MUTED, linewidth=0.8)
        axes.set_yticks([])
        axes.set_ylim(len(ROWS) - 0.4, -0.6)
        colors = {"rollout": BLUE, "step": ORANGE, "token": GREEN}
        for nth, table in enumerate(tables.values()):
            for place, (name, _, ratio, _) in enumerate(table):
                if ratio.value is None or ratio.low is None or ratio.high is None:
                    continue
                height, color = place + 0.3 * nth, colors[ROWS[name]]
                axes.plot([ratio.low, ratio.high], [height, height], color=color, linewidth=1.6)
                axes.plot(ratio.value, height, "o", color=color, markerfacecolor="#ffffff" if nth else color)
        for row, label in enumerate(labels):
            axes.text(1.03, row, label, transform=axes.get_yaxis_transform(), fontsize=8, va="center")
    save_figure(figure, folder / "granularity")
    (folder / "granularity.png").unlink()  # the page shows the drawing


if __name__ == "__main__":
    raise SystemExit(main())
