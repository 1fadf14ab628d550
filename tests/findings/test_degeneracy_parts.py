from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.estimate import Estimate
from gradscope.findings import degeneracy_parts
from gradscope.results import degeneracy as results
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.render.examples import HOSTILE, degeneracy_report

REPORT = degeneracy_report()
NOTHING = Estimate.undefined_because("nothing is known")


def test_reward_functions_are_ranked_by_what_they_tie() -> None:
    functions, origin, rescuable = degeneracy_parts.reward_findings(REPORT)
    assert functions == (
        "By reward function: 'format' is tied in 20.0 % of groups and makes 82.0 % of the squared advantage; "
        f"'{HOSTILE}' is tied in 90.0 % of groups and makes 18.0 % of the squared advantage."
    )
    assert origin == "Shares of the squared advantage are of the logged advantages."
    assert rescuable == (
        f"'format' differs within 41 groups that '{HOSTILE}' leaves equal: with a weight for it they would have a "
        "gradient, its own."
    )
    raw = tuple(replace(row, advantage_share=NOTHING) for row in REPORT.by_reward)
    unshared = tuple(replace(row, difference_share=NOTHING) for row in raw)
    single = degeneracy_parts.reward_findings(replace(REPORT, by_reward=unshared, reward_conflict=None))[1]
    assert single == f"Alone in telling rollouts of a group apart: '{HOSTILE}' in 3, 'format' in 70 groups."
    assert (
        "makes 18.0 % of the squared reward differences; "
        in degeneracy_parts.reward_findings(replace(REPORT, by_reward=raw))[0]
    )
    shares = zip(raw, (-7.0, 8.0), strict=True)
    opposed = tuple(replace(row, advantage_share=Estimate.exact(share)) for row, share in shares)
    words = " -700.0 % of the squared advantage (a negative share undoes what the others make)."
    assert degeneracy_parts.reward_findings(replace(REPORT, by_reward=opposed))[0].endswith(words)
    assert degeneracy_parts.reward_findings(replace(REPORT, by_reward=())) == ()


def test_a_conflict_says_who_decides_and_what_to_do() -> None:
    conflict = REPORT.reward_conflict
    assert conflict is not None
    assert degeneracy_parts.conflict_findings(conflict) == (
        f"'{HOSTILE}' alone decides 20.0 % [15.0 %, 25.0 %] of the groups: 'correct' is tied in these 40, which hold "
        "30.0 % of all squared advantages.",
        'Try scale_rewards="none": these groups then have 0.4 % of all squared advantages. Or give '
        f"'{HOSTILE}' no weight where 'correct' is tied.",
    )
    rest = replace(conflict, is_alone=False, advantage_share=NOTHING, remedy="")
    assert degeneracy_parts.conflict_findings(rest) == (
        f"Side rewards decide 20.0 % [15.0 %, 25.0 %] of the groups, most of all '{HOSTILE}': 'correct' is tied in "
        "these 40.",
        "Give side rewards no weight where 'correct' is tied.",
    )
    assert degeneracy_parts.conflict_findings(None) == ()


def sides(name: str, dead: float, differs: float, *, conflict: bool) -> results.SideRewards:
    return results.SideRewards(
        run=name,
        frac_reward_zero_std=Estimate.exact(dead),
        frac_main_differs=Estimate(value=differs, low=differs - 0.05, high=differs + 0.05),
        conflict=REPORT.reward_conflict if conflict else None,
    )


def test_fewer_dead_groups_by_side_rewards_alone_are_no_improvement() -> None:
    before, after = sides("a", 0.8, 0.2, conflict=False), sides("b", 0.0, 0.2, conflict=True)
    (text,) = degeneracy_parts.conflicts_of_runs((before, after))
    words = "b has fewer groups without a gradient than a (0.0 % for 80.0 %), which shows no improvement"
    assert text.startswith(words)
    assert text.endswith("and 'correct' differs in 20.0 % [15.0 %, 25.0 %], in a in 20.0 % [15.0 %, 25.0 %].")
    for first, second in (
        (before, sides("b", 0.0, 0.6, conflict=True)),
        (sides("a", 0.0, 0.2, conflict=False), after),
        (replace(before, frac_main_differs=NOTHING), after),
        (sides("a", 0.8, 0.2, conflict=True), after),
    ):
        assert not any("improvement" in text for text in degeneracy_parts.conflicts_of_runs((first, second)))
    (text,) = degeneracy_parts.conflicts_of_runs((sides("a", 0.0, 0.2, conflict=True),))
    assert text.startswith(f"In a '{HOSTILE}' alone decides 20.0 %")
    assert list(degeneracy_parts.conflicts_of_runs((before,))) == []


