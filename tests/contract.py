"""The fields that scripts rely on: every path must be there in the command's document. `[]` stands for each row."""

from collections.abc import Iterator
from typing import Any

ENVELOPE = ("schema", "schema_version", "gradscope", "created_at", "inputs", "definitions", "result")
_SHARES = (
    "frac_reward_zero_std",
    "frac_all_pass",
    "frac_all_fail",
    "frac_tied",
    "pass_rate",
    "iid_prediction",
    "jensen_gap",
)
_RANKS = ("effective_rank", "stable_rank", "participation_ratio", "numerical_rank", "energy_rank_90", "energy_rank_99")
_ESTIMATE = ("value", "low", "high", "num_units", "undefined")

FIELDS: dict[str, tuple[str, ...]] = {
    "degeneracy": (
        *("num_groups", "num_rollouts", "group_size", "source"),
        *(f"{share}.{part}" for share in _SHARES for part in _ESTIMATE),
        *(f"by_group_size[].{name}" for name in ("group_size", "degeneracy", "iid_prediction", "jensen_gap", "method")),
        *(f"gap_decomposition.{name}" for name in ("between_prompts", "over_time")),
        *(f"by_step[].{name}" for name in ("step", "num_groups", *_SHARES)),
        *("quarantined.num_rows", "quarantined.reasons"),
        *(f"quarantined.reasons[].{name}" for name in ("reason", "num_rows", "first")),
    ),
    "passk": (
        *(f"tables[].{name}" for name in ("name", "num_prompts", "num_samples")),
        *(f"tables[].rows[].{name}" for name in ("k", "pass_at_k", "pass_hat_k")),
        *(f"comparison.rows[].{name}" for name in ("k", "difference", "first_wins", "second_wins", "ties")),
        "comparison.crossover_k",
        *(f"comparison.solved.{name}" for name in ("both", "first_only", "second_only", "neither")),
    ),
    "rank": (
        *(f"spectra[].{name}" for name in ("step", "group_id", "rows", "advantage", "group_size", "shape", "centered")),
        *(f"spectra[].{name}" for name in ("singular_values", "noise_floor", *_RANKS)),
        "gram",
        *(f"steps[].{name}" for name in ("step", "grad_norm", "sparsity", "cancellation", "class_subspace_energy")),
    ),
    "replay": (
        *(f"steps[].{name}" for name in ("step", "weights", "verdict", "cause")),
        *(f"steps[].{name}" for name in ("logged", "recomputed", "relative_error")),
        *("steps[].logged.grad_norm", "verdict"),
    ),
    "compare": (
        *(f"cells[].{name}" for name in ("advantage", "seeds", "metrics")),
        *(f"pairs[].{name}" for name in ("first", "second", "metric", "difference", "p_value", "num_pairs", "test")),
    ),
    "claims": (
        *(f"claims[].{name}" for name in ("name", "source", "claim", "metric", "verdict", "why", "settle")),
        *(f"claims[].{number}.{part}" for number in ("estimate", "null") for part in _ESTIMATE),
    ),
    "spike": (
        *("step", "grad_norm"),
        *(f"metrics[].{name}" for name in ("name", "value", "typical", "deviation", "by_chance", "is_unusual")),
        *(f"rollouts[].{name}" for name in ("group_id", "sample", "reward", "projection_share", "norm_without")),
        *(f"removals[].{name}" for name in ("num_removed", "group_id", "sample", "grad_norm")),
        *(f"tokens[].{name}" for name in ("group_id", "sample", "position", "text", "norm")),
        *(f"tensors[].{name}" for name in ("tensor", "norm", "tensor_share", "frac_parameters")),
    ),
    "report": (
        *(f"sections[].{name}" for name in ("name", "question", "findings", "meaning", "next_step", "missing")),
        *("name", "recomputed"),
    ),
    "check": (
        *(f"verdicts[].{name}" for name in ("metric", "op", "limit", "outcome", "estimate", "meaning", "next_step")),
        "outcome",
    ),
}


def missing_fields(command: str, document: dict[str, Any]) -> list[str]:
    absent = [name for name in ENVELOPE if name not in document]
    return absent + [path for path in FIELDS[command] if not all(_has(document["result"], path))]


def _has(value: Any, path: str) -> Iterator[bool]:
    head, _, rest = path.partition(".")
    name = head.removesuffix("[]")
    if not isinstance(value, dict) or name not in value:
        yield False
    elif not rest:
        yield True
    elif head.endswith("[]"):
        for row in value[name]:
            yield from _has(row, rest)
    else:
        yield from _has(value[name], rest)
