"""Which modules own trainable parameters and have a rule: shared by all engines that work layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import nn

from gradscope.gradients.layers.adapters import adapter_parameters
from gradscope.gradients.layers.layer_call import Rule, Verdict
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
        self._assumed: list[tuple[torch.Tensor, tuple[str, ...]]] = []

    def assume(self, fits: Verdict, names: Collection[str]) -> bool:
        """Take a rule to fit until :meth:`settle` asks.

        Asking call by call would wait for the device each time.

        Returns:
            False where it is known at once that it does not; its parameters are then uncovered.
        """
        if isinstance(fits, torch.Tensor):
            self._assumed.append((fits, tuple(names)))
            return True
        if not fits:
            self.uncovered.update(names)
        return fits

    def settle(self) -> None:
        """Ask once whether all rules fit that were taken to; the parameters of one that does not are uncovered."""
        if self._assumed:
            assumed, self._assumed = self._assumed, []
            first = assumed[0][0].device
            answers = torch.stack([fits.to(first) for fits, _ in assumed]).tolist()
            self.uncovered.update(
                name for fits, (_, names) in zip(answers, assumed, strict=True) if not fits for name in names
            )

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
