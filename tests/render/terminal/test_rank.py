import re
from itertools import pairwise

import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.registry import render_table
from gradscope.render.terminal.names import TABLES
from gradscope.render.words import FACTS, IN_THE_FILES
from gradscope.results.rank import RankReport
from tests.render import examples, rank_examples
from tests.render.printing import printed


def words(report: RankReport, *show: str) -> str:
    return " ".join(printed(render_table(report, show)).split())


KINDS = {
    "formulations": rank_examples.formulation_report(),
    "held-out prompts": rank_examples.heldout_report(),
    "gradients and updates": rank_examples.gradient_update_report(),
    "sparse weights": rank_examples.sparse_weight_report(),
    "tokens": rank_examples.token_report(),
    "token parts": rank_examples.token_parts_report(),
    "updates": rank_examples.update_report(),
    "weights by group": rank_examples.weight_rank_report(),
}


TABLES_OF = {
    "signal": ("formulations", ("its mean over groups is not above its own noise",)),
    "baselines": ("formulations", ("0.58 [0.31, 0.86]", "optimal_leave_one_out")),
    "kinds": ("formulations", ("sign 3 all-fail", "grpo 3 mixed")),
    "channels": (
        "formulations",
        (
            "of what kept of",
            "4 1.20 0.700 1.60 [1.20, 2.30] 0.90 [0.70, 1.00]",
            "the rows lie on one direction",
            "Kept: the energy of the sum over that of the rows; 1 for rows of random signs",
        ),
    ),
    "energy": ("token parts", ("above 0 0 to 0.25 top fifth 0.190 0.610 -0.12 [-0.31, 0.07] -0.25",)),
    "corrections": (
        "token parts",
        (
            "tis 0.930 0.410 1.250 1.31 0.812 [0.70, 0.92] —¹",
            "Parts of a step are those of step 41; 1 other step is in the JSON and the CSV",
        ),
    ),
    "turns": ("token parts", ("8 and later 64 0.250 0.40 [0.10, 0.70]",)),
    "logprobs": ("token parts", ("41 40 to 50 0.012 -0.130 -0.043 0.142 0.111 [0.03, 0.19]",)),
    "entropy": ("token parts", ("41 0.104 -0.04913 -0.36 [-0.66, -0.06]",)),
    "kl": ("token parts", ("-12.25 -0.5 -11.75 1.267e+05",)),
    "frames": ("updates", ("10.self_attn.q_proj 0.123 0.123 0.123 4.06 2.94",)),
    "adapters": ("updates", ("10.self_attn.q_proj 1.644 0.04345 —¹ 8 6.44 7.75 0.366 0.350",)),
    "updates": (
        "updates",
        ("W_1000 - W_0", "1 more changes", "energy in one direction 0.940 0.820", "is not on this disk"),
    ),
    "optimizers": ("gradients and updates", ("adam 0.48 — 0.40 11.91 0.860",)),
    "modules": ("gradients and updates", ("1 0.250 — 0.250 0.250 0.250 41 0.250 0.250 0.250 — —",)),
    "weights": (
        "weights by group",
        (
            *("logged¹ 2 12/16 2.02 [1.50, 4.00]", "grpo, ", ": the same, up to one factor a group"),
            *("of 2 of 8 of 32", "more weights are in the JSON and the CSV"),
        ),
    ),
}
"""Table -> a kind of report that has it, and what stands in it."""


@pytest.mark.parametrize("table", TABLES_OF)
def test_a_table_has_its_numbers_and_reasons(table: str) -> None:
    kind, parts = TABLES_OF[table]
    text = words(KINDS[kind], table)
    assert [part for part in parts if part not in text] == []
    assert "grpo 3 all-fail" not in text  # kinds of groups that give nothing


def test_a_gradient_stands_beside_the_change_that_followed() -> None:
    text = words(rank_examples.gradient_update_report(), "updates")
    assert "dL/dW direction W_60 - W_40 direction rows" in text
    assert "8.79 0.463 24.98 0.219 51.53" in text
    assert "11 more pairs of a gradient and a change" in text


