from contextlib import suppress

import pytest
import torch

from gradscope.gradients.model import calls
from gradscope.gradients.step.measure import FLOAT32_ROW_ERROR
from gradscope.gradients.step.verify import tolerance
from tests.gradients.models import DAPO, measured_step, policy_of, tiny_groups, tiny_model, tiny_policy


def test_a_model_is_asked_for_its_own_arguments_inside_an_adapter_too():
    for lora in (False, True):
        model = tiny_model("qwen3_gqa_norms", lora=lora)
        assert {"input_ids", "attention_mask", "position_ids", "logits_to_keep"} <= calls.forward_arguments(model)
        assert type(calls.without_adapter(model)).__name__ == "Qwen3ForCausalLM"
        assert calls.call_on(model, torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 23)


def test_checkpointing_is_off_for_a_while():
    model = tiny_model("qwen3_gqa_norms").train()
    model.activation_checkpointing_enable()
    with calls.without_checkpointing(model):
        assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def test_tf32_is_switched_off_and_comes_back(tf32):
    cuda, convolutions = torch.device("cuda"), torch.backends.cudnn.allow_tf32
    assert calls.uses_tf32(cuda)
    assert not calls.uses_tf32(torch.device("cpu"))
    with suppress(KeyError), calls.without_tf32():
        assert not calls.uses_tf32(cuda)
        assert not torch.backends.cudnn.allow_tf32
        raise KeyError
    assert calls.uses_tf32(cuda)
    assert torch.backends.cudnn.allow_tf32 == convolutions


@pytest.mark.parametrize(
    ("context", "dtypes", "precision"),
    [
        (calls.finer_products, (torch.bfloat16,), "high"),
        (calls.finer_products, (torch.float16,), "highest"),
        (calls.finer_products, (torch.float32,), "highest"),
        (calls.exact_products, (torch.bfloat16, torch.bfloat16), "high"),
        (calls.exact_products, (torch.float16, torch.bfloat16), "high"),
        (calls.exact_products, (torch.float32, torch.bfloat16), "highest"),
        (calls.exact_products, (torch.float64, torch.float64), "highest"),
    ],
)
def test_products_are_finer_than_the_dtype_or_exact_where_tf32_holds_the_numbers(context, dtypes, precision):
    with suppress(KeyError), context(*dtypes):
        assert torch.get_float32_matmul_precision() == precision
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


def test_tensorfloat_32_holds_every_number_of_half_precision():
    """Its mantissa has 10 bits behind the point: rounding the others off must change nothing."""
    for dtype in (torch.bfloat16, torch.float16):
        values = torch.arange(2**16).to(torch.uint16).view(dtype).float()
        bits = values[values.isfinite()].view(torch.int32)
        assert len(bits) > 2**15
        assert not (bits & (2**13 - 1)).any()


def test_products_that_may_round_are_not_taken_for_float32(monkeypatch):
    for module in ("measure", "verify"):
        monkeypatch.setattr(f"gradscope.gradients.step.{module}.uses_tf32", lambda device: True)
    step = measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    assert (step.precision, step.tf32) == ("reduced", True)
    assert step.relative_row_error == 0.0  # measured, and on a CPU the two passes are the same
    assert step.verification.tolerance == tolerance(torch.float32, tf32=True) == 1e-2


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "high"), (torch.bfloat16, "reduced")])
def test_the_result_says_its_precision(dtype, precision):
    step = measured_step(policy_of(tiny_model("llama_untied_biases", dtype=dtype)), tiny_groups(), DAPO)
    described = step.describe()
    assert (described["precision"], described["tf32"]) == (precision, False)
    assert (step.relative_row_error == FLOAT32_ROW_ERROR) == (precision == "high")
