"""TRL itself as the oracle: for each loss it supports here, our norm of a live step is the one it logs."""

import copy
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gradscope.diagnostics.replay.measure import WELL_BEYOND
from gradscope.gradients.plan.losses import clipped as clipped_term
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.trained.norms import TrainerArithmetic, trained_norms
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import TrainerSettings
from tests.gradients.models import VOCAB, measured_step, policy_of, prepared, tiny_experts, tiny_model

pytestmark = pytest.mark.slow

MODEL = "llama_untied_biases"
ENDS = (0, 1, 2)  # padding, the end of the tokenizer, and that of the generation configuration of a Llama

TINY_TRAINING = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 6,
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "model_init_kwargs": {"dtype": "float32"},
    "lr_scheduler_type": "constant",
}
"""Arguments of a training of a model of these tests, on the CPU and without a word."""
ONE_MICRO_BATCH = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
CASES = {
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "bnpo": {"loss_type": "bnpo", **ONE_MICRO_BATCH},
    "plain kl": {"loss_type": "grpo", "beta": 0.5, "use_bias_correction_kl": False},
    "cispo as it stands": {"loss_type": "cispo"},
    "luspo": {"loss_type": "luspo"},
    "entropy bonus, kl": {"loss_type": "grpo", "entropy_coef": 0.3, "beta": 0.5, "temperature": 0.7, **ONE_MICRO_BATCH},
    "top entropy by sequence, kl": {
        "loss_type": "grpo",
        "top_entropy_quantile": 0.4,
        "beta": 0.5,
        "importance_sampling_level": "sequence",
        **ONE_MICRO_BATCH,
    },
    "top entropy, bonus": {
        "loss_type": "vespo",
        "top_entropy_quantile": 0.5,
        "entropy_coef": 0.3,
        "mask_truncated_completions": True,
        **ONE_MICRO_BATCH,
    },
    **{
        f"another sampler, {mode}": {
            "use_vllm": True,
            "loss_type": "grpo",
            "beta": 0.5,
            "vllm_importance_sampling_mode": mode,
            "vllm_importance_sampling_clip_max": 1.2,
            "vllm_importance_sampling_clip_min": 0.7,
        }
        for mode in ("token_mask", "sequence_truncate")
    },
    "another sampler, vespo, top entropy": {
        "use_vllm": True,
        "loss_type": "vespo",
        "vllm_importance_sampling_mode": "token_truncate",
        "top_entropy_quantile": 0.5,
        **ONE_MICRO_BATCH,
    },
    "another sampler, off-policy mask": {"use_vllm": True, "loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    "another sampler, only masked": {
        "use_vllm": True,
        "loss_type": "grpo",
        "vllm_importance_sampling_correction": False,
        "off_policy_mask_threshold": 0.02,
    },
    "reused, asymmetric clip, kl": {"loss_type": "grpo", "num_iterations": 3, "epsilon_high": 0.4, "beta": 0.5},
    "reused, two-sided": {"loss_type": "dapo", "num_iterations": 3, "delta": 1.1},
    "reused by sequence, kl": {
        "loss_type": "grpo",
        "num_iterations": 3,
        "importance_sampling_level": "sequence",
        "beta": 0.5,
    },
    "reused, cispo": {"loss_type": "cispo", "num_iterations": 3, "epsilon_high": 1.2},
    "reused, sapo": {"loss_type": "sapo", "num_iterations": 3, "sapo_temperature_neg": 2.0},
    "reused, vespo, kl": {"loss_type": "vespo", "num_iterations": 3, "beta": 0.5},
    "reused, off-policy mask": {"loss_type": "dapo", "num_iterations": 3, "off_policy_mask_threshold": 0.01},
}


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w2"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w2", eos_token="w1", pad_token="w0")


