"""A sample of strangers' runs: TRL makes them, autograd and TRL's own log judge what gradscope says of them."""

from pathlib import Path

import pytest

from benchmarks.strangers.case import Folders

SAMPLE = {
    "llama, dynamic scaling, beyond": "exact",
    "chat, template set in the script": "exact",
    "tools": "rightly refused",
    "bf16, other weights": "spoiling found",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL and transformers, about each other
@pytest.mark.parametrize("name", SAMPLE)
def test_a_strangers_run_is_judged_right(name: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from benchmarks.strangers.cases import CASES
    from benchmarks.strangers.judge import judge
    from benchmarks.strangers.make import make_run

    (case,) = [case for case in CASES if case.name == name]
    make_run(case, folders := Folders(tmp_path / "run"))
    verdicts = judge(case, folders)
    assert verdicts.outcome == SAMPLE[name], verdicts.words
