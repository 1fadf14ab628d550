"""The rollouts of a page in words: what a group and a rollout are told by before their text is read."""

from __future__ import annotations

from gradscope.render.words.numbers import format_number
from gradscope.results.report import ReadGroup, ReadRollout, RunReport


def token_texts_of(report: RunReport) -> dict[tuple[str, int], str]:
    """Which rollouts are shown token by token, and the ids of these texts in the page."""
    shown = {
        text.title: f"{section.name}-text-{number}"
        for section in report.sections
        for number, text in enumerate(section.texts, start=1)
    }
    rollouts = ((group.group_id, rollout.sample) for group in report.rollouts for rollout in group.rollouts)
    return {key: shown[title] for key in rollouts if (title := f"{key[0]} #{key[1]}") in shown}


def share_of_group(group: ReadGroup) -> str:
    """What a group sorts by: the largest part of the gradient that one of its rollouts has; empty where none is known.

    Returns:
        Its absolute value, with four digits.
    """
    shares = [abs(rollout.share) for rollout in group.rollouts if rollout.share is not None]
    return f"{max(shares):.4g}" if shares else ""


def summary_of(group: ReadGroup) -> str:
    """What is said of a group behind its name: its mean reward, and its part of the gradient.

    Returns:
        The words with the separator before them.
    """
    rewards = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
    shares = [rollout.share for rollout in group.rollouts if rollout.share is not None]
    mean = f" · mean reward {format_number(sum(rewards) / len(rewards), 'norm')}" if rewards else ""
    return mean + (f" · {100 * sum(shares):+.1f} % of the gradient" if shares else "")


def rollout_line(rollout: ReadRollout) -> str:
    """What is said of a rollout above its text.

    Returns:
        Its number, reward, advantage and part of the gradient, as far as they are known.
    """
    parts = [f"#{rollout.sample}"]
    if rollout.reward is not None:
        parts.append(f"reward {format_number(rollout.reward, 'norm')}")
    if rollout.advantage is not None:
        parts.append(f"advantage {format_number(rollout.advantage, 'norm')}")
    if rollout.share is not None:
        parts.append(f"{100 * rollout.share:+.1f} % of the gradient")
    return " · ".join(parts)