def test_products_of_an_adapter_are_those_after_the_last_update() -> None:
    first, last = (replace(rank_examples.adapter_state(num), tensor=f"of_{num}") for num in (10, 20))
    text = words(replace(rank_examples.update_report(), adapters=(first, last)), "adapters")
    assert "of_20" in text
    assert "of_10" not in text


def test_a_table_that_is_not_there_says_why_where_that_is_known() -> None:
    report = replace(rank_examples.token_report(), missing_parts={"turns": "step 41: no completion has a second turn"})
    assert "There is no table of turns in this result: step 41: no completion has a second turn." in words(
        report, "turns"
    )
    assert "There is no table of kl in this result." in words(report, "kl")


def test_prompts_that_help_and_hurt_stand_at_the_ends_of_a_ranking() -> None:
    text = words(rank_examples.formulation_report(), "interference")
    assert "-0.40 [-0.75, -0.05]" in text
    assert text.index("0.55 [0.45, 0.65]") < text.index("0.15 [0.05, 0.25]") < text.index("-0.15 [-0.25, -0.05]")
    assert "-0.55 [-0.65, -0.45]" in text
    assert "0.05 [-0.05, 0.15]" not in text
    assert "2 more between them are in the files (--output)" in text


def test_held_out_prompts_have_their_ranking_and_what_was_read_of_them() -> None:
    text = words(rank_examples.heldout_report(), "heldout")
    assert "0.45 [0.15, 0.75]" in text
    assert text.index("0.550 [0.45, 0.65]") < text.index("0.150 [0.05, 0.25]") < text.index("-0.550 [-0.65, -0.45]")
    assert "2 more between them are in the files (--output)" in text
    assert "Step 41: groups with a gradient 7 (advantage logged), held-out prompts 31" in text
    assert "Held-out answers: 9 correct samples. Step 21: all 3 held-out prompts are trained on." in text
    nothing = replace(rank_examples.heldout_report(), heldout=(), heldout_influences=())
    why = "There is no table of heldout in this result: step 21: all 3 held-out prompts are trained on."
    assert why in words(nothing, "heldout")


def test_a_critical_batch_that_is_not_known_says_the_least_it_can_be() -> None:
    report = rank_examples.formulation_report()
    expected = words(report, "signal")
    assert "25.8 [13.3, 160]" in expected
    assert "0.04 [-0.01, 0.09]" in expected
    reason = Estimate.undefined_because("the signal may be zero, so no number of groups is too large")
    updates = tuple(replace(update, critical_batch_size=reason) for update in report.formulations)
    text = words(replace(report, formulations=updates), "signal")
    assert "at least 13.3" in text  # 16 groups over 1.2, the upper end of the signal to noise
    assert "the signal may be zero" not in text
    lost = tuple(
        replace(update, signal_to_noise=Estimate.undefined_because("2 groups are too few")) for update in updates
    )
    assert "the signal may be zero" in words(replace(report, formulations=lost), "signal")


def test_formulations_refused_for_one_reason_share_a_note() -> None:
    refused = {"sign": "'sign' needs 0 and 1", "tasa": "'tasa' needs 0 and 1", "max_rl": "needs a group"}
    text = words(replace(examples.rank_report(), refused=refused), "formulations")
    assert "left out: sign, tasa. such needs 0 and 1" in text
    assert "left out: max_rl. needs a group" in text


def test_sparsity_names_its_tokens_or_weights_of_which_a_long_list_is_cut() -> None:
    tokens, weights = (
        printed(render_table(of(), ("sparsity",)))
        for of in (rank_examples.token_report, rank_examples.sparse_weight_report)
    )
    assert "  21  12,345    48.0 %  0.250  0.375  0.500  0.621" in tokens
    assert "every row is zero" in tokens
    assert "0.self_attn.q_proj" in weights
    assert "step 41: entries of" in weights
    many = tuple(rank_examples.sparsity(41, f"model.layers.{layer}.mlp.up_proj.weight") for layer in range(30))
    cut = words(replace(rank_examples.sparse_weight_report(), sparsity=many), "sparsity")
    assert "6 more lines of sparsity are in the JSON and the CSV" in cut
    earlier = tuple(replace(of, step=7) for of in many[:2])  # of weights the last step is shown
    both = words(replace(rank_examples.sparse_weight_report(), sparsity=(*earlier, *many)), "sparsity")
    assert "6 more lines of sparsity are in the JSON and the CSV" in both


