"""Rebuilding the embedded model: the same files, deterministically, and what it starts with."""

import hashlib
import json
from math import comb
from pathlib import Path

import numpy as np
import pytest

from gradscope.errors import OutputExistsError
from gradscope.training.grpo.policy import EMBEDDED_FOLDER, load_trained_policy
from gradscope.training.tasks.running_sums import grade_answer, is_heldout, make_problems
from gradscope.training.tasks.warm_start import make_corpus, make_embedded_model, warm_start


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.slow
def test_same_bytes_twice_and_the_packaged_tokenizer(tmp_path: Path) -> None:
    first, second = (warm_start(tmp_path / name, num_steps=3) for name in "ab")
    assert digest(first) == digest(second)
    assert digest(first).keys() == digest(EMBEDDED_FOLDER).keys()
    packaged = json.loads((EMBEDDED_FOLDER / "tokenizer.json").read_text())
    assert json.loads((first / "tokenizer.json").read_text()) == packaged


def test_corpus_keeps_clear_of_heldout_prompts_and_is_half_wrong() -> None:
    pairs = make_corpus(2000)
    assert not any(is_heldout(prompt) for prompt, _ in pairs)
    right = [grade_answer(completion, str(sum(map(int, prompt[1:-1:2])))) for prompt, completion in pairs]
    assert 0.3 < np.mean(right) < 0.6


def test_existing_folder_and_missing_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OutputExistsError, match="exists already"):
        warm_start(tmp_path)
    assert make_embedded_model([str(tmp_path)]) == 2
    assert "exists already.\nhint: Name a folder that does not exist." in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        make_embedded_model([])


@pytest.mark.slow
def test_embedded_model_starts_with_groups_of_every_kind() -> None:
    from gradscope.training.grpo.policy import HeldoutSampling, sample

    policy = load_trained_policy("embedded", dtype="float32", chat=False)
    problems = make_problems(60, seed=0, heldout=True)
    sampling = HeldoutSampling(num_samples=16, batch_size=240, max_completion_length=27, temperature=1.0, seed=0)
    completions = sample(policy, problems, sampling)
    rewards = [grade_answer(text, problems[i // 16].answer) for i, text in enumerate(completions)]
    right = np.asarray(rewards).reshape(60, 16).sum(1).astype(int)
    all_fail, all_pass = (np.mean([comb(n, 4) / comb(16, 4) for n in counts]) for counts in (16 - right, right))
    assert 0.5 < all_fail + all_pass < 0.8
    assert all_fail > 0.15
    assert all_pass > 0.15
    pass_at = [float(np.mean([1 - comb(16 - n, k) / comb(16, k) for n in right])) for k in (1, 4, 16)]
    assert pass_at[0] + 0.1 < pass_at[1] < pass_at[2] - 0.1
