from tests.trained import MakeRun
from tests.training.conftest import rollouts_at


def test_formulations_share_the_first_rollouts_and_then_part(short_run: MakeRun) -> None:
    runs = short_run(), short_run(advantage="sign", checkpoint_every=1)
    first, second = ([[rollout.logprobs for rollout in rollouts_at(run, step)] for run in runs] for step in (1, 2))
    assert first[0] == first[1]
    assert second[0] != second[1]
