"""Rank reports made by hand for each kind of row: formulations, sparsity, changes of weights, gradients beside them."""

from dataclasses import replace

from gradscope.estimate import Estimate
from gradscope.results.rank import (
    AdapterState,
    BaselineNoise,
    FormulationUpdate,
    GradientAndUpdate,
    GroupShare,
    HeldoutInfluence,
    HeldoutTransfer,
    Interference,
    KindUpdate,
    ModuleShare,
    OptimizerStep,
    PromptInfluence,
    RankReport,
    TokenRankPoint,
    UpdateTrajectory,
    WeightRankPoint,
    WeightUpdate,
)
from gradscope.results.tokens import (
    CorrectionEffect,
    EntropyChange,
    GradientSparsity,
    KlToken,
    LogprobChange,
    TokenKind,
    TokenKl,
    TurnShare,
)
from tests.render import examples

THIRD = Estimate.exact(0.31)
NAMES = ("logged", "grpo", "sign", examples.HOSTILE)


def update(name: str, step: int = 41) -> FormulationUpdate:
    return examples.filled(
        FormulationUpdate,
        THIRD,
        step=step,
        advantage=name,
        signal_to_noise=Estimate(value=0.62, low=0.1, high=1.2, num_units=16),
        critical_batch_size=Estimate(value=25.8, low=13.3, high=160.0, num_units=16),
        group_cosine=Estimate(value=0.04, low=-0.01, high=0.09, num_units=16),
        noise_within=Estimate(value=0.83, low=0.7, high=0.96, num_units=16),
        alignment={
            "pass@1": Estimate(value=0.97, low=0.9, high=1.0, num_units=16),
            "pass@8": Estimate.undefined_because("its mean over groups is not above its own noise"),
        },
        cosines={other: Estimate.exact(-0.25 if other == "sign" else 0.87) for other in NAMES if other != name},
    )


def noise() -> BaselineNoise:
    ratio = Estimate(value=0.58, low=0.31, high=0.86, num_units=96)
    names = ("zero", "group_mean", "optimal", "optimal_leave_one_out", "shrinkage")
    unknown = Estimate.undefined_because("rewards or norms do not vary within any group")
    numbers = {"optimal_baseline": Estimate.exact(0.2), "relative_noise": dict.fromkeys(names, ratio)}
    return examples.filled(BaselineNoise, unknown, step=None, group_id=None, num_groups=96, pass_rate=0.7, **numbers)


def formulation_report() -> RankReport:
    """Updates, shares and baselines beside the ranks."""
    shares = tuple(
        GroupShare(
            step=41,
            group_id=f"{examples.HOSTILE}{group}",
            pass_rate=None if group == 0 else 0.5,
            projection_share=Estimate.exact(share),
            rollouts=(share + 0.1, -0.1, 0.0),
        )
        for group, share in enumerate((0.7, 0.4, -0.1, 0.0))
    )
    return replace(
        examples.rank_report(),
        formulations=tuple(update(name, step) for step in (1, 41) for name in NAMES),
        kinds=tuple(kind_update(name, kind) for name in NAMES for kind in ("all_fail", "mixed")),
        interference=tuple(interference(name, step) for step in (1, 41) for name in NAMES),
        influences=tuple(influence(number) for number in range(13)),
        shares=shares,
        baselines=(noise(),),
    )


def interference(name: str, step: int) -> Interference:
    return Interference(
        step=step,
        advantage=name,
        frac_hurt=Estimate(value=0.625, low=0.5, high=0.75, num_units=16),
        cosine=Estimate(value=-0.08, low=-0.15, high=-0.01, num_units=16),
        transfer=Estimate(value=-0.4, low=-0.75, high=-0.05, num_units=16)
        if step > 1
        else Estimate.undefined_because("it hangs on a single group of this step"),
    )


def heldout_report() -> RankReport:
    """The same where held-out samples were given, whose second step has none of them left."""
    return replace(
        formulation_report(),
        heldout=tuple(heldout(name, step) for step in (1, 41) for name in NAMES),
        heldout_influences=tuple(influence(number, HeldoutInfluence) for number in range(13)),
        heldout_notes=("Held-out answers: 9 correct samples.", "Step 21: all 3 held-out prompts are trained on."),
        missing_parts={"heldout": "step 21: all 3 held-out prompts are trained on"},
    )


