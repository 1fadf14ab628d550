import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.gradients.model import sharding
from tests.gradients.models import tiny_model
from tests.launched import group_of_one


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "num_connected", lambda: 2)


def test_one_process_loads_whole_models_and_nothing_is_changed() -> None:
    model = tiny_model("qwen3_gqa_norms", lora=True)
    assert sharding.sharding_arguments(AutoModelForCausalLM, model.config) == {}
    assert sharding.own_device("cpu") == torch.device("cpu")
    forward = model.base_model.forward
    for change in (sharding.settle, sharding.reshard, sharding.call_as_module):
        change(model)
    assert model.base_model.forward == forward
    assert not model._forward_hooks
    tensor = torch.ones(3)
    assert sharding.full_tensor(tensor) is sharding.local_tensor(tensor) is sharding.start_of_pass(tensor) is tensor
    assert sharding.end_of_pass(leaf := torch.ones(3, requires_grad=True), tensor) is leaf
    assert not tensor.requires_grad
    sharding.require_one_process("Rows of tokens are")


def test_a_unit_is_recognized_as_its_layer_and_its_hooks_as_sharding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama_untied_biases")
    head = model.lm_head
    assert sharding.original_type(head) is torch.nn.Linear
    with group_of_one():
        mesh = init_device_mesh("cpu", (1,))
        for unit in ([model.model.norm, head], model):
            fully_shard(unit, mesh=mesh)
        assert type(head) is not torch.nn.Linear
        assert sharding.original_type(head) is torch.nn.Linear
        assert not sharding.is_distributed(head.weight)  # a trainer's own sharding is none of ours
        monkeypatch.setattr(sharding, "num_connected", lambda: 2)
        assert sharding.is_distributed(head.weight)
        assert not sharding.is_distributed(sharding.full_tensor(head.weight))
        assert sharding.row_bounds(head.weight) == [(0, len(head.weight))]
        hooks = [*head._forward_hooks.values(), *head._forward_pre_hooks.values()]
        assert len(hooks) == 2
        assert all(map(sharding.is_sharding_hook, hooks))
    assert not sharding.is_sharding_hook(lambda *_: None)


@pytest.mark.usefixtures("two_processes")
def test_extra_outputs_have_their_own_gradient_and_the_backward_pass_sees_the_output() -> None:
    seen, leaf = [], torch.ones(3, requires_grad=True)
    output = sharding.start_of_pass(torch.zeros(2))
    output += 1
    output.register_hook(seen.append)
    (sharding.end_of_pass(2 * leaf, output) @ torch.arange(3.0)).backward()
    assert torch.equal(leaf.grad, torch.tensor([0.0, 2.0, 4.0]))
    assert [part.tolist() for part in seen] == [[0.0, 0.0]]
    assert not sharding.end_of_pass(leaf.detach(), output).requires_grad
    with torch.no_grad():
        assert not sharding.start_of_pass(torch.zeros(2)).requires_grad


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize(
    ("name", "layers"), [("qwen3_gqa_norms", "model.layers.*"), ("gpt2_tied_conv1d", "transformer.h.*")]
)
def test_each_decoder_layer_is_put_together_by_itself(name: str, layers: str) -> None:
    model = tiny_model(name)
    arguments = sharding.sharding_arguments(AutoModelForCausalLM, model.config)
    config = arguments["distributed_config"]
    assert (config.fsdp_size, config.tp_size, config.ep_size, config.pp_size) == (2, 1, 1, 1)
    assert config.fsdp_plan == {layers: "free_full_weight"}
    assert not config.fsdp_cpu_offload
    assert sharding.sharding_arguments(type(model), model.config) == arguments  # the class that a folder names


@pytest.mark.parametrize("version", ["5.14.0", "5.9.1", "5.0.0rc1"])
def test_an_older_transformers_is_refused_by_name(version: str) -> None:
    with pytest.raises(MissingDependencyError, match=f"from transformers 5.14.1 on, and {version} is installed"):
        sharding._require_sharding(version)
    for newer in ("5.14.1", "5.23.0", "6.0.0.dev0"):
        sharding._require_sharding(newer)


@pytest.mark.usefixtures("two_processes")
def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert sharding.own_device("cuda") == torch.device("cuda", 1)
    assert chosen == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="Each process needs a GPU of its own, and this machine has 2"):
        sharding.own_device("cuda")


@pytest.mark.usefixtures("two_processes")
def test_cpus_of_a_machine_with_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharding.own_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="share a model on the GPUs"):
        sharding.own_device("cpu")


@pytest.mark.usefixtures("two_processes")
def test_what_only_a_whole_model_answers_is_refused() -> None:
    with pytest.raises(UsageError, match="Rows of tokens are measured by one process, and 2 share this model"):
        sharding.require_one_process("Rows of tokens are")
