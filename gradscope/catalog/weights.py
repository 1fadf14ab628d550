"""Catalogue: what training did to the weights. Letters: W_t weights after t updates."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric, rank_metric

_size_metric = partial(rank_metric, range="[0, inf)")
_cosine_metric = partial(rank_metric, range="[-1, 1]")

WEIGHT_UPDATE_METRICS: dict[str, Metric] = {
    "update_size": _size_metric(
        title="update size",
        formula="|W_t - W_0|_F / |W_0|_F",
        meaning="How far training moved a matrix, relative to its size.",
        moved_by="Learning rate, number of steps.",
    ),
    "top_energy": rank_metric(
        title="energy in one direction",
        formula="s_1^2 / sum(s^2)",
        meaning="Share of a rank-one part: of one matrix's update, or of all checkpoints' updates as rows. Read the "
        "latter against a random walk, whose largest component dominates too.",
        range="(0, 1]",
        moved_by="Steps that point the same way.",
        source="Definition; rank-one dominance of RL updates is reported in arXiv 2510.00553.",
    ),
    "linear_growth": rank_metric(
        title="energy on a straight line",
        formula="|sum t D_t|^2 / (sum t^2 sum |D_t|^2)",
        meaning="Share of the trajectory that is one direction at one speed, D_t = t V.",
        moved_by="Learning-rate schedules; steps that point different ways.",
        source="Least squares; near-linear growth is reported in arXiv 2605.21468.",
    ),
    "principal_overlap": rank_metric(
        title="energy in principal directions",
        formula="|U_k' D V_k|_F^2 / |D|_F^2, k singular vectors of W_0 with half of its energy; k^2 / (O I) at random",
        meaning="Whether an update keeps to the principal directions of the weights it started from.",
        moved_by="Training that adds to what the weights already do most.",
        source="Definition; off-principal updates are reported in arXiv 2511.08567.",
    ),
    "spectrum_drift": rank_metric(
        title="change in the singular values",
        formula="|s(W_t) - s(W_0)|_2 / |W_t - W_0|_F",
        meaning="How much of an update goes into the singular values; near 0 they are inherited and their directions "
        "turn. Read it against an unrelated update of its size.",
        moved_by="Updates along the singular directions of the weights.",
        source="At most 1: Mirsky 1960; inherited singular values: arXiv 2607.19331, off-principal updates: arXiv "
        "2511.08567.",
    ),
    "principal_angle": rank_metric(
        title="turn of the principal directions",
        formula="arccos sqrt((|U_0' U_t|_F^2 + |V_0' V_t|_F^2) / (2 k)) in degrees, k singular vectors with half of "
        "the energy of W_0",
        meaning="How far the leading directions of the weights turned, the mean over both sides. Read it against an "
        "unrelated update of its size.",
        range="[0, 90]",
        moved_by="The size of the update; whether it acts on the principal directions.",
        source="Principal angles: Bjorck & Golub 1973; in RL updates: arXiv 2511.08567, 2607.19331.",
    ),
    "adapter.a_norm": _size_metric(
        title="norm of A",
        formula="|A|_F",
        meaning="Of an adapter's first factor, which starts at random.",
        moved_by="Its initialization; training.",
        source="LoRA: Hu et al. 2021, arXiv 2106.09685.",
    ),
    "adapter.b_norm": _size_metric(
        title="norm of B",
        formula="|B|_F",
        meaning="Of an adapter's second factor, which starts at zero: 0 says that it does nothing yet.",
        moved_by="Training; a learning rate of 0, or a module that gets no gradient, leaves it at 0.",
        source="LoRA starts with B at zero: Hu et al. 2021, arXiv 2106.09685.",
    ),
    "adapter.product_size": _size_metric(
        title="size of the adapter",
        formula="|s B A|_F / |W|_F, W the weight that it is added to",
        meaning="How much an adapter changes its weight.",
        moved_by="Learning rate, number of steps, the adapter's scale.",
        source="LoRA's product compared with its base.",
    ),
    "adapter.alignment": rank_metric(
        title="factors that work together",
        formula="|B A|_F / (|B|_F |A|_F)",
        meaning="1 where both factors have one direction in common, about 1/sqrt(r) where they are unrelated, as at "
        "the start.",
        moved_by="Training, which aligns B with the rows of A that matter.",
        source="Submultiplicativity of the Frobenius norm; compared with a product of independent normal factors.",
    ),
    "optimizers.cosines": _cosine_metric(
        title="cosine of two optimizers' steps",
        formula="cosine of the first steps of two of SGD, Adam and Muon from one gradient, all matrices together",
        meaning="How different the optimizers are on this gradient, each fresh: without moments, weight decay or clip. "
        "Adam's with SGD is |g|_1 / (sqrt(n) |g|_2), 0.80 for normal entries of one size.",
        moved_by="How uneven the entries (Adam) and singular values (Muon) of the gradient are.",
        source="PyTorch's optimizers; SGD in place of Adam: arXiv 2602.07729, Muon: arXiv 2605.19282.",
    ),
    "optimizers.bfloat16_moved": rank_metric(
        title="moved in bfloat16 by one step",
        formula="share of entries with bfloat16(W + d) != bfloat16(W), |d|_F that of Adam's step at the logged "
        "learning rate",
        meaning="How many parameters a step of one size moves under each optimizer, where weights are in bfloat16.",
        moved_by="The learning rate; how few entries a step is in.",
        source="Definition; few parameters change under SGD: arXiv 2602.07729.",
    ),
    "modules.energy_share": rank_metric(
        title="share of a kind of module",
        formula="sum over its weights of |dL/dW|_F^2, over that of all parameters",
        meaning="Where in the model the gradient is: output head, embedding, attention, MLP or the rest.",
        moved_by="Off-policy reuse and unlikely tokens put more of it into the output head.",
        source="Definition; the output head's norm as a sign of divergence: arXiv 2605.19425.",
    ),
    "modules.frac_parameters": rank_metric(
        title="share of the parameters",
        formula="(entries of its weights) / (trainable parameters)",
        meaning="What the share of a kind of module in the gradient would be if the gradient were spread evenly.",
        moved_by="The model's shape, and which parameters are trained.",
        source="A ratio of counts.",
    ),
    "bfloat16_changed": rank_metric(
        title="changed in bfloat16",
        formula="share of entries with bfloat16(W_t) != bfloat16(W_0)",
        meaning="How much of an update is left where weights are stored or served in bfloat16.",
        moved_by="The size of the update against that of the weights (bfloat16 keeps 8 bits).",
    ),
}


UPDATE_METRICS: dict[str, Metric] = {
    "update_norm": _size_metric(
        title="update norm",
        formula="|sum of A_i s_i| = sqrt(A' K A)",
        meaning="Norm of the update that a formulation makes of the step's rollouts, before clipping and without KL.",
        moved_by="The formulation's scale; how far the score vectors agree.",
    ),
    "between_groups": rank_metric(
        title="between groups",
        formula="sum over groups j of n_j |mean row of j|^2, over the sum of |g_i|^2",
        meaning="Share of the rows' energy in the groups' means; the rest cancels within groups.",
        moved_by="Zero-sum advantages on similar completions lower it.",
        source="Analysis of variance (Fisher 1925), on uncentered rows.",
    ),
    "signal_to_noise": rank_metric(
        title="signal to noise",
        formula="J mean over j != k of S_j . S_k, over (mean |S_j|^2 - mean over j != k of S_j . S_k)",
        meaning="Squared norm of the expected update over the variance of the step's update. Above 1 the update is "
        "mostly signal; negative where chance made the estimate so.",
        range="[-1, inf)",
        better="higher",
        moved_by="More groups a step, prompts that pull the same way, less noisy baselines.",
        source="U-statistic over groups; as the gradient noise scale of McCandlish et al. 2018, arXiv 1812.06162.",
    ),
    "critical_batch_size": _size_metric(
        title="critical batch size",
        formula="J / signal_to_noise, J groups of the step",
        meaning="Prompts a step at which signal and noise of the update are equal. Below it more prompts make about as "
        "much more progress, far above it they are wasted.",
        moved_by="It rises as prompts are learned; prompts that pull the same way and less noisy baselines lower it.",
        source="McCandlish et al. 2018, arXiv 1812.06162: the simple noise scale tr(covariance) / |gradient|^2, in "
        "prompts.",
    ),
    "group_cosine": _cosine_metric(
        title="cosine of groups",
        formula="mean over j != k of S_j . S_k / (|S_j| |S_k|), groups with a gradient",
        meaning="Whether prompts pull the same way (1), are unrelated (0) or pull against each other.",
        moved_by="Prompts of one kind raise it; over training it tends to fall as what they share is learned.",
        source="Definition; cross-prompt orthogonality as in arXiv 2601.23135.",
    ),
    "noise_within": _size_metric(
        title="noise within prompts",
        formula="mean |a_j - b_j|^2 / 2 over (mean (|a_j|^2 + |b_j|^2) / 2 - mean over j != k of h_j . h_k), a_j and "
        "b_j halves of group j with advantages of their own, h_j their mean",
        meaning="Share of the noise of a prompt's gradient that more rollouts of it would lessen; the rest lies "
        "between prompts, and only more prompts help. At half the group size; above 1 where chance made it so.",
        moved_by="Fewer rollouts a prompt and noisier baselines raise it; unlike prompts lower it.",
        source="One-way analysis of variance (Fisher 1925), by products of halves, on gradients.",
    ),
    "alignment.pass@k": _cosine_metric(
        title="alignment with pass@k",
        formula="E u . E v / (|E u| |E v|), v the unbiased gradient of pass@k, products of different groups only",
        meaning="Whether a formulation climbs pass@k on average (1), leaves it alone (0) or descends it (-1); noise "
        "that both share does not count.",
        better="higher",
        moved_by="How a formulation weighs hard and easy prompts.",
        source="Gradient of pass@k: Walder & Karkhanis 2025, arXiv 2505.15201; cross products: definition.",
    ),
    "kinds.norm": _size_metric(
        title="norm by kind of group",
        formula="|sum of A_i s_i| over the all-fail, the mixed or the all-pass groups of a step",
        meaning="What each kind of group gives to the update; the three sums add up to it. 0 where a formulation "
        "leaves a kind out.",
        moved_by="The formulation; how many groups of the kind there are.",
    ),
    "kinds.cosine": _cosine_metric(
        title="cosine by kind of group",
        formula="u . v / (|u| |v|), u the sum over the groups of one kind, v the whole update",
        meaning="Whether groups of a kind pull the way the step goes (1), across it (0) or against it (-1).",
        moved_by="The formulation; the kind with the largest norm decides where the step goes.",
    ),
    "kinds.alignment.pass@k": _cosine_metric(
        title="alignment with pass@k by kind of group",
        formula="E u . E v / (|E u| |E v|), u the sum over the groups of one kind, v the unbiased gradient of pass@k, "
        "products of different groups only",
        meaning="Whether groups of a kind climb pass@k on average (1) or descend it (-1); noise that the two share is "
        "left out.",
        better="higher",
        moved_by="The formulation. Of sign's all-fail groups it is 1 in expectation with pass@G, G the group size.",
        source="Of sign's all-fail part: Nie et al. 2026, arXiv 2605.07689; pass@k gradient: Walder and Karkhanis "
        "2025, arXiv 2505.15201.",
    ),
    "optimal_baseline": rank_metric(
        title="optimal baseline",
        formula="sum(|s_i|^2 r_i) / sum(|s_i|^2)",
        meaning="The constant that makes a prompt's gradient least noisy; r minus it is the formulation of this name.",
        range="between the smallest and the largest reward",
        moved_by="Failing rollouts with larger score vectors than passing ones lower it.",
        source="Greensmith, Bartlett & Baxter 2004, Variance reduction techniques for gradient estimates, JMLR 5.",
    ),
    "relative_noise": _size_metric(
        title="relative gradient noise",
        formula="sum of |s_i|^2 (r_i - b_i)^2 over that with b_i the mean of the other rewards of the group",
        meaning="Second moment of the gradient under a baseline; below 1 is less noisy than leave-one-out.",
        better="lower",
        moved_by="The correlation of reward and |s|^2; the group size.",
        source="Definition; shrinkage: Zeng et al. 2025, arXiv 2511.03710.",
    ),
    "reward_norm_correlation": _cosine_metric(
        title="reward and norm",
        formula="within-group correlation of r_i and |s_i|^2, each group's norms over their mean",
        meaning="What makes the group mean a poor baseline: 0 where it is the best one.",
        moved_by="Confident passes and uncertain failures make it negative.",
    ),
}


INTERFERENCE_METRICS: dict[str, Metric] = {
    "interference.frac_hurt": rank_metric(
        title="pairs that hurt",
        formula="share of pairs j != k with S_j . C_k < 0, S_j = sum of A_i s_i of group j, C_k the mean score vector "
        "of the correct rollouts of group k",
        meaning="How often a step along one prompt's gradient lowers the log-probability of another's correct answers, "
        "to first order. 0.5 for unrelated prompts.",
        better="lower",
        moved_by="Prompts whose answers exclude each other; shared text such as formats moves it down.",
        source="Negative interference by products of scores: arXiv 2510.02230; share of pairs: definition.",
    ),
    "interference.cosine": _cosine_metric(
        title="cosine with others' correct answers",
        formula="mean over j != k of S_j . C_k / (|S_j| |C_k|)",
        meaning="Whether prompts climb the correct answers of the others (above 0) or descend them (below 0).",
        better="higher",
        moved_by="As interference.frac_hurt.",
        source="Definition; alignment with gradients of held-out prompts: arXiv 2602.21492.",
    ),
    "interference.transfer": rank_metric(
        title="transfer",
        formula="sum over j != k of S_j . C_k / sum over k of S_k . C_k",
        meaning="What all the other prompts of a step do to a prompt's correct answers, in units of what its own "
        "gradient does for them. Below 0 the others undo a part of it; its own answers are those that it was "
        "trained on.",
        range="(-inf, inf)",
        better="higher",
        moved_by="The number of prompts of a step; how much they have in common.",
    ),
    "interference.influence": rank_metric(
        title="influence of a prompt",
        formula="mean over k != j of S_j . C_k / mean over k of S_k . C_k",
        meaning="Whether a prompt helps (above 0) or hurts the correct answers of the others of its step; 1 would be "
        "as much as a prompt does for its own.",
        range="(-inf, inf)",
        better="higher",
        moved_by="The size of its gradient, and what it has in common with the others.",
        source="Definition; influence of training prompts on held-out ones: arXiv 2602.21492.",
    ),
}
