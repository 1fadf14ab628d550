"""Which modules own trainable parameters and have a rule: shared by all engines that work layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from gradscope.gradients.layers.adapters import adapter_parameters
from gradscope.gradients.layers.layer_call import Rule
from gradscope.gradients.layers.rules import rule_for


class CoveredLayers:
    """The modules whose parameters are computed by a layer rule.

    Args:
        trainable: Name -> parameter, tied parameters once.
    """

    def __init__(self, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in trainable.items()}
        self.owned: dict[nn.Module, dict[str, str]] = {}
        """Module -> local name -> name of each trainable parameter that it computes with."""
        self.rules: dict[nn.Module, Rule] = {}
        """Module -> its rule."""
        ruled: set[str] = set()
        unruled: set[str] = set()
        for module, held in _holders(model):
            owned = {local: names[id(p)] for local, p in held.items() if id(p) in names}
            rule = rule_for(module) if owned else None
            if rule is None:
                unruled.update(owned.values())
                continue
            self.owned[module], self.rules[module] = owned, rule
            ruled.update(owned.values())
        self.uncovered: set[str] = set(trainable) - (ruled - unruled)
        """Names of the parameters of which some call has no rule; engines add what they find on the way."""

    def covered_by(self, module: nn.Module) -> dict[str, str]:
        """Local name -> name of the parameters that a module's rule covers, uncovered ones left out."""
        return {local: name for local, name in self.owned[module].items() if name not in self.uncovered}


def _holders(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str, nn.Parameter]]]:
    """Every module, the outer first, with the parameters that its rule is about, unless a layer around it has them."""
    taken: set[tuple[nn.Module, str]] = set()
    for module in model.modules():
        held = {name: p for name, p in module._parameters.items() if p is not None and (module, name) not in taken}
        for name in adapter_parameters(module):
            path, _, local = name.rpartition(".")
            taken.add((module.get_submodule(path), local))
            held[name] = module.get_parameter(name)
        yield module, held
