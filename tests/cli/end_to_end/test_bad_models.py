"""What an engine cannot do is refused, and nothing is left behind."""

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Cli


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


@pytest.mark.parametrize("command", ["rank", "replay", "check", "report"])
def test_options_of_the_engine_are_checked_before_anything_is_read(cli: Cli, tmp_path: Path, command: str) -> None:
    more = ("--require", "effective_rank >= 1") if command == "check" else ()
    done = cli(command, tmp_path / "absent", *more, "--precision", "high", "--dtype", "bfloat16")
    assert (done.code, done.out) == (2, "")
    assert "--precision high computes in float32" in done.err
    assert "hint: " in done.err
