"""Groups of which only texts and rewards are known."""

from collections.abc import Sequence

from gradscope.rollouts.groups import Rollout, RolloutGroup


def group_of(prompt: str, rollouts: Sequence[tuple[str, float]]) -> RolloutGroup:
    """A group of completions with their rewards."""
    return RolloutGroup(
        step=1,
        group_id=prompt,
        prompt_id=prompt,
        rollouts=tuple(
            Rollout(group_id=prompt, sample=index, row=index, prompt=prompt, completion=completion, reward=reward)
            for index, (completion, reward) in enumerate(rollouts)
        ),
    )
