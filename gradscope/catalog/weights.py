"""Catalogue: what training did to the weights. Letters: W_t weights after t updates."""

from __future__ import annotations

from gradscope.catalog.entry import Metric, rank_metric

_SHARE = "[0, 1]"

WEIGHT_UPDATE_METRICS: tuple[Metric, ...] = (
    rank_metric(
        name="update_size",
        title="update size",
        formula="|W_t - W_0|_F / |W_0|_F",
        meaning="How far training moved a matrix, relative to its size.",
        range="[0, inf)",
        better="neither",
        moved_by="Learning rate, number of steps.",
        source="Definition.",
    ),
    rank_metric(
        name="top_energy",
        title="energy in one direction",
        formula="s_1^2 / sum(s^2)",
        meaning="Share of a rank-one part: of one matrix's update, or of all checkpoints' updates as rows. Read the "
        "latter against a random walk, whose largest component dominates too.",
        range="(0, 1]",
        better="neither",
        moved_by="Steps that point the same way.",
        source="Definition; rank-one dominance of RL updates is reported in arXiv 2510.00553.",
    ),
    rank_metric(
        name="linear_growth",
        title="energy on a straight line",
        formula="|sum t D_t|^2 / (sum t^2 sum |D_t|^2)",
        meaning="Share of the trajectory that is one direction at one speed, D_t = t V.",
        range=_SHARE,
        better="neither",
        moved_by="Learning-rate schedules; steps that point different ways.",
        source="Least squares; near-linear growth is reported in arXiv 2605.21468.",
    ),
    rank_metric(
        name="principal_overlap",
        title="energy in principal directions",
        formula="|U_k' D V_k|_F^2 / |D|_F^2, k singular vectors of W_0 with half of its energy; k^2 / (O I) at random",
        meaning="Whether an update keeps to the principal directions of the weights it started from.",
        range=_SHARE,
        better="neither",
        moved_by="Training that adds to what the weights already do most.",
        source="Definition; off-principal updates are reported in arXiv 2511.08567.",
    ),
    rank_metric(
        name="spectrum_drift",
        title="change in the singular values",
        formula="|s(W_t) - s(W_0)|_2 / |W_t - W_0|_F",
        meaning="How much of an update goes into the singular values; near 0 they are inherited and their directions "
        "turn. Read it against an unrelated update of its size.",
        range=_SHARE,
        better="neither",
        moved_by="Updates along the singular directions of the weights.",
        source="At most 1: Mirsky 1960; inherited singular values: arXiv 2607.19331, off-principal updates: arXiv "
        "2511.08567.",
    ),
    rank_metric(
        name="principal_angle",
        title="turn of the principal directions",
        formula="arccos sqrt((|U_0' U_t|_F^2 + |V_0' V_t|_F^2) / (2 k)) in degrees, k singular vectors with half of "
        "the energy of W_0",
        meaning="How far the leading directions of the weights turned, the mean over both sides. Read it against an "
        "unrelated update of its size.",
        range="[0, 90]",
        better="neither",
        moved_by="The size of the update; whether it acts on the principal directions.",
        source="Principal angles: Bjorck & Golub 1973; in RL updates: arXiv 2511.08567, 2607.19331.",
    ),
    rank_metric(
        name="adapter.a_norm",
        title="norm of A",
        formula="|A|_F",
        meaning="Of an adapter's first factor, which starts at random.",
        range="[0, inf)",
        better="neither",
        moved_by="Its initialization; training.",
        source="LoRA: Hu et al. 2021, arXiv 2106.09685.",
    ),
    rank_metric(
        name="adapter.b_norm",
        title="norm of B",
        formula="|B|_F",
        meaning="Of an adapter's second factor, which starts at zero: 0 says that it does nothing yet.",
        range="[0, inf)",
        better="neither",
        moved_by="Training; a learning rate of 0, or a module that gets no gradient, leaves it at 0.",
        source="LoRA starts with B at zero: Hu et al. 2021, arXiv 2106.09685.",
    ),
    rank_metric(
        name="adapter.product_size",
        title="size of the adapter",
        formula="|s B A|_F / |W|_F, W the weight that it is added to",
        meaning="How much an adapter changes its weight.",
        range="[0, inf)",
        better="neither",
        moved_by="Learning rate, number of steps, the adapter's scale.",
        source="LoRA's product beside its base.",
    ),
    rank_metric(
        name="adapter.alignment",
        title="factors that work together",
        formula="|B A|_F / (|B|_F |A|_F)",
        meaning="1 where both factors have one direction in common, about 1/sqrt(r) where they are unrelated, as at "
        "the start.",
        range=_SHARE,
        better="neither",
        moved_by="Training, which aligns B with the rows of A that matter.",
        source="Submultiplicativity of the Frobenius norm; beside a product of independent normal factors.",
    ),
    rank_metric(
        name="optimizers.cosines",
        title="cosine of two optimizers' steps",
        formula="cosine of the first steps of two of SGD, Adam and Muon from one gradient, all matrices together",
        meaning="How different the optimizers are on this gradient, each fresh: without moments, weight decay or clip. "
        "Adam's with SGD is |g|_1 / (sqrt(n) |g|_2), 0.80 for normal entries of one size.",
        range="[-1, 1]",
        better="neither",
        moved_by="How uneven the entries (Adam) and singular values (Muon) of the gradient are.",
        source="PyTorch's optimizers; SGD in place of Adam: arXiv 2602.07729, Muon: arXiv 2605.19282.",
    ),
    rank_metric(
        name="optimizers.bfloat16_moved",
        title="moved in bfloat16 by one step",
        formula="share of entries with bfloat16(W + d) != bfloat16(W), |d|_F that of Adam's step at the logged "
        "learning rate",
        meaning="How many parameters a step of one size moves under each optimizer, where weights are in bfloat16.",
        range=_SHARE,
        better="neither",
        moved_by="The learning rate; how few entries a step is in.",
        source="Definition; few parameters change under SGD: arXiv 2602.07729.",
    ),
    rank_metric(
        name="modules.energy_share",
        title="share of a kind of module",
        formula="sum over its weights of |dL/dW|_F^2, over that of all parameters",
        meaning="Where in the model the gradient is: output head, embedding, attention, MLP or the rest.",
        range=_SHARE,
        better="neither",
        moved_by="Off-policy reuse and unlikely tokens put more of it into the output head.",
        source="Definition; the output head's norm as a sign of divergence: arXiv 2605.19425.",
    ),
    rank_metric(
        name="modules.frac_parameters",
        title="share of the parameters",
        formula="(entries of its weights) / (trainable parameters)",
        meaning="What the share of a kind of module in the gradient would be if the gradient were spread evenly.",
        range=_SHARE,
        better="neither",
        moved_by="The model's shape, and which parameters are trained.",
        source="A ratio of counts.",
    ),
    rank_metric(
        name="bfloat16_changed",
        title="changed in bfloat16",
        formula="share of entries with bfloat16(W_t) != bfloat16(W_0)",
        meaning="How much of an update is left where weights are stored or served in bfloat16.",
        range=_SHARE,
        better="neither",
        moved_by="The size of the update against that of the weights (bfloat16 keeps 8 bits).",
        source="Definition.",
    ),
)
