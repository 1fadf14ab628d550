"""Run folders of which only what a comparison reads is there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradscope.rollouts.run_folder import RunManifest, append_metrics, heldout_path, write_manifest
from tests.rollouts.readers.lines import write_lines

CONFIG = {"steps": 4, "group_size": 4, "learning_rate": 1e-4, "heldout_prompts": 2, "heldout_samples": 4}


def write_run(
    folder: Path,
    *,
    advantage: str = "grpo",
    seed: int = 0,
    rewards: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    degenerate: int = 1,
    correct: Sequence[int] = (1, 3),
    incoherent: tuple[int, int] | None = None,
    tokens: int | None = None,
    **config: Any,
) -> Path:
    """A finished run: mean rewards by step, dead of each four groups, passes of a held-out prompt's four, tokens."""
    settings = CONFIG | config | {"output": str(folder), "advantage": advantage, "seed": seed}
    folder.mkdir(parents=True)
    write_manifest(
        folder,
        RunManifest(
            run_id=folder.name,
            created_at="2026-01-01T00:00:00+00:00",
            command="gradscope train",
            config=settings,
            seed=seed,
            model="embedded",
            task="running-sums",
            versions={},
            commit=None,
            trainer_arguments={},
            advantage=advantage,
        ),
    )
    for step, reward in enumerate(rewards, start=1):
        counts = {} if incoherent is None else dict(zip(("num_rewarded", "num_incoherent"), incoherent, strict=True))
        counted = {} if tokens is None else {"num_tokens": float(tokens * step)}
        numbers = {"reward": reward, "num_groups": 4, "num_degenerate_groups": degenerate}
        append_metrics(folder, step, numbers | counts | counted)
    if settings["heldout_prompts"]:
        rows = [
            {"prompt_id": f"p{prompt}", "completion": "x", "reward": float(sample < passes), "correct": sample < passes}
            for prompt, passes in enumerate(correct)
            for sample in range(4)
        ]
        write_lines(heldout_path(folder, "after"), *rows)
    return folder
