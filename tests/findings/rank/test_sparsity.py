from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.findings.rank.sparsity import sparsity_findings
from gradscope.results.ranks.tokens import GradientSparsity


def sparsity(step: int, gini: float, tensor: str | None = None, small: Estimate | None = None) -> GradientSparsity:
    return GradientSparsity(
        step=step,
        parts="tokens" if tensor is None else "entries",
        tensor=tensor,
        num_parts=100,
        frac_seen=1.0,
        zero=Estimate.exact(0.25),
        small=small or Estimate.exact(0.5),
        hoyer=Estimate.exact(0.5),
        gini=Estimate.exact(gini),
    )


def test_tokens_of_the_last_step_are_counted() -> None:
    assert sparsity_findings([sparsity(1, 0.1), sparsity(9, 0.7)]) == (
        "At step 9 50% of the tokens have a row below 1 % of the largest, 25% exactly zero (Gini 0.70).",
    )


def test_the_most_and_the_least_even_weight_are_named() -> None:
    weights = [sparsity(9, 0.7, "mlp"), sparsity(9, 0.2, "attn", Estimate.exact(0.1)), sparsity(1, 0.9, "lm_head")]
    assert sparsity_findings([weights[2], *weights[:2]]) == (
        "At step 9 the entries of the weights' gradients are most even in attn (Gini 0.20, 10% below 1 % of the "
        "largest) and least in mlp (0.70, 50%).",
    )


def test_a_last_step_without_a_gradient_says_nothing() -> None:
    assert (
        sparsity_findings([sparsity(1, 0.1), sparsity(9, 0.7, small=Estimate.undefined_because("every row is zero"))])
        == ()
    )
    assert sparsity_findings([]) == ()
