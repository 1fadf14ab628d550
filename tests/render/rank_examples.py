"""Rank reports of each kind of row: those of a golden document that has every part, at other steps and of more rows."""

from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.results import rank as results
from tests.render import examples
from tests.results.reading import read_golden

PARTS = read_golden(results.RankReport, "rank_parts")
"""Formulations, held-out prompts, parts of tokens and changes of weights, at steps 1 and 41."""
NAMES = ("logged", "grpo", "sign", examples.HOSTILE)


def with_parts(report: results.RankReport, *names: str) -> results.RankReport:
    return replace(report, **{name: getattr(PARTS, name) for name in names})


def formulation_report() -> results.RankReport:
    """Updates, shares and baselines next to the ranks."""
    names = ("formulations", "kinds", "interference", "influences", "shares", "baselines")
    return with_parts(examples.rank_report(), *names)


def heldout_report() -> results.RankReport:
    """The same with held-out samples, of which the second step has none left."""
    return with_parts(formulation_report(), "heldout", "heldout_influences", "heldout_notes", "missing_parts")


def token_report() -> results.RankReport:
    return with_parts(replace(examples.rank_report(), rows="token", curve=(), spectra=()), "sparsity")


def token_parts_report() -> results.RankReport:
    """A step's gradient by its tokens, with all tables of them."""
    names = ("token_kinds", "corrections", "entropy_changes", "token_kl", "turns", "logprob_changes")
    return with_parts(token_report(), *names)


def update_report() -> results.RankReport:
    """Changes of one weight between checkpoints, and the trajectory of all."""
    report = replace(examples.weight_report(), rows="update", spectra=(), steps=())
    return with_parts(report, "updates", "trajectories", "adapters")


def gradient_update_report() -> results.RankReport:
    """The gradients of many weights, each next to the change that followed."""
    report = with_parts(examples.weight_report(), "optimizers", "modules")
    first, pair = PARTS.gradient_updates
    return replace(report, gradient_updates=(first, *(replace(pair, tensor=f"{n}.weight") for n in range(40))))


def sparse_weight_report() -> results.RankReport:
    report = examples.weight_report()
    names = [str(spectrum.label.tensor) for spectrum in report.spectra]
    return replace(report, sparsity=tuple(sparsity(step, name) for step in (1, 41) for name in names))


def sparsity(step: int, tensor: str) -> results.GradientSparsity:
    (of_tokens,) = (row for row in PARTS.sparsity if row.step == step)
    return replace(of_tokens, parts="entries", tensor=tensor, frac_seen=1.0)


def token_kind(**kind: object) -> results.TokenKind:
    return replace(PARTS.token_kinds[0], **{"sign": None, "probability": None, "entropy": None, **kind})


def correction(name: str) -> results.CorrectionEffect:
    return next(row for row in PARTS.corrections if (row.correction, row.step) == (name, 41))


def entropy_change(step: int) -> results.EntropyChange:
    return replace(PARTS.entropy_changes[0], step=step)


def turn(number: int) -> results.TurnShare:
    return next(row for row in PARTS.turns if row.turn == number)


def logprob_change(step: int) -> results.LogprobChange:
    """The first step has no interval."""
    return replace(PARTS.logprob_changes[step > 1], step=step, first=step - 1, last=step + 9)


def kl(step: int) -> results.TokenKl:
    return replace(PARTS.token_kl[0], step=step)


def trajectory() -> results.UpdateTrajectory:
    return PARTS.trajectories[0]


def adapter_state(num_updates: int) -> results.AdapterState:
    return replace(PARTS.adapters[0], num_updates=num_updates)


def optimizer_steps(step: int) -> tuple[results.OptimizerStep, ...]:
    """Of all matrices together and of one."""
    return tuple(row for row in PARTS.optimizers if row.step == step)


def gradient_and_update() -> results.GradientAndUpdate:
    return PARTS.gradient_updates[1]


def weight_rank_report() -> results.RankReport:
    """dL/dW of one group under two formulations that are the same and one that is not, and a dead step."""
    tensors = (None, f"model.layers.0.{examples.HOSTILE}.weight", *(f"layers.{i}.w" for i in range(30)))
    points = (weight_point(name, size, tensor) for name in NAMES for size in (2, 8, 32) for tensor in tensors)
    return replace(examples.rank_report(), rows="weight", curve=(), weight_curve=tuple(points))


def weight_point(name: str, size: int, tensor: str | None) -> results.WeightRankPoint:
    rank = Estimate(value=2.0 + (name == "sign") + size / 100, low=1.5, high=4.0, num_units=12)
    if size == 32 and name == "sign":
        rank = Estimate.undefined_because("dead")
    return examples.filled(
        results.WeightRankPoint,
        rank,
        step=41,
        advantage=name,
        group_size=size,
        tensor=tensor,
        shape=None if tensor is None else (160, 64),
        num_groups=16,
        num_dead=4 if rank.is_defined else 16,
        two_direction_energy=Estimate.exact(0.9),
        nulls=examples.rank_report().curve[0].nulls if rank.is_defined else {},
    )


def token_point() -> results.TokenRankPoint:
    """Token rows of a group of 8 at step 41."""
    return examples.filled(
        results.TokenRankPoint,
        Estimate.exact(12.5),
        step=41,
        advantage="logged",
        group_size=8,
        method="sampled",
        num_groups=16,
        num_dead=4,
        num_rows=Estimate.exact(512),
        frac_seen=0.5,
        two_direction_energy=Estimate.exact(0.9),
        nulls=examples.rank_report().curve[0].nulls,
    )