REPORT = replace(rank_examples.formulation_report(), headline=("The verdict.", "One.", "Two.", "Three."))


def long_run(num_steps: int) -> RankReport:
    """A rank that rises from 1 by 0.01 a step."""
    point, geometry = REPORT.curve[0], REPORT.steps[-1]
    ranks = (Estimate.exact(1 + step / 100) for step in range(num_steps))
    points = (replace(point, step=step, effective_rank=rank) for step, rank in enumerate(ranks))
    steps = (replace(geometry, step=step) for step in range(num_steps))
    return replace(REPORT, curve=tuple(points), steps=tuple(steps))


def table_lines(report: RankReport, *show: str) -> list[list[str]]:
    """The cells of each line of the table of steps."""
    text = printed(render_table(report, show)).partition("Effective rank of")[2].partition("\n\n")[0]
    return [line.split() for line in text.splitlines()[3:] if line.split()[0].isdigit() and "steps" not in line]


def test_the_answer_is_the_verdict_a_table_and_the_findings_on_one_screen() -> None:
    lines = printed(render_table(REPORT)).splitlines()
    assert lines[0].rstrip() == "The verdict."
    assert len(lines) <= 19
    text = "\n".join(lines)
    assert text.index("unrelated rows") < text.index("--show adds")
    assert not [word for word in ("cancel.", "2 means", "S/N", "—(", " = ") if word in text]
    assert "sign" not in [line[0] for line in table_lines(REPORT)]


def test_a_line_a_step_has_the_rank_its_ceilings_and_the_norm_at_the_largest_group_size() -> None:
    first, *_, last = table_lines(REPORT)
    assert first == ["1", "6.02", "[5.87,", "6.17]", "8", "7.65", "5.90", "not", "logged"]
    assert (last[0], last[4], last[-1]) == ("41", "8", "0")


@pytest.mark.parametrize(
    ("logged", "cell"), [(float("nan"), "logged NaN"), (0.0, "logged 0"), (0.8246, "5.0e-01"), (0.4123, "0")]
)
def test_the_norm_is_off_by_a_share_of_the_logged_one(logged: float, cell: str) -> None:
    steps = (replace(REPORT.steps[-1], logged_grad_norm=logged),)
    assert " ".join(table_lines(replace(REPORT, steps=steps))[-1]).endswith(f" {cell}")


@pytest.mark.slow
def test_a_long_run_is_thinned_evenly_and_the_rest_counted() -> None:
    report = long_run(600)
    steps = [int(line[0]) for line in table_lines(report)]
    assert (len(steps), steps[0], steps[-1]) == (8, 0, 599)
    assert {later - step for step, later in pairwise(steps)} <= {85, 86}
    assert len(printed(render_table(report)).splitlines()) <= 40
    assert "8 of 600 steps; --show steps adds the other 592, with ranks from 1.01 to 6.98." in words(report)
    assert len(table_lines(report, "steps")) == 600
    assert len(table_lines(long_run(8))) == 8
    assert "of 8 steps" not in words(long_run(8))


def test_steps_without_a_rank_share_a_sentence() -> None:
    dead = Estimate.undefined_because("every group of this step is dead")
    points = tuple(replace(p, effective_rank=dead) if p.step in (1, 11) else p for p in REPORT.curve)
    assert "No rank at steps 1,11: every group of this step is dead" in words(replace(REPORT, curve=points))


def test_steps_that_were_left_out_are_named_and_their_reasons_shown_when_asked() -> None:
    report = replace(REPORT, skipped={2: "no weights", 3: "no ids", 4: "no weights"})
    assert "Steps 2,4 were left out: no weights So were 3; --show steps says why." in words(report)
    assert "Step 3 was left out: no ids" in words(report, "steps")


