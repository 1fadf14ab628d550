"""Correct answers to held-out prompts: from files as people have them to their cosines with a step."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank import heldout as module
from gradscope.diagnostics.rank.heldout import HeldoutAnswers, heldout_products, measure_heldout, read_heldout
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.heldout import HeldoutGram
from gradscope.gradients.step.measure import measure_step
from gradscope.reason import Reason
from gradscope.rollouts.run_folder import heldout_path
from tests.diagnostics.compared_runs import write_run
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.rank.test_rollout_spectra import make_rows
from tests.gradients.models import DAPO, tiny_groups, tiny_policy
from tests.gradients.step.test_heldout import SHARES, heldout_groups
from tests.rollouts.readers.lines import write_lines


def sample(prompt: str, completion: str, reward: float, **rest: Any) -> dict[str, Any]:
    return {"prompt_id": prompt, "prompt": prompt, "completion": completion, "reward": reward, **rest}


ROWS = [
    *(sample("1+1", "2", 1.0), sample("1+1", "two", 1.0), sample("1+1", "2", 1.0), sample("1+1", "3", 0.0)),
    *(sample("2+2", "4", 1.0), sample("2+2", "4", 1.0)),
    *(sample("3+3", "5", 0.0), sample("3+3", "7", 0.0)),
]


def answers_of(heldout: HeldoutAnswers) -> dict[str, dict[str, float]]:
    return {
        group.prompt_id: {rollout.completion: share for rollout, share in zip(group.rollouts, shares, strict=True)}
        for group, shares in zip(heldout.prompts, heldout.shares, strict=True)
    }


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_each_correct_answer_is_there_once_with_its_share(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"samples.{kind}"
    if kind == "jsonl":
        write_lines(path, *ROWS)
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    answers = read_heldout(path)
    assert answers_of(answers) == {"1+1": {"2": pytest.approx(2 / 3), "two": pytest.approx(1 / 3)}, "2+2": {"4": 1.0}}
    assert {rollout.group_id for rollout in answers.prompts[0].rollouts} == {"held-out 1+1"}
    assert [rollout.sample for rollout in answers.prompts[0].rollouts] == [0, 1]
    read = f"Held-out answers: 5 correct samples in {path}; distinct answers 3, prompts 2."
    assert answers.notes == (read,)


def test_steps_are_joined_conversations_distinguished_and_empty_samples_counted(tmp_path: Path) -> None:
    rows = [row | {"step": step} for step in (1, 2) for row in ROWS]
    answers = read_heldout(write_lines(tmp_path / "log.jsonl", *rows))
    assert {prompt: sum(shares.values()) for prompt, shares in answers_of(answers).items()} == {"1+1": 1.0, "2+2": 1.0}
    assert "10 correct samples" in answers.notes[0]
    prompts = [[{"role": "user", "content": text}] for text in ("a", "b")]
    rows = [sample("same", "2", 1.0) | {"prompt": prompt} for prompt in prompts]
    assert len(read_heldout(write_lines(tmp_path / "chat.jsonl", *rows)).prompts) == 2
    answers = read_heldout(write_lines(tmp_path / "textless.jsonl", *ROWS, sample("2+2", "", 1.0)))
    assert answers.notes[1] == "1 correct samples without text, or of several sequences, left out."


@pytest.mark.parametrize("folder", ["", "heldout"])
def test_a_run_stands_for_its_samples_before_and_after(folder: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    right = [sample("1+1", "2", 2.0, correct=True), sample("1+1", "II", 2.0, correct=True)]
    write_lines(heldout_path(run, "before"), right[0], sample("1+1", "1", 1.0, correct=False))
    write_lines(heldout_path(run, "after"), right[1], sample("2+2", "4", 2.0, correct=True))
    assert answers_of(read_heldout(run / folder)) == {"1+1": {"2": 0.5, "II": 0.5}, "2+2": {"4": 1.0}}
    assert answers_of(read_heldout(heldout_path(run, "before"))) == {"1+1": {"2": 1.0}}


def test_of_many_answers_some_are_drawn_from_every_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS", 6)
    rows = [sample(f"p{prompt}", f"{answer}", 1.0) for prompt in range(4) for answer in range(5 if prompt else 1)]
    path = write_lines(tmp_path / "many.jsonl", *rows + rows[:1])
    once, repeat, other = (read_heldout(path, seed=seed) for seed in (1, 1, 2))
    sizes = {group.prompt_id: group.size for group in once.prompts}
    assert sizes.keys() == {"p0", "p1", "p2", "p3"}
    assert sum(sizes.values()) == 6
    assert all(sum(shares) == pytest.approx(1.0) for shares in once.shares)
    assert answers_of(once) == answers_of(repeat)
    assert answers_of(once) != answers_of(other)
    assert once.notes[-1] == "6 distinct answers of 4 prompts were drawn at random (seed 1)."
    monkeypatch.setattr(module, "MAX_ANSWERS", 3)
    assert len(read_heldout(path).prompts) == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([sample("a", "x", 0.0), sample("a", "y", 0.0)], "None of the 2 samples in .* is correct"),
        (
            [sample("a", "x", 0.3), sample("a", "y", 0.9)],
            "neither 0/1 nor -1/1: which samples are correct is not known",
        ),
        ([{"task_id": "a", "n": 4, "c": 2}, {"task_id": "b", "n": 4, "c": 1}], "3 correct samples, but none with both"),
    ],
)
def test_what_holds_no_answer_is_refused(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_heldout(write_lines(tmp_path / "samples.jsonl", *rows))
    assert error.value.hint


def test_samples_without_any_verdict_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl"):
        read_heldout(tmp_path / "nowhere.jsonl")
    monkeypatch.setattr(module, "read_run", lambda *_, **__: run_of(group_of([None, None])))
    with pytest.raises(InputError, match="no sample with a reward"):
        read_heldout(tmp_path)


def test_a_threshold_says_from_which_reward_on_a_sample_is_correct(tmp_path: Path) -> None:
    rows = [sample("a", "x", 0.3), sample("a", "y", 0.9), sample("b", "z", 0.4)]
    assert answers_of(read_heldout(write_lines(tmp_path / "graded.jsonl", *rows), threshold=0.4)) == {
        "a": {"y": 1.0},
        "b": {"z": 1.0},
    }
    run = write_run(tmp_path / "run")
    rows = [sample("a", "x", 1.0, correct=False), sample("b", "z", 2.0, correct=True)]
    path = write_lines(heldout_path(run, "after"), *rows)
    assert answers_of(read_heldout(path)) == {"b": {"z": 1.0}}
    assert answers_of(read_heldout(path, threshold=1.0)) == {"a": {"x": 1.0}, "b": {"z": 1.0}}


def products_of(engine: str = "auto", answers: HeldoutAnswers | None = None) -> HeldoutGram | Reason:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    answers = answers or HeldoutAnswers(prompts=tuple(heldout_groups()), shares=SHARES, notes=())
    options = EngineOptions(engine=engine)
    answer = heldout_products(prepared, measure_step(prepared), answers=answers, engine=options)
    return answer


@pytest.mark.parametrize("engine", ["auto", "stream"])
def test_it_is_asked_of_the_engine_that_was_chosen(engine: str) -> None:
    answer = products_of(engine)
    assert isinstance(answer, HeldoutGram)
    assert answer.cross.shape == (6, 3)


def test_a_step_that_has_none_keeps_its_reason() -> None:
    prompts = tuple(tiny_groups(3)[:2])  # the step's
    answer = products_of(answers=HeldoutAnswers(prompts=prompts, shares=((0.5, 0.25, 0.25),) * 2, notes=()))
    assert isinstance(answer, Reason)
    assert answer.text == "Every held-out prompt is trained on in this very step"
    assert answer.advice == "Give samples of prompts that the step was not trained on."
    assert products_of("nothing").text == "There is no engine 'nothing'"


REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
GROUPS = [f"g{group}" for group in range(5) for _ in range(4)]


def gram_of(scores: np.ndarray, heldout: np.ndarray, scales: np.ndarray | None) -> HeldoutGram:
    norms = np.linalg.norm(heldout, axis=1)
    return HeldoutGram(cross=scores @ heldout.T, norms=norms, scales=scales, notes=())


def test_every_formulation_is_held_against_the_same_products() -> None:
    rows, scores = make_rows(REWARDS, GROUPS, advantages=[2 * reward - 1 for reward in REWARDS])
    heldout, scales = np.random.default_rng(5).normal(size=(7, scores.shape[1])), np.linspace(2.0, 3.0, 20)
    scales[1] = 0.0  # a correct rollout that the loss leaves out
    steps, prompts = measure_heldout(rows, gram_of(scores, heldout, scales), [LOGGED, "dr_grpo", "sign", "spo"])
    assert [(row.advantage, row.num_groups, row.num_heldout) for row in steps] == [
        (LOGGED, 5, 7),
        ("dr_grpo", 3, 7),
        ("sign", 5, 7),
    ]
    logged, live, sign = steps
    assert (sign.frac_hurt, sign.cosine, sign.transfer) == (logged.frac_hurt, logged.cosine, logged.transfer)
    rewards, group = np.array(REWARDS), np.arange(20) // 4
    pulls = {j: (rewards - rewards[group == j].mean())[group == j] @ scores[group == j] for j in (0, 3, 4)}
    right = {j: (group == j) & (rewards == 1) & (scales > 0) for j in pulls}
    own_means = {j: (scales[:, None] * scores)[mask].mean(axis=0) for j, mask in right.items()}
    step = sum(pulls.values())
    assert live.frac_hurt.value == pytest.approx(
        np.mean([pull @ answer < 0 for pull in pulls.values() for answer in heldout])
    )
    ratio = np.mean(heldout @ step) / np.mean([own_means[j] @ step for j in pulls])
    if live.transfer.is_defined:
        assert live.transfer.value == pytest.approx(ratio)
    else:
        assert np.mean([own_means[j] @ step for j in pulls]) <= 0 or "single group" in live.transfer.undefined
    assert [(row.group_id, row.pass_rate) for row in prompts] == [
        *(("g0", 0.5), ("g1", 0.0), ("g2", 1.0), ("g3", 0.25), ("g4", 0.75))
    ]
    lacking = replace(rows, rewards=np.array([np.nan, *REWARDS[1:]]))
    _, unrewarded = measure_heldout(lacking, gram_of(scores, heldout, scales), [LOGGED])
    assert [row.pass_rate for row in unrewarded] == [None, 0.0, 1.0, 0.25, 0.75]
    assert measure_heldout(rows, gram_of(scores, heldout, scales), ["spo"]) == ([], [])
    _, of_live = measure_heldout(rows, gram_of(scores, heldout, scales), ["dr_grpo"])
    unit = np.mean([np.linalg.norm(pull) for pull in pulls.values()]) * np.mean(np.linalg.norm(heldout, axis=1))
    assert [row.influence.value for row in of_live] == pytest.approx(
        [np.mean(heldout @ pull) / unit for pull in pulls.values()]
    )


def test_a_transfer_needs_the_steps_own_answers() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    heldout = np.random.default_rng(5).normal(size=(7, scores.shape[1]))
    ((uneven,), prompts) = measure_heldout(rows, gram_of(scores, heldout, None), ["dr_grpo"])
    assert "weighs the tokens of an answer unequally" in uneven.transfer.undefined
    assert uneven.frac_hurt.is_defined
    assert all(row.influence.is_defined for row in prompts)
    graded = replace(rows, rewards=np.array(REWARDS) / 2)
    ((other,), prompts) = measure_heldout(graded, gram_of(scores, heldout, np.ones(20)), ["dr_grpo"])
    assert "rewards other than 0 and 1" in other.transfer.undefined
    assert (other.cosine.is_defined, prompts[0].pass_rate) == (True, 0.25)