def heldout(name: str, step: int) -> HeldoutTransfer:
    return HeldoutTransfer(
        step=step,
        advantage=name,
        num_groups=7,
        num_heldout=31,
        frac_hurt=Estimate(value=0.375, low=0.25, high=0.5, num_units=38),
        cosine=Estimate(value=0.07, low=0.01, high=0.13, num_units=38),
        transfer=Estimate(value=0.45, low=0.15, high=0.75, num_units=38)
        if step > 1
        else Estimate.undefined_because("it hangs on a single group of this step"),
    )


def influence(number: int, kind: type[PromptInfluence | HeldoutInfluence] = PromptInfluence):
    """Of thirteen groups in the order of their influence, the first of which has none."""
    pull = number / 10 - 0.65
    return kind(
        step=41,
        advantage=NAMES[0],
        group_id=f"{examples.HOSTILE}{number}",
        pass_rate=None if number == 12 else 0.5,
        influence=Estimate(value=pull, low=pull - 0.1, high=pull + 0.1, num_units=31)
        if number
        else Estimate.undefined_because("no other group has a correct answer"),
    )


def kind_update(name: str, kind: str) -> KindUpdate:
    return KindUpdate(
        step=41,
        advantage=name,
        kind=kind,
        num_groups=3,
        norm=Estimate.exact(0.25 if kind == "mixed" or name == "sign" else 0.0),
        cosine=Estimate.exact(0.9),
        alignment={
            "pass@1": Estimate(value=0.97, low=0.9, high=1.0, num_units=16),
            "pass@8": Estimate.undefined_because("its mean over groups is not above its own noise"),
        },
    )


def sparsity(step: int, tensor: str | None = None) -> GradientSparsity:
    return GradientSparsity(
        step=step,
        parts="tokens" if tensor is None else "entries",
        tensor=tensor,
        num_parts=12_345,
        frac_seen=0.48 if tensor is None else 1.0,
        zero=Estimate.exact(0.25),
        small=Estimate.exact(0.375),
        hoyer=Estimate.exact(0.5) if step < 41 else Estimate.undefined_because("every row is zero"),
        gini=Estimate.exact(0.6 + step / 1000),
    )


def token_report() -> RankReport:
    bare = replace(examples.rank_report(), rows="token", curve=(), spectra=())
    return replace(bare, sparsity=tuple(sparsity(step) for step in (1, 21, 41)))


def token_kind(**kind: object) -> TokenKind:
    alone = {"sign": None, "probability": None, "entropy": None, **kind}
    return TokenKind(
        step=41,
        num_tokens=120,
        frac_tokens=Estimate(value=0.19, low=0.1, high=0.28, num_units=16),
        energy_share=Estimate(value=0.61, low=0.4, high=0.82, num_units=16),
        gradient_share=Estimate(value=-0.12, low=-0.31, high=0.07, num_units=16),
        cosine=Estimate.exact(-0.25),
        **alone,
    )


def correction(name: str, step: int = 41) -> CorrectionEffect:
    return CorrectionEffect(
        step=step,
        correction=name,
        units="sequences" if name.startswith("sequence") else "tokens",
        kept=Estimate(value=0.93, low=0.9, high=0.96, num_units=16),
        ess=Estimate(value=0.41, low=0.3, high=0.52, num_units=16),
        chi2=Estimate(value=1.25, low=-0.2, high=2.7, num_units=16),
        norm_ratio=Estimate(value=1.31, low=1.1, high=1.52, num_units=16),
        cosine=Estimate(value=0.8123, low=0.7, high=0.92, num_units=16),
        unbiased_cosine=Estimate.undefined_because("a ratio of this step is beyond 1e30"),
    )


def entropy_change(step: int) -> EntropyChange:
    return EntropyChange(
        step=step,
        entropy=Estimate(value=0.104, low=0.08, high=0.13, num_units=16),
        rate=Estimate.exact(-0.04913),
        cosine=Estimate(value=-0.36, low=-0.66, high=-0.06, num_units=16),
        covariance=Estimate(value=0.0426, low=0.02, high=0.0652, num_units=16),
        logged=0.104,
        logged_next=0.0917,
        last=50,
        measured=Estimate(value=-0.0121, low=-0.0203, high=-0.0039, num_units=16),
    )


