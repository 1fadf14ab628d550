import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.readers.lines import refusal, rewards_of, set_aside, write_rows


def promptfoo_result(test: str, provider: Any, success: bool | None, **further: Any) -> dict[str, Any]:
    return {
        "promptIdx": 0,
        "testIdx": 5,  # another in each repeat
        "promptId": "of the template",
        "prompt": {"raw": f"Say {test}", "label": "Say {{test}}"},
        "provider": provider,
        "vars": {"test": test},
        "testCase": {"assert": [{"type": "equals", "value": test}]},
        "response": {"output": "so"},
        "success": success,
        "score": 0.5,
        "failureReason": 0 if success else 1,
        "namedScores": {"tone": 0.25},
        **further,
    }


PROMPTFOO = (
    *(promptfoo_result("a", {"id": "openai:m", "label": "m"}, success) for success in (True, False)),
    promptfoo_result("a", {"id": "n", "label": ""}, True),
    promptfoo_result("b", {"id": "n"}, False, failureReason=2, namedScores=None, response={"error": "429"}),
    promptfoo_result("b", "n", None),
)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("output.json", json.dumps({"evalId": "e", "results": {"version": 3, "results": PROMPTFOO}}, indent=1)),
        ("summary.json", json.dumps({"version": 2, "results": PROMPTFOO, "stats": {}})),
        ("output.jsonl", "\n".join(map(json.dumps, PROMPTFOO))),
    ],
)
def test_results_of_promptfoo_are_samples_of_tests_by_provider(tmp_path: Path, name: str, document: str) -> None:
    (tmp_path / name).write_text(document)
    run = read_run(tmp_path / name)
    rewards = [tuple(rollout.reward for rollout in group.rollouts) for group in run.groups]
    assert (run.source.format, rewards) == ("promptfoo", [(1.0, 0.0), (1.0,), (0.0, None)])
    assert [rollout.policy for group in run.groups for rollout in group.rollouts] == ["m", "m", "n", "n", "n"]
    prompts = [group.prompt_id for group in run.groups]
    assert prompts[0] == prompts[1] != prompts[2]
    first = run.groups[0].rollouts[0]
    assert (first.prompt, first.completion, first.rewards) == ("Say a", "so", {"score": 0.5, "tone": 0.25})
    assert "ended in an error count as failed" in run.source.inferred[1]
    assert set_aside(run) == {"the reward is null": 1}


def helm_block(instance: str, trial: int, **means: float | None) -> dict[str, Any]:
    stats = [{"name": {"name": name, "split": "test"}, "count": 1, "mean": mean} for name, mean in means.items()]
    return {"instance_id": instance, "train_trial_index": trial, "stats": stats}


def test_an_instance_of_helm_has_a_sample_a_trial(tmp_path: Path) -> None:
    blocks = [helm_block("id1", trial, num_prompt_tokens=9, exact_match=trial, f1=0.5) for trial in (0, 1)]
    blocks += [{**blocks[1], "perturbation": {"name": "typos"}}, helm_block("id2", 0, num_prompt_tokens=9)]
    path = write_rows(tmp_path / "per_instance_stats.json", blocks)
    run = read_run(path)
    assert list(rewards_of(run).values()) == [(0.0, 1.0), (1.0,), (None,)]
    assert run.source.inferred[1] == "The score is exact_match; others are 'num_prompt_tokens', 'f1'."
    named = read_run(path, ReadOptions(columns=ColumnNames(reward="f1")))
    assert next(iter(rewards_of(named).values())) == (0.5, 0.5)
    assert "one of 'num_prompt_tokens', 'exact_match', 'f1'" in refusal(
        path, "has no score 'em'", ReadOptions(columns=ColumnNames(reward="em"))
    )
    blocks = [helm_block("id1", 0, num_prompt_tokens=9)]
    refusal(write_rows(path, blocks), "has no usual score")


def test_an_exercise_of_aider_passed_if_its_last_try_did(tmp_path: Path) -> None:
    for run, tries in (("r1", [False, True]), ("r2", [])):
        for language in ("go", "rust"):
            folder = tmp_path / run / language / "exercises" / "practice" / "bowling"
            folder.mkdir(parents=True)
            result = {"testcase": "bowling", "model": "m", "edit_format": "diff", "tests_outcomes": tries}
            write_rows(folder / ".aider.results.json", result)
    run = read_run(tmp_path / "r1")
    assert (run.source.format, rewards_of(run)) == (
        "aider",
        {"m/diff/go/bowling": (1.0,), "m/diff/rust/bowling": (1.0,)},
    )
    assert run.groups[0].rollouts[0].rewards == {"first_try": 0.0}
    both = read_run(tmp_path / "*" / "*" / "exercises" / "practice" / "*" / ".aider.results.json")
    assert rewards_of(both)["m/diff/go/bowling"] == (1.0, 0.0)


def test_a_problem_of_multipl_e_has_a_program_a_sample(tmp_path: Path) -> None:
    for at, ends in enumerate(([("OK", 0), ("Exception", 1), ("OK", 1)], [("Timeout", -1), ("OK", 0)])):
        results = [{"program": "p", "status": status, "exit_code": code} for status, code in ends]
        problem = {"name": f"HumanEval_{at}", "language": "lua", "results": results}
        (tmp_path / f"HumanEval_{at}.results.json.gz").write_bytes(gzip.compress(json.dumps(problem).encode()))
    run = read_run(tmp_path)
    rewards = {"/lua/HumanEval_0": (1.0, 0.0, 0.0), "/lua/HumanEval_1": (0.0, 1.0)}
    assert (run.source.format, rewards_of(run)) == ("multipl-e", rewards)
