"""A model and rollouts that do not fit each other, weights that are no weights: refused, and nothing is left behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from gradscope.rollouts.store import checksum_path
from tests.cli.conftest import Cli

Break = Callable[[Path], None]


def weights_with_nan(run: Path) -> None:
    path = run / "checkpoints" / "checkpoint-0" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})


def ids_outside_the_vocabulary(run: Path) -> None:
    path = run / "rollouts" / "step_00001.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        row["completion_ids"] = [22, *row["completion_ids"][1:]]
        for name in ("logprobs", "mask", "token_rewards", "token_advantages"):
            row[name] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    checksum_path(path).unlink()


@pytest.mark.parametrize("command", ["rank", "replay"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (weights_with_nan, "model.norm.weight holds values that are not finite"),
        (ids_outside_the_vocabulary, "token id 22 is outside the model's vocabulary of 22"),
    ],
)
def test_too_large_is_refused(cli: Cli, tiny_run: Path, tmp_path: Path, command: str, spoil: Break, words: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    spoil(run)
    done = cli(command, run, "--step", "1", "--output", tmp_path / "out")
    if command == "replay":  # says so of the step, whose rewards and advantages it judges all the same
        assert done.code == 1
        assert "Replay: grad_norm could not be recomputed at any step." in done.out
        assert words in " ".join(done.out.split())
        return
    assert (done.code, done.out) == (2, ""), done.err
    error, hint = done.err.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert hint.startswith("hint: ")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_memory_that_runs_out_everywhere_is_an_error_of_the_input(
    cli: Cli, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("gradscope.diagnostics.inputs.recomputed.measure_step", run_out)
    done = cli("rank", tiny_run, "--step", "1", "--output", tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert "could be computed: step 1: Memory ran out on step 1.\nhint: Use a machine with more memory" in done.err
    assert list(tmp_path.iterdir()) == []


def test_batches_are_halved_until_they_fit(cli: Cli, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradscope.gradients.plan.prepared_step import PreparedStep

    forward = PreparedStep.outputs

    def limited(step, batch, *arguments, **named):  # type: ignore[no-untyped-def]
        if batch.input_ids.numel() > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(step, batch, *arguments, **named)

    monkeypatch.setattr(PreparedStep, "outputs", limited)
    done = cli("rank", tiny_run, "--step", "1", "--engine", "stream", "--json")
    assert done.code == 0
    output = [line.removeprefix("note: ") for line in done.err.splitlines() if "Memory ran out" in line]
    result = json.loads(done.out)["result"]
    assert output
    assert len(output) == len(set(output))
    assert result["engine"]["notes"] == output
    fixed = cli("rank", tiny_run, "--step", "1", "--engine", "stream", "--batch-tokens", "4000")
    assert fixed.code == 2
    assert "Use --batch-tokens auto, or a number below " in fixed.err


@pytest.mark.parametrize("command", ["rank", "replay", "check", "report"])
def test_options_of_the_engine_are_checked_before_anything_is_read(cli: Cli, tmp_path: Path, command: str) -> None:
    more = ("--require", "effective_rank >= 1") if command == "check" else ()
    done = cli(command, tmp_path / "absent", *more, "--precision", "high", "--dtype", "bfloat16")
    assert (done.code, done.out) == (2, "")
    assert "--precision high computes in float32" in done.err
    assert "hint: " in done.err