def in_environments(*shares: tuple[str, int, float]) -> str:
    """The first sentences on 40 groups of each environment, so many of them dead, at this reward."""
    groups = [
        group_of([reward] * 4 if index < num_dead else [1, 0, 1, 0], step=index % 10, prompt=f"{name}/p{index}")
        for name, num_dead, reward in shares
        for index in range(40)
    ]
    return " ".join(degeneracy_of_run(run_of(*groups)).summary)


def test_an_environment_that_is_dead_among_others_leads() -> None:
    """One of ten that never passes: of all groups a seventh was dead, and nothing was to be looked at."""
    rest = [(f"env{n}", 2, 1.0) for n in range(9)]
    text = in_environments(("code", 40, 0.0), *rest)
    assert text.startswith("In 'code' 40 of 40 groups have no gradient (pass rate 0.0 %); elsewhere 18 of 360. 58 of")
    assert "Look at the verifier and the prompts of 'code' before those of others." in text
    solved = in_environments(("easy", 39, 1.0), *rest)
    assert solved.startswith("In 'easy' 39 of 40 groups have no gradient (pass rate 98.8 %); elsewhere")
    assert "Sample 'easy' less often, or give it harder prompts." in solved
    pooled = in_environments(*((name, 40, 0.0) for name in "abcd"), *rest)
    assert "(pass rate 0.0 %), as have most in 3 more environments; elsewhere 18 of 360." in pooled
    assert in_environments(*rest).startswith("18 of 360 groups")
    assert in_environments(("a", 38, 0.0), ("b", 38, 0.0)).startswith("76 of 80 groups")
    two = in_environments(*((name, 40, 0.0) for name in "ab"), rest[0])
    assert "(pass rate 0.0 %), as have most in 1 more environment; elsewhere 2 of 40." in two


def balance_of(*functions: tuple[list[float], list[float]], weight: float = 1.0) -> str:
    groups = []
    for index, (correct, side) in enumerate(functions):
        weighted = [weight * reward for reward in side]
        total = [sum(pair) for pair in zip(correct, weighted, strict=True)]
        groups.append(group_of(total, prompt=f"p{index}", functions={"correct": correct, "side": weighted}))
    return degeneracy_parts.balance_sentence(degeneracy_of_run(run_of(*groups, settings={"scale_rewards": "none"})))


def test_a_side_reward_that_makes_most_of_the_advantage_or_undoes_the_main_one_is_named() -> None:
    """By hand: deviations of a half, and of 25: shares of 1 / 2501 and 2500 / 2501 where they are independent."""
    independent = [([1.0, 1, 0, 0], [0.0, 1, 0, 1])] * 12
    assert balance_of(*independent, weight=50.0).startswith("'side' makes 100.0 %")
    assert balance_of(*independent, weight=50.0).endswith("and 'correct' <0.1 %: that is what is learned.")
    assert balance_of(*independent, weight=0.9) == ""
    # 1 - w of the difference is left: shares of 1 / (1-w) and -w / (1-w)
    opposed = [([1.0, 1, 0, 0], [0.0, 0, 1, 1])] * 12
    assert balance_of(*opposed, weight=0.9).startswith("'side' takes back what 'correct' pays (correlation -1.00")
    assert balance_of(*opposed, weight=0.2) == ""


def test_a_function_that_never_pays_is_named_and_steps_that_were_logged_twice_lead() -> None:
    groups = [
        group_of(
            [1, 0] * (1 + (step == 3)),
            step=step,
            prompt=f"p{n}",
            functions={"a": [1, 0] * 2, "form": [0] * 4, "overlong": [0] * 4},
        )
        for step in range(6)
        for n in range(2)
    ]
    summary = degeneracy_of_run(run_of(*groups)).summary
    assert summary[0].startswith("There are twice the usual rollouts at step 3: did a resumed run log them again, or")
    assert "'form' never pays: 0 for every rollout." in summary
    nothing = [group_of([0, 0], prompt=f"p{n}", functions={"a": [0, 0], "form": [0, 0]}) for n in range(6)]
    assert "never pay" not in " ".join(degeneracy_of_run(run_of(*nothing)).summary)
    assert degeneracy_parts.silent_sentence(["a", "b"]) == "'a' and 'b' never pay: 0 for every rollout."