def test_what_the_result_has_is_offered_and_what_it_lacks_is_said() -> None:
    offered = "formulations, channels, spectra, geometry, signal, kinds, interference, baselines, engine"
    assert f"--show adds {offered}; or all." in words(REPORT)
    assert "There is no table of tokens in this result: --rows token has it." in words(REPORT, "tokens")
    assert not [part for part in ("--show adds", "There is no table") if part in words(REPORT, "all")]
    many = replace(REPORT, findings=tuple("ABCDEFG"))
    assert "baselines, findings, engine" in words(many)
    assert "• G" in words(many, "findings")


@pytest.mark.slow
def test_every_name_has_a_table_in_some_result() -> None:
    token = replace(rank_examples.token_report(), token_curve=(rank_examples.token_point(),))
    longer = replace(long_run(20), findings=tuple("ABCDEFG"))
    reports = [(report, len(words(report))) for report in (longer, token, *KINDS.values())]

    def has_table(name: str) -> bool:
        texts = ((words(report, name), least) for report, least in reports)
        return any(len(text) > least for text, least in texts if "There is no table" not in text)

    assert [name for name in TABLES["rank"] if not has_table(name)] == []


def test_other_rows_have_their_own_ceiling_or_none() -> None:
    token = replace(rank_examples.token_report(), token_curve=(rank_examples.token_point(),))
    assert table_lines(token)[0][:3] == ["41", "12.50", "512"]
    assert "at most" not in words(rank_examples.weight_rank_report())
    assert "of dL/dW of a group, mean over weights, advantage logged" in words(rank_examples.weight_rank_report())
    sums = replace(examples.rank_report(), rows="group", curve=())
    assert "Effective rank of a step's groups" in words(sums)
    assert [line[0] for line in table_lines(sums)] == ["1", "21", "41"]


def test_without_the_logged_advantage_the_first_one_stands_in() -> None:
    curve = tuple(point for point in REPORT.curve if point.advantage in ("dr_grpo", "sign"))
    assert "advantage dr_grpo" in words(replace(REPORT, curve=curve))


def test_a_report_without_a_rank_says_so() -> None:
    none = replace(REPORT, headline=(), curve=(), spectra=(), steps=(), findings=())
    assert words(none).startswith("No rank could be found.")


def test_a_rank_of_one_live_group_says_why_it_has_no_interval() -> None:
    curve = tuple(
        replace(p, num_dead=p.num_groups - 1, effective_rank=Estimate.exact(2.0)) if p.step == 11 else p
        for p in REPORT.curve
    )
    text = words(replace(REPORT, curve=curve))
    assert "No interval at step 11: one live group does not tell how they differ" in text
    assert "No interval" not in words(REPORT)


@pytest.mark.slow
@pytest.mark.parametrize("report", KINDS.values(), ids=KINDS)
def test_tables_fit_80_columns_and_a_number_has_an_interval_or_a_reason_for_none(report: RankReport) -> None:
    answer = printed(render_table(report))
    full = set(answer.splitlines())
    for text in (answer, printed(render_table(report, ("all",)))):
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "\x1b" not in text
    reasons = (FACTS, IN_THE_FILES, "no interval: ", "No interval at step")
    for name in set(TABLES["rank"]) - {"findings", "engine"}:
        shown = printed(render_table(report, (name,)))
        added = "\n".join(line for line in shown.splitlines() if name == "steps" or line not in full)
        alone = re.findall(r"(?<![\d.,[-])-?\d+\.\d{2,3}(?![\d\]])(?!,)(?! \[)", added)
        assert not alone or any(reason in " ".join(shown.split()) for reason in reasons), (name, alone)


def test_a_number_that_is_the_same_in_every_group_says_so() -> None:
    (full,) = (replace(baseline, relative_noise={"group_mean": Estimate.exact(0.77)}) for baseline in REPORT.baselines)
    text = words(replace(REPORT, baselines=(full,)), "baselines")
    assert "group_mean 0.77¹" in text
    assert "¹ no interval: too few groups have a gradient, or all have this very value" in text
