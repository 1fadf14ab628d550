import json
from pathlib import Path

import pytest
from torch import distributed

from gradscope import machine
from gradscope.errors import LaunchError
from gradscope.gradients import processes
from tests.launched import finish, start_processes

START = """
import os, signal, sys
import torch
from gradscope.__main__ import main
from gradscope.errors import InputError
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.gradients import processes as group
from gradscope.gradients.processes import *
rank = int(os.environ["RANK"])
"""


def run_processes(size: int, code: str) -> list[tuple[int, str, str]]:
    return finish(start_processes(size, "-c", START + code))


def test_one_process_tells_itself_everything() -> None:
    import torch

    with processes.connected_processes(), processes.shared_errors():
        assert (processes.num_connected(), processes.connected_index()) == (1, 0)
        assert processes.broadcast_from_main(lambda: 5) == 5
        assert processes.all_gather("a") == ["a"]
        assert processes.true_in_all_processes(True)
        assert processes.all_reduce_sum(torch.ones(2)).tolist() == [1, 1]


def test_a_process_that_ends_before_all_have_met_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise distributed.DistNetworkError("Connection reset by peer")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "init_process_group", gone)
    monkeypatch.setattr(machine, "_reports", [])
    with pytest.raises(LaunchError, match="Another process of this command ended"), processes.connected_processes():
        pytest.fail("they have not met")
    assert processes.num_connected() == 1


@pytest.mark.slow
def test_several_processes_tell_each_other() -> None:
    done = run_processes(
        3,
        """
with connected_processes():
    total = all_reduce_sum(torch.tensor(rank)).item()
    answers = [broadcast_from_main(lambda: rank), all_gather(rank), true_in_all_processes(rank < 2), total]
    print([num_connected(), connected_index(), *answers])
print(num_connected())
""",
    )
    assert [json.loads(stdout.splitlines()[0].replace("False", "false")) for _, stdout, _ in done] == [
        [3, rank, 0, [0, 1, 2], False, 3] for rank in range(3)
    ]
    assert [(code, stdout.splitlines()[1]) for code, stdout, _ in done] == [(0, "1")] * 3


FAILING = """
import typer, gradscope.cli.app
class Failing:
    def main(self, **_):
        with delivery(DeliveryOptions()):
            {body}
gradscope.cli.app.command = Failing
import gradscope.__main__
sys.argv = ["gradscope", "rank"]
gradscope.__main__.run()
"""


def ends(size: int, body: str) -> list[tuple[int, str, str]]:
    return run_processes(size, FAILING.format(body=body.replace("\n", "\n            ")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code", "err"),
    [
        ('raise InputError("No such run.")', 2, "error: No such run.\n"),
        ('if rank == 1: raise InputError("My disk is full.")\nall_gather(rank)', 2, "error: My disk is full.\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_an_error_of_one_or_of_all_ends_all_and_is_printed_once(body: str, code: int, err: str) -> None:
    done = ends(2, body)
    assert [exit_code for exit_code, _, _ in done] == [code, code]
    assert sorted(text for _, _, text in done) == ["", err]


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_one_of_them_says_so() -> None:
    done = ends(3, "all_gather(rank)\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nall_gather(rank)")
    assert [code for code, _, _ in done] == [2, -9, 2]
    (output,) = [err for _, _, err in done if err]
    assert output.startswith("error: Another process of this command ended, so none of them can go on.\nhint: ")


@pytest.mark.slow
def test_work_goes_on_from_an_error_of_all_and_not_from_that_of_one(tmp_path: Path) -> None:
    done = ends(
        2,
        """group._SKEW = 2.0
for guilty in (2, 1):
    try:
        with shared_errors():
            if rank < guilty:
                raise InputError(f"A part of step {guilty} is missing.", hint="Copy it.")
            all_gather(rank)
    except InputError as error:
        print(error.message)""",
    )
    assert [code for code, _, _ in done] == [2, 2]
    assert [stdout for _, stdout, _ in done] == ["A part of step 2 is missing.\n"] * 2
    assert [err for _, _, err in done] == ["error: A part of step 1 is missing.\nhint: Copy it.\n", ""]
