from pathlib import Path

from gradscope.rollouts.read_options import ColumnNames, ReadOptions


def test_what_was_given_is_spelled_as_a_person_would_type_it() -> None:
    assert list(ReadOptions().spelled()) == []
    options = ReadOptions(
        model="Qwen/Qwen2.5-0.5B",
        initial_weights=Path("base model"),
        reader="generic",
        columns=ColumnNames(reward="score", step="iteration", completion="text"),
        strict=True,
    )
    assert list(options.spelled()) == [
        ("--reader", "generic"),
        ("--model", "Qwen/Qwen2.5-0.5B"),
        ("--initial", "base model"),
        ("--reward-column", "score"),
        ("--step-column", "iteration"),
    ]