def turn(number: int) -> TurnShare:
    return TurnShare(
        step=41,
        turn=number,
        and_later=number == 8,
        num_rollouts=64,
        frac_tokens=Estimate.exact(0.25),
        gradient_share=Estimate(value=0.4, low=0.1, high=0.7, num_units=16),
        cosine=Estimate(value=0.8, low=0.5, high=1.0, num_units=16),
    )


def logprob_change(step: int) -> LogprobChange:
    return LogprobChange(
        step=step,
        first=step - 1,
        last=step + 9,
        num_tokens=512,
        positive=Estimate(value=0.012, low=-0.001, high=0.025, num_units=16),
        negative=Estimate(value=-0.13, low=-0.21, high=-0.05, num_units=16),
        neither=Estimate.exact(-0.043),
        matched=Estimate(value=0.111, low=0.031, high=0.191, num_units=16) if step > 1 else Estimate.exact(0.1),
        difference=Estimate(value=0.142, low=0.061, high=0.223, num_units=16) if step > 1 else Estimate.exact(0.142),
    )


def kl(step: int) -> TokenKl:
    token = KlToken(
        group_id=f"{step}:{examples.HOSTILE}",
        sample=3,
        position=11,
        text=examples.HOSTILE,
        logprob=-12.25,
        reference=-0.5,
        k1=-11.75,
        k3=126_742.0,
    )
    distance = Estimate(value=0.0123, low=0.001, high=0.0236, num_units=16)
    return TokenKl(step=step, k1=distance, k3=distance, top_share=Estimate.exact(0.83), top=(token, token))


def token_parts_report() -> RankReport:
    """A step's gradient by its tokens, with all tables that there are."""
    bounds = ((0.0, 0.25), (0.25, 0.75), (0.75, 1.0))
    cells = tuple(
        token_kind(sign=sign, probability=pair, entropy=entropy)
        for sign in ("positive", "negative")
        for pair in bounds
        for entropy in ("top_fifth", "rest")
    )
    names = ("none", "token_ratio", "tis", "icepop", "token_mask", "sequence_truncate", "sequence_mask")
    return replace(
        token_report(),
        token_kinds=(
            token_kind(sign="positive"),
            token_kind(probability=bounds[0]),
            token_kind(entropy="rest"),
            *cells,
        ),
        corrections=tuple(correction(name, step) for step in (1, 41) for name in (*names, "sequence_ratio", "trained")),
        entropy_changes=tuple(entropy_change(step) for step in range(1, 42)),
        token_kl=tuple(kl(step) for step in (1, 41)),
        turns=(turn(1), turn(2), turn(8)),
        logprob_changes=(logprob_change(1), logprob_change(41)),
    )


def sparse_weight_report() -> RankReport:
    report = examples.weight_report()
    names = [str(spectrum.label.tensor) for spectrum in report.spectra]
    return replace(report, sparsity=tuple(sparsity(step, name) for step in (1, 41) for name in names))


def weight_update() -> WeightUpdate:
    return examples.filled(
        WeightUpdate,
        Estimate.exact(0.123),
        tensor="model.layers.10.self_attn.q_proj.weight",
        first=0,
        last=1000,
        shape=(64, 64),
        singular_values=(2.0, 1.0),
        effective_rank=Estimate.exact(31.5),
        gaussian=Estimate.exact(51.5),
        stable_rank=Estimate.exact(3.1),
        principal_angle=Estimate.exact(4.06),
        principal_angle_null=Estimate.exact(2.94),
        bfloat16_changed=Estimate.undefined_because(
            "the base model of the adapter is not on this disk; name it with --model"
        ),
    )


def trajectory() -> UpdateTrajectory:
    return UpdateTrajectory(
        tensor=None,
        num_updates=(500, 1000),
        effective_rank=Estimate.exact(1.4),
        top_energy=Estimate.exact(0.94),
        linear_growth=Estimate.exact(0.92),
        walk_effective_rank=Estimate.exact(1.8),
        walk_top_energy=Estimate.exact(0.82),
        walk_linear_growth=Estimate.exact(0.81),
    )


