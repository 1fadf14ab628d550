"""Catalogue: sparsity below the rollout. Letters: x_t norm of a token's row, or x_ij size of an entry of dL/dW."""

from __future__ import annotations

from gradscope.metrics.catalog_entry import Metric

_TOKENS = "the norm of each token's row, |v_t| |grad log pi(token t)|"
_ENTRIES = "the absolute value of each entry of a weight's gradient dL/dW"
_UNEVEN = "Tokens that the policy is sure of; rows of embeddings that no token of the step looks up."
_DEFINITIONS = (
    ("zero", "exactly zero", "(number of x = 0) / n", "Share of parts that give exactly nothing.", "Definition."),
    (
        "small",
        "below 1 %",
        "(number of x < 0.01 max x) / n",
        "Share of parts below 1 % of the largest; zeros among them.",
        "Definition.",
    ),
    (
        "hoyer",
        "Hoyer",
        "(sqrt(n) - sum(x) / sqrt(sum(x^2))) / (sqrt(n) - 1)",
        "How unequal the parts are: 0 for equal sizes, 1 where one part is everything.",
        "Hoyer 2004, Non-negative matrix factorization with sparseness constraints, JMLR 5.",
    ),
    (
        "gini",
        "Gini",
        "sum over i, j of |x_i - x_j| / (2 n sum(x))",
        "How unequal the parts are: 0 for equal sizes, (n-1)/n where one part is everything.",
        "Gini 1912; compared with other measures in Hurley & Rickard 2009.",
    ),
)

SPARSITY_METRICS: tuple[Metric, ...] = tuple(
    Metric(
        name=f"{family}.{name}",
        title=f"{title} of {word}",
        formula=f"{formula}, x {of}",
        meaning=meaning,
        range="[0, 1]",
        better="neither",
        moved_by=_UNEVEN,
        source=source,
        command="rank",
    )
    for family, word, of in (("token_sparsity", "tokens", _TOKENS), ("weight_sparsity", "entries", _ENTRIES))
    for name, title, formula, meaning, source in _DEFINITIONS
)
