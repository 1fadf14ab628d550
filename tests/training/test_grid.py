import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gradscope.errors import InputError, OutputExistsError, UsageError
from gradscope.rollouts.run_folder import checkpoint_path, manifest_path, read_manifest
from gradscope.rollouts.store import read_steps
from gradscope.training import grid as grid_module
from gradscope.training.config import TrainConfig
from gradscope.training.grid import _cell_command, _context, _start_cell, _stop_cells, make_cells, train_grid
from gradscope.training.train import train
from tests.trained import MakeRun
from tests.training.conftest import rollouts_at, short_config
from tests.training.interrupted import assert_same_run

pytestmark = pytest.mark.slow  # each cell is a process that imports TRL

VARIED = {"advantages": ["grpo", "sign"], "learning_rates": [1e-4, 2e-4], "seeds": [1]}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return train_grid(make_cells(short_config(tmp_path_factory.mktemp("grid"), steps=2), **VARIED), num_processes=2)


def test_cells_are_named_for_what_is_varied() -> None:
    config = TrainConfig(output="g", seed=4, advantage="tasa")
    assert [cell.output for cell in make_cells(config)] == ["g/tasa-seed4"]
    cells = make_cells(config, advantages=["grpo", "sign"], learning_rates=[1e-4, 0.002], seeds=[0, 1])
    names = [f"{name}-lr{rate}-seed0" for name in ("grpo", "sign") for rate in ("0.0001", "0.002")]
    assert [Path(cell.output).name for cell in cells[:4]] == names
    assert len({cell.output for cell in cells}) == 8


@pytest.mark.parametrize("varied", [{"advantages": ["grpo", "grpo"]}, {"seeds": [0, 1, 0]}, {"learning_rates": [1, 1]}])
def test_a_value_given_twice(varied: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"(grpo|0|1) is given twice"):
        make_cells(TrainConfig(), **varied)


def test_a_cells_command_repeats_it() -> None:
    config = TrainConfig(output="x", advantage="sign", learning_rate=2e-4, lora_rank=4, seed=2)
    arguments = _cell_command(config, resume=True)
    assert arguments[0] == "train"
    assert arguments[-1] == "--resume"
    pairs = set(zip(arguments[1:-1:2], arguments[2:-1:2], strict=True))
    varied = {("--advantage", "sign"), ("--seed", "2"), ("--learning-rate", "0.0002"), ("--lora-rank", "4")}
    assert pairs == {("--output", "x"), *varied}


def test_manifests_differ_in_the_one_changed_field(grid: tuple[Path, ...]) -> None:
    first, *rest = [json.loads(manifest_path(run).read_text()) for run in grid]

    def different(other: dict[str, Any], part: str) -> set[str]:
        return {name for name in first[part] if first[part][name] != other[part][name]}

    varied = [{"learning_rate"}, {"advantage"}, {"advantage", "learning_rate"}]
    assert [different(other, "config") - {"output"} for other in rest] == varied
    assert [different(other, "trainer_arguments") for other in rest] == [{"learning_rate"}, set(), {"learning_rate"}]


def test_cells_share_weights_prompts_and_first_rollouts(grid: tuple[Path, ...], short_run: MakeRun) -> None:
    weights = {(checkpoint_path(run, 0) / "model.safetensors").read_bytes() for run in grid}
    assert len(weights) == 1
    orders = [[group.prompt_id for group in read_steps(run)] for run in grid]
    assert all(order == orders[0] for order in orders)
    *first, other_seed = ([(r.completion_ids, r.logprobs) for r in rollouts_at(run, 1)] for run in (*grid, short_run()))
    assert all(rollouts == first[0] for rollouts in first)
    assert other_seed != first[0]


def test_a_cell_equals_a_single_run(grid: tuple[Path, ...], tmp_path: Path) -> None:
    config = TrainConfig.from_json(dict(read_manifest(grid[3]).config))
    assert_same_run(train(replace(config, output=str(tmp_path / "alone"))), grid[3])


def num_steps(run: Path) -> int:
    return len({group.step for group in read_steps(run)})


def test_an_interrupted_grid_goes_on_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_module, "_POLL", 0.01)  # looked at so often, the second cell is far from its end
    steps = 10
    cells = make_cells(short_config(tmp_path, steps=steps), advantages=["grpo", "sign"], seeds=[0])

    def interrupt(done: int, total: int, label: str) -> None:
        assert total == 2 * steps
        if done > steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_grid(cells, num_processes=1, progress=interrupt)
    finished, torn = (Path(cell.output) for cell in cells)
    assert num_steps(finished) == steps
    assert num_steps(torn) < steps
    before = manifest_path(finished).stat().st_mtime_ns
    made: list[Path] = []
    train_grid(cells, num_processes=1, resume=True, on_cell=made.append)
    assert made == [torn]
    assert manifest_path(finished).stat().st_mtime_ns == before
    assert num_steps(torn) == steps


def test_runs_are_not_replaced_and_a_grid_is_checked_before_it_starts(grid: tuple[Path, ...], tmp_path: Path) -> None:
    repeated = make_cells(short_config(grid[0].parent, steps=2), **VARIED)
    with pytest.raises(OutputExistsError, match=r"grpo-lr0\.0001-seed1 already exists"):
        train_grid(repeated)
    with pytest.raises(UsageError, match="--resume goes on with a grid and --force replaces it"):
        train_grid(repeated, resume=True, force=True)
    with pytest.raises(UsageError, match="no advantage formulation 'sing'"):
        train_grid(make_cells(short_config(tmp_path), advantages=["grpo", "sing"]))
    assert not list(tmp_path.iterdir())


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    good = short_config(tmp_path / "good", steps=1)
    bad = replace(good, output=str(tmp_path / "bad"), model=str(tmp_path / "none"))
    made: list[Path] = []
    with pytest.raises(InputError, match=r"1 of 2 cells failed: bad \(The model .*none.* cannot be read") as caught:
        train_grid([bad, good], num_processes=1, on_cell=made.append)
    assert made == [tmp_path / "good"]
    assert "--resume" in (caught.value.hint or "")


def test_a_killed_cell_is_a_failure_with_its_exit_code(tmp_path: Path) -> None:
    cell = _start_cell(short_config(tmp_path / "run", steps=500), force=False, on_gpu=False)
    while not (tmp_path / "run" / "manifest.json").exists():
        assert not cell.has_ended
        time.sleep(0.05)
    cell.process.kill()
    cell.process.join()
    assert cell.has_ended
    assert cell.failure == f"exit code -{signal.SIGKILL.value}"
    _stop_cells([cell])


def test_where_there_is_a_gpu_a_cell_is_not_forked() -> None:
    assert [_context(on_gpu=on_gpu).get_start_method() for on_gpu in (True, False)] == ["spawn", "forkserver"]