def recorded_run(
    folder: Path, values: dict, initial=None
) -> tuple[list[tuple[dict, dict]], list[float], TrainerSettings]:
    """Two or three updates of a tiny model: rollouts and weights before each, the norms logged, the arguments."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")

    class Recorder(trl.GRPOTrainer):
        updates: list = []  # noqa: RUF012

        def _generate(self, prompts):
            if not values.get("use_vllm"):
                return super()._generate(prompts)
            self.use_vllm = False
            generated = list(super()._generate(prompts))
            self.use_vllm = True
            generated[4] = [self._sampler(*ids) for ids in zip(generated[0], generated[1], strict=True)]
            return tuple(generated)

        def _sampler(self, prompt, completion):
            """Log-probabilities of an engine that is a little off, with a token that it has no number for."""
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0] / self.temperature
            log_pi = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
            exact = log_pi[range(len(completion)), list(completion)]
            noise = [0.4 * math.sin(7 * index + sum(completion)) for index in range(len(completion))]
            result = (exact + torch.tensor(noise)).tolist()
            return [None, *result[1:]] if sum(completion) % 5 == 0 else result

        def _calculate_rewards(self, inputs, prompts, completions, completion_ids):
            self.exact = completion_ids
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids)

        def _generate_and_score_completions(self, inputs):
            scored = super()._generate_and_score_completions(inputs)
            self.scored = scored | {"exact": self.exact}
            return scored

        def _prepare_inputs(self, generation_batch):
            prepared = super()._prepare_inputs(generation_batch)
            if self._step % self.args.gradient_accumulation_steps == 0:
                self.updates.append((self.scored, copy.deepcopy(self.model.state_dict())))
            return prepared

    def reward(completion_ids, **_):
        return [float(sum(ids) % 3) for ids in completion_ids]

    num_steps = 3 if "num_iterations" in values else 2  # a batch that is used again, and the next one
    arguments = {**TINY_TRAINING, "max_steps": num_steps, "learning_rate": 0.05, "save_strategy": "no", **values}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (initial or tiny_model(MODEL)).save_pretrained(folder / "initial")
        args = trl.GRPOConfig(output_dir=str(folder), **{**arguments, "use_vllm": False})
        trainer = Recorder(
            model=str(folder / "initial"),
            reward_funcs=reward,
            args=args,
            train_dataset=datasets.Dataset.from_dict(
                {"prompt": [f"w{i} w{i + 3}" * (1 + i % 2) for i in range(3, 15)]}
            ),
            processing_class=tokenizer(),
        )
        trainer.updates = []
        trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    reported = {"trl_version": trl.__version__, "use_vllm": arguments.get("use_vllm", False)}
    return trainer.updates, norms, TrainerSettings(values=args.to_dict() | reported)


def groups_of(inputs: dict, size: int = 4) -> list[RolloutGroup]:
    old = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
    rollouts = []
    for row in range(len(inputs["completion_ids"])):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
        ids = tuple(map(int, inputs["exact"][row]))
        rollouts.append(
            Rollout(
                group_id=str(row // size),
                sample=row % size,
                row=row,
                prompt="",
                completion="",
                prompt_ids=tuple(prompt.tolist()),
                completion_ids=ids,
                status="completed" if ids[-1] in ENDS else "truncated",
                reward=None,
                advantage=float(inputs["advantages"][row]),
                logprobs=None if old is None else tuple(old[row][: len(ids)].tolist()),
            )
        )
    return [
        RolloutGroup(step=1, group_id=str(i // size), prompt_id="p", rollouts=tuple(rollouts[i : i + size]))
        for i in range(0, len(rollouts), size)
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_norm_of_a_live_step_is_the_one_that_trl_logs(case, tmp_path):
    updates, norms, settings = recorded_run(tmp_path, CASES[case])
    objective = Objective.from_settings(settings)
    assert (objective.cannot, objective.assumed) == (None, ())
    assert objective.importance_ratio == case.startswith("reused")
    assert len(updates) == len(norms) == 2 + objective.importance_ratio
    assert norms[0] > 0.01
    clipped, num_clipped, num_exact = [], 0, 0
    for (inputs, weights), logged in zip(updates, norms, strict=True):
        model = tiny_model(MODEL)
        model.load_state_dict(weights)
        policy = policy_of(model, reference=tiny_model(MODEL))
        groups = groups_of(inputs)
        step = prepared(policy, groups, objective)
        result = measure_step(step, engine="stream")
        norm = np.sqrt(result.logged_gram.sum())
        if step.plan.num_ties and norm != pytest.approx(logged, rel=1e-5):  # TRL's rounding masked others of these
            spread = trained_norms(step, TrainerArithmetic())
            assert abs(spread.mean - logged) <= WELL_BEYOND * spread.told_within * logged
            continue
        assert norm == pytest.approx(logged, rel=1e-5)
        num_exact += 1
        unclipped = np.sqrt(result.gradient_gram([r.advantage for g in groups for r in g.rollouts]).sum())
        clipped.append(abs(unclipped - logged) > 1e-3 * logged)
        num_clipped += num_silenced(groups, result, objective)
    assert num_exact == len(updates) or (objective.top_entropy_quantile < 1.0 and num_exact)
    assert not torch.equal(updates[0][1]["lm_head.weight"], updates[1][1]["lm_head.weight"])
    by_clip = objective.loss.term is clipped_term and objective.off_policy_threshold is None
    if by_clip and objective.importance_sampling_level == "token":
        assert any(clipped) == (num_clipped > 0) == case.startswith("reused")


def num_silenced(groups: list[RolloutGroup], result, objective: Objective) -> int:
    """Tokens that the clip takes out of the loss: TRL's own formula has no slope there."""
    if not objective.importance_ratio:
        return 0
    silenced = 0
    for rollout, logprobs in zip((r for group in groups for r in group.rollouts), result.logprobs, strict=True):
        ratio = torch.tensor(np.exp(logprobs - np.array(rollout.logprobs)), requires_grad=True)
        free = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
        clipped = ratio.clamp(1 - objective.epsilon_low, 1 + objective.epsilon_high)
        torch.min(free * rollout.advantage, clipped * rollout.advantage).sum().backward()
        silenced += int((ratio.grad == 0).sum()) if rollout.advantage else 0
    return silenced


def test_the_norm_of_a_mixture_of_experts_is_the_one_that_trl_logs(tmp_path):
    name = "qwen3_moe_normalized"
    updates, norms, settings = recorded_run(tmp_path, {"router_aux_loss_coef": 0.0}, tiny_experts(name))
    assert len(updates) == len(norms) == 2
    assert norms[0] > 0.01
    for (inputs, weights), logged in zip(updates, norms, strict=True):
        model = tiny_experts(name)
        model.load_state_dict(weights)
        step = measured_step(policy_of(model), groups_of(inputs), Objective.from_settings(settings), engine="stream")
        assert np.sqrt(step.logged_gram.sum()) == pytest.approx(logged, rel=1e-5)
        assert (step.coverage, step.slow_parameters) == (1.0, ())
