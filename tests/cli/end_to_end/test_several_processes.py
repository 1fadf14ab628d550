"""Commands by two processes: what one process prints and writes, once, and the same end."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Cli, Done
from tests.launched import finish, place_to_meet, start_processes

pytestmark = pytest.mark.slow  # a run is trained for it, and processes are started

ALONE = ("--step", "1", "--advantage", "logged,sign,reinforce", "--group-size", "2", "--heldout")
HIDDEN = ("rank", "--step", "1", "--rows", "hidden", "--engine", "stream", "--advantage", "logged")


_EACH = """
import contextlib, io, json, os, sys
from gradscope.__main__ import main
from gradscope.render import files
files.draw_figures = lambda _: {}  # which take longer than all the rest
stdout = sys.stdout
for port, arguments in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(port)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=stdout, flush=True)
"""
"""Commands one after the other, for to start two processes takes longer than most of them; each meets elsewhere, or
it would find the addresses of the one before."""


def singular_values(node: object) -> list[list[float]]:
    if isinstance(node, dict):
        own = node.get("singular_values")
        return [
            *([own] if isinstance(own, list) else []),
            *(v for each in node.values() for v in singular_values(each)),
        ]
    return [v for each in node for v in singular_values(each)] if isinstance(node, list) else []


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def outputs(tiny_run: Path, output: Path) -> dict[str, list[Done]]:
    """Exit code, stdout and stderr of each command in both processes."""
    commands = {
        "rank": ("rank", tiny_run, *ALONE, tiny_run, "--json", "--output", output / "rank"),
        "hidden": (*HIDDEN, tiny_run),
        "report": ("report", tiny_run, "--step", "1", "--output", output / "report" / "report.html"),
        "tokens": ("rank", tiny_run, "--step", "1", "--rows", "token"),  # last: an error ends the group
    }
    words = json.dumps([(place_to_meet(), list(map(str, command))) for command in commands.values()])
    done = finish(start_processes(2, "-c", _EACH, words))
    rows = [[Done(*json.loads(line)) for line in out.splitlines()] for _, out, _ in done]
    return {name: list(both) for name, both in zip(commands, zip(*rows, strict=True), strict=True)}


@pytest.mark.usefixtures("no_figures")
def test_rank_prints_and_writes_once_what_one_process_does(
    cli: Cli, tiny_run: Path, outputs: dict[str, list[Done]], output: Path, tmp_path: Path
) -> None:
    alone = cli("rank", tiny_run, *ALONE, tiny_run, "--json", "--output", tmp_path / "rank")
    (main, other) = outputs["rank"]
    assert (main.code, other) == (0, (0, "", ""))
    message = [
        [line for line in err.replace(str(index), "").splitlines() if line.startswith(("read ", "note", "wrote "))]
        for err, index in ((main.err, output), (alone.err, tmp_path))
    ]  # how often it tells how far it is differs
    assert message[0] == message[1] != []
    names = [sorted(str(file.relative_to(of)) for file in (of / "rank").rglob("*")) for of in (output, tmp_path)]
    assert names[0] == names[1]
    assert not list(output.glob(".*"))
    results = [json.loads(text)["result"] for text in (alone.out, main.out)]
    assert results[0]["heldout_notes"] == results[1]["heldout_notes"] != []
    expected, influences = ([row["influence"]["value"] for row in result["heldout_influences"]] for result in results)
    assert influences == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert len(influences) > 1
    first, two = map(singular_values, results)
    assert len(first) == len(two) > 0
    for values, expected in zip(two, first, strict=True):
        # logits in slices and whole ones round differently
        np.testing.assert_allclose(values, expected, atol=2e-5 * max([*expected, 0.0]))


def test_rows_by_hidden_state_equal_one_process(cli: Cli, tiny_run: Path, outputs: dict[str, list[Done]]) -> None:
    alone, (main, other) = cli(*HIDDEN, tiny_run), outputs["hidden"]
    assert (main.code, other) == (alone.code, (alone.code, "", ""))
    assert "$ gradscope" not in main.out  # the next command would need the launcher
    texts = [text.partition("\n$ gradscope")[0].rstrip().splitlines() for text in (main.out, alone.out)]
    lines = [[line.split()[:2] for line in text if "e-" not in line] for text in texts]
    assert lines[0] == lines[1]
    assert len(lines[0]) > 5


def test_a_report_and_an_error_are_written_once(outputs: dict[str, list[Done]], output: Path) -> None:
    (main, other) = outputs["report"]
    assert (main.code, other) == (0, (0, "", ""))
    assert [path.name for path in (output / "report").iterdir()] == ["report.html"]
    refusal = "Rows of tokens are measured by one process, and 2 share this model."
    assert "2 share this model" in (output / "report" / "report.html").read_text()
    assert [done.code for done in outputs["tokens"]] == [2, 2]
    assert sum(refusal in done.err for done in outputs["tokens"]) == 1


def test_memory_that_runs_out_on_one_ends_both(tiny_run: Path) -> None:
    """As if one process had less memory than the other."""
    code = """
import os, sys, torch
from gradscope.gradients import processes as group
from gradscope.gradients.step import measure
group._SKEW = 1.0
def fails(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory")
if os.environ["RANK"] == "1":
    measure.exchanged_gram = fails
from gradscope.__main__ import run
run()
"""
    done = finish(start_processes(2, "-c", code, "rank", str(tiny_run), "--step", "1"))
    assert [code for code, _, _ in done] == [2, 2]
    assert "error: Memory ran out at" in done[1][2]
    assert "error" not in done[0][2]
