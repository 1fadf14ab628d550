"""A trainer that shards its model between two processes."""

import os


def shard_on_the_cpu() -> None:
    """Let accelerate shard models by FSDP2 here too, which it does by itself on GPUs alone and torch does anywhere."""
    from accelerate import DistributedType, state
    from accelerate.utils import FullyShardedDataParallelPlugin

    started, plugins = state.AcceleratorState.__init__, []

    def start_sharded(self, *arguments, **options):
        started(self, *arguments, **options)
        if not plugins:
            plugins.append(
                FullyShardedDataParallelPlugin(
                    fsdp_version=2,
                    auto_wrap_policy="transformer_based_wrap",
                    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
                    state_dict_type="FULL_STATE_DICT",
                )
            )
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugins[0]

    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2", FSDP_STATE_DICT_TYPE="FULL_STATE_DICT")
    state.AcceleratorState.__init__ = start_sharded
