"""A sample of docs/research/architectures*.csv: models with positions, states, experts or selected tokens."""

from pathlib import Path

import pytest

from benchmarks import adapters, architectures, compared_models

pytestmark = [
    pytest.mark.slow,  # models are made, saved, and trained by TRL
    pytest.mark.filterwarnings("ignore"),  # of transformers and PEFT, about each other
]

EXACT = (
    *(("class", name) for name in ("roberta", "qwen3_next", "gemma3n_text")),
    *(("adapter", name) for name in ("OSF", "trainable_token_indices, tied")),
)


def outcome_of(table: str, name: str, folder: Path, *, train: bool = False):
    subjects = {"class": architectures, "adapter": adapters}[table].subjects()
    (subject,) = (subject for subject in subjects if subject.name == name)
    return compared_models.examine(subject, folder, train=train)


@pytest.mark.parametrize(("table", "name"), EXACT)
def test_a_class_or_an_adapter_has_the_gram_matrix_of_plain_autograd(table, name, tmp_path):
    assert outcome_of(table, name, tmp_path).kind == "exact"


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("class", "rwkv"),
        ("adapter", "LILY"),  # whose parameters have no gradient by rows, and one by the norm alone
    ],
)
def test_three_steps_of_trl_are_replayed(table, name, tmp_path):
    assert outcome_of(table, name, tmp_path, train=True).trained.startswith("match at 3 of 3 steps")


def test_a_pass_that_was_not_the_models_own_is_no_mismatch(tmp_path):
    trained = outcome_of("class", "phimoe", tmp_path, train=True).trained
    assert trained.startswith("cannot at 3 of 3 steps")
    assert "draws random numbers in training" in trained


@pytest.mark.parametrize(
    ("table", "name", "kind", "output"),
    [
        ("class", "reformer", "not trainable by TRL", "multiple"),
        ("class", "phimoe", "random in training", "differ"),
        ("adapter", "PROMPT_TUNING", "refused", "kind PROMPT_TUNING"),
    ],
)
def test_what_is_not_exact_has_its_reason(table, name, kind, output, tmp_path):
    result = outcome_of(table, name, tmp_path)
    assert result.kind == kind
    assert output in result.reason
