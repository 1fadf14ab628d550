from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run

BYTES = b"\x80\x04cos\nsystem\n"
"""What a hostile pickle begins with: it must never be opened."""


@pytest.mark.parametrize(
    ("name", "given", "message", "instead"),
    [
        ("dumped_data/global_step_3_training_input.pkl", ".", "SkyRL's dump", "dump_eval_results"),
        (
            "dumped_data/global_step_3_training_input.pkl",
            "dumped_data",
            "SkyRL's dump",
            "global_step_<N>_evals",
        ),
        ("3/0/tq_batch.pt", ".", "verl's rollout cache", "trainer.rollout_data_dir"),
        ("3/gen_batch.dp", "3/gen_batch.dp", "verl's rollout cache", "trainer.rollout_data_dir"),
        ("rollout_data/3.pt", ".", "slime's dump of training", "--dump-details"),
        ("train_data/3.pt", "train_data/3.pt", "slime's dump of training", "rollout_data/<rollout_id>.pt"),
        ("val_rollouts_1.pkl", ".", "RAGEN's evaluation rollouts", "format: jsonl"),
        ("anything.pkl", "anything.pkl", "looks like a pickle", "JSONL, Parquet or CSV"),
    ],
)
def test_a_pickle_is_refused_with_what_to_switch_on(
    tmp_path: Path, name: str, given: str, message: str, instead: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BYTES)
    with pytest.raises(InputError, match=message) as caught:
        read_run(tmp_path / given)
    assert instead in (caught.value.hint or "")