def update_report() -> RankReport:
    """Changes of one weight between checkpoints, and the trajectory of all."""
    return replace(
        examples.weight_report(),
        rows="update",
        spectra=(),
        steps=(),
        updates=(weight_update(), replace(weight_update(), first=500)),
        trajectories=(trajectory(),),
        adapters=(adapter_state(0), adapter_state(1000)),
    )


def adapter_state(num_updates: int) -> AdapterState:
    return AdapterState(
        tensor="model.layers.10.self_attn.q_proj.weight",
        num_updates=num_updates,
        rank=8,
        a_norm=Estimate.exact(1.644),
        b_norm=Estimate.exact(0.04345),
        product_size=Estimate.undefined_because("the base model of the adapter is not on this disk"),
        effective_rank=Estimate.exact(6.44),
        unrelated_rank=Estimate.exact(7.75),
        alignment=Estimate.exact(0.366),
        unrelated_alignment=Estimate.exact(0.35),
    )


def optimizer_steps(step: int) -> tuple[OptimizerStep, ...]:
    """Of all matrices together and of one."""
    cosines = {
        "sgd": {"adam": 0.48, "muon": 0.44},
        "adam": {"sgd": 0.48, "muon": 0.4},
        "muon": {"sgd": 0.44, "adam": 0.4},
    }
    return tuple(
        OptimizerStep(
            step=step,
            tensor=tensor,
            optimizer=name,
            effective_rank=Estimate.exact(11.91),
            cosines={other: Estimate.exact(value) for other, value in cosines[name].items()},
            bfloat16_moved=Estimate.exact({"sgd": 0.54, "adam": 0.86, "muon": 0.636}[name]),
        )
        for tensor in (None, "lm_head.weight")
        for name in cosines
    )


def module_shares(step: int) -> tuple[ModuleShare, ...]:
    kinds = ("output head", "attention", "mlp", "other") if step < 41 else ("output head", "embedding", "attention")
    quarter = Estimate.exact(0.25)
    return tuple(
        ModuleShare(step=step, module=kind, norm=Estimate.exact(0.5), energy_share=quarter, frac_parameters=quarter)
        for kind in kinds
    )


def gradient_and_update() -> GradientAndUpdate:
    return GradientAndUpdate(
        step=41,
        tensor="model.layers.0.self_attn.q_proj.weight",
        first=40,
        last=60,
        gradient_rank=Estimate.exact(8.79),
        gradient_top_energy=Estimate.exact(0.463),
        update_rank=Estimate.exact(24.98),
        update_top_energy=Estimate.exact(0.219),
        gaussian=Estimate.exact(51.53),
    )


def gradient_update_report() -> RankReport:
    """The gradients of many weights, each beside the change that followed."""
    pair = gradient_and_update()
    return replace(
        examples.weight_report(),
        gradient_updates=(replace(pair, step=1), *(replace(pair, tensor=f"{n}.weight") for n in range(40))),
        optimizers=(*optimizer_steps(1), *optimizer_steps(41)),
        modules=(*module_shares(1), *module_shares(41)),
    )


def weight_rank_report() -> RankReport:
    """dL/dW of one group under two formulations that are the same and one that is not, and a dead step."""
    return replace(
        examples.rank_report(),
        rows="weight",
        curve=(),
        weight_curve=tuple(
            weight_point(name, size, tensor)
            for name in NAMES
            for size in (2, 8, 32)
            for tensor in (None, f"model.layers.0.{examples.HOSTILE}.weight", *(f"layers.{i}.w" for i in range(30)))
        ),
    )


def weight_point(name: str, size: int, tensor: str | None) -> WeightRankPoint:
    rank = Estimate(value=2.0 + (name == "sign") + size / 100, low=1.5, high=4.0, num_units=12)
    if size == 32 and name == "sign":
        rank = Estimate.undefined_because("dead")
    nulls = examples.rank_report().curve[0].nulls
    return examples.filled(
        WeightRankPoint,
        rank,
        step=41,
        advantage=name,
        group_size=size,
        tensor=tensor,
        shape=None if tensor is None else (160, 64),
        num_groups=16,
        num_dead=4 if rank.is_defined else 16,
        two_direction_energy=Estimate.exact(0.9),
        nulls=nulls if rank.is_defined else {},
    )


def token_point() -> TokenRankPoint:
    """Token rows of a group of 8 at step 41."""
    return examples.filled(
        TokenRankPoint,
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
