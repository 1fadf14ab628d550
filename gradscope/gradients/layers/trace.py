"""One sequence's forward pass, cut at the decoder layers; lockstep sends its cotangents down it.

Shapes: S tokens of the sequence, T tokens of its completion, H width, L decoder layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradscope.gradients.layers.factors import ForwardCall, LayerCall, Rule, Verdict, begin_graph
from gradscope.gradients.layers.rules import adapter_parameters, returned_by, rule_for
from gradscope.gradients.model.batches import TokenSequence, pad_batch
from gradscope.gradients.model.calls import removed_later
from gradscope.gradients.model.passes import completion_logprobs, gradients_on

Answer = TypeVar("Answer")


class CoveredLayers:
    """The modules whose parameters are computed by a layer rule.

    Args:
        trainable: Name -> parameter, tied parameters once.
    """

    def __init__(self, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in trainable.items()}
        self.owned: dict[nn.Module, dict[str, str]] = {}
        """Module -> local name -> name of each trainable parameter that it computes with."""
        self.rules: dict[nn.Module, Rule] = {}  # module -> its rule
        with_rule: set[str] = set()
        without_rule: set[str] = set()
        claimed: set[tuple[nn.Module, str]] = set()  # parameters that the rule of a layer around their module is about
        for module in model.modules():
            held = {n: p for n, p in module._parameters.items() if p is not None and (module, n) not in claimed}
            for name in adapter_parameters(module):
                path, _, below = name.rpartition(".")
                claimed.add((module.get_submodule(path), below))
                held[name] = module.get_parameter(name)
            owned = {local: names[id(p)] for local, p in held.items() if id(p) in names}
            rule = rule_for(module) if owned else None
            if rule is None:
                without_rule.update(owned.values())
                continue
            self.owned[module], self.rules[module] = owned, rule
            with_rule.update(owned.values())
        self.uncovered: set[str] = set(trainable) - (with_rule - without_rule)
        """Names of the parameters of which a call has no rule; engines add those that they meet."""
        self.asks = False  # whether a question runs, whose calls of modules are none of the model's
        self._assumed: list[tuple[torch.Tensor, tuple[str, ...]]] = []

    def assume(self, fits: Verdict, names: Collection[str]) -> bool:
        """Take a rule to fit until :meth:`settle` asks: asking call by call would wait for the device each time.

        False where it is known at once that it does not; its parameters are then uncovered.
        """
        if isinstance(fits, torch.Tensor):
            self._assumed.append((fits, tuple(names)))
            return True
        if not fits:
            self.uncovered.update(names)
        return fits

    def settle(self) -> None:
        """Ask once whether all rules that were assumed to fit do; the parameters of one that does not are uncovered."""
        if self._assumed:
            assumed, self._assumed = self._assumed, []
            first = assumed[0][0].device
            answers = torch.stack([fits.to(first) for fits, _ in assumed]).tolist()
            self.uncovered.update(
                name for fits, (_, names) in zip(answers, assumed, strict=True) if not fits for name in names
            )

    def accept(self, module: nn.Module, arguments: tuple[Any, ...], output: Any, *, num_rows: int, length: int) -> bool:
        """Whether a call's rule is exact for it, as far as is known at once; else its parameters are uncovered."""
        owned = self.covered_by(module)
        if arguments and all(isinstance(part, torch.Tensor) for part in (*arguments, output)):
            call = ForwardCall(
                module=module, input=arguments[0], output=output, extra=arguments[1:], num_rows=num_rows, length=length
            )
            if self.assume(self.ask(lambda: self.rules[module].fits(call)), owned.values()):
                return True
        self.uncovered.update(owned.values())
        return False

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Run a function that may call a hooked module again; with ``asks`` the hooks do not collect that call."""
        self.asks = True
        try:
            with torch.no_grad():
                return question()
        finally:
            self.asks = False

    def covered_by(self, module: nn.Module) -> dict[str, str]:
        """Local name -> name of the parameters that a module's rule covers, uncovered ones left out."""
        return {local: name for local, name in self.owned[module].items() if name not in self.uncovered}


class TracedCall(Struct, frozen=True, kw_only=True):
    """One call of a module that a rule covers, with the graph of its output."""

    module: nn.Module
    input: torch.Tensor  # its first argument, detached, [1, ...]; of experts and routers tokens alone, [S, ...]
    output: torch.Tensor  # its return value, likewise
    extra: tuple[torch.Tensor, ...] = ()  # its other tensor arguments: an expert layer's routes
    version: int = 0  # how often the output was written to by the time of the call

    @property
    def is_intact(self) -> bool:
        """Whether the model has not written over the output since: that tensor now has another gradient."""
        return self.output._version == self.version

    def as_rows(self, grads: torch.Tensor, stops: Sequence[int], length: int) -> LayerCall:
        """The call as if R rows had been a batch: one input, an output gradient each, [R, 1, S, ...] or [R, S, ...]."""
        size = len(grads)
        if self.output.shape[0] == length:  # tokens alone: experts and routers
            inputs, *extra = (part.repeat(size, *[1] * (part.dim() - 1)) for part in (self.input, *self.extra))
            grads = grads.flatten(0, 1)
        else:
            inputs, extra, grads = self.input.expand(size, *self.input.shape[1:]), [], grads[:, 0]
        return LayerCall(
            module=self.module,
            input=inputs,
            extra=tuple(extra),
            grad=grads,
            spans=tuple((0, stop) for stop in stops),
            length=length,
        )


class ForwardTrace(Struct, kw_only=True):
    """A forward pass with its graph."""

    length: int  # S
    segments: list[list[TracedCall]]
    """Calls below the first decoder layer, in each of them, and above the last, [L + 2]."""
    cuts: list[torch.Tensor] = []
    """Hidden states [1, S, H] before each decoder layer and after the last, [L + 1]; all that joins the segments."""
    start: int = 0  # tokens of the prompt
    logprobs: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Log-probabilities of the completion with their graph, [T]."""

    @property
    def is_cut(self) -> bool:
        """Whether every decoder layer was called once with a hidden state of all tokens."""
        shapes = {cut.shape for cut in self.cuts}
        is_complete = all(len(shape) == 3 and tuple(shape[:2]) == (1, self.length) for shape in shapes)
        return len(self.cuts) == len(self.segments) - 1 and len(shapes) == 1 and is_complete

    def share_inputs(self, longer: ForwardTrace) -> None:
        """Take the inputs of a longer pass over the same sequence: a causal model gives both the same ones.

        Rows of both traces then have prefixes of one tensor.
        """
        for segment, longer_segment in zip(self.segments[:-1], longer.segments[:-1], strict=True):
            for index, (call, other) in enumerate(zip(segment, longer_segment, strict=False)):
                shape = (1, longer.length, *call.input.shape[2:])
                if call.module is other.module and call.input.shape[1] == self.length and other.input.shape == shape:
                    segment[index] = replace(call, input=other.input[:, : self.length])


class Tracer:
    """Runs forward passes and records the calls that lockstep needs.

    Args:
        trainable: Name -> parameter, tied parameters once.
        temperature: Logits are divided by it.
    """

    def __init__(self, model: Any, trainable: Mapping[str, nn.Parameter], temperature: float) -> None:
        self.layers = CoveredLayers(model, trainable)
        self._model, self._trainable, self._temperature = model, trainable, temperature
        self._decoder = decoder_layers(model)
        self._trace: ForwardTrace | None = None
        self._segment = 0

    def trace(self, sequence: TokenSequence) -> ForwardTrace:
        """One forward pass, weight gradients off. A call that no rule fits makes its parameters uncovered."""
        device = next(iter(self._trainable.values())).device
        # Fused attention has no rule for many cotangents at once; in plain operations it has.
        with self.recording(sequence.length) as trace, sdpa_kernel(SDPBackend.MATH):
            batch = pad_batch([0], [sequence], device)
            (trace.logprobs,) = completion_logprobs(self._model, batch, self._temperature, torch.float64)
            trace.start = sequence.start + len(sequence.prompt_ids)
        return trace

    @contextmanager
    def recording(self, length: int) -> Iterator[ForwardTrace]:
        """Record the forward pass of one sequence that runs inside, weight gradients off; its trace fills on the way.

        A call that no rule fits makes its parameters uncovered.
        """
        trace = ForwardTrace(length=length, segments=[[] for _ in range(len(self._decoder) + 2)])
        self._trace, self._segment = trace, 0
        try:
            handles = [module.register_forward_hook(self._take) for module in self.layers.owned]
            handles += [layer.register_forward_pre_hook(self._enter, with_kwargs=True) for layer in self._decoder]
            handles += [layer.register_forward_hook(self._leave) for layer in self._decoder[-1:]]
            with removed_later(handles), gradients_on(self._trainable, on=False):
                yield trace
            self.layers.settle()
        finally:
            self._trace = None

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        assert self._trace is not None, "hooks are on only while a trace is made"
        inputs = arguments[0] if arguments else keywords.get("hidden_states")
        if isinstance(inputs, torch.Tensor):
            self._trace.cuts.append(inputs)
        self._segment = min(self._segment + 1, len(self._decoder))

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        assert self._trace is not None, "hooks are on only while a trace is made"
        returned = output[0] if isinstance(output, tuple) else output
        if isinstance(returned, torch.Tensor):
            self._trace.cuts.append(returned)
        self._segment = len(self._decoder) + 1

    def _take(self, module: nn.Module, arguments: tuple[Any, ...], returned: Any) -> torch.Tensor | None:
        if self.layers.asks or self._trace is None or not self.layers.covered_by(module):
            return None
        output = returned_by(module, returned)
        if not self.layers.accept(module, arguments, output, num_rows=1, length=self._trace.length):
            return None
        graph_start = begin_graph(output, returned)
        inputs = tuple(part.detach() for part in arguments)
        call = TracedCall(module=module, input=inputs[0], extra=inputs[1:], output=output, version=output._version)
        self._trace.segments[self._segment].append(call)
        return graph_start


def decoder_layers(model: Any) -> tuple[nn.Module, ...]:
    """The layers that a model calls one after the other; empty where it keeps no list of them."""
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == depth)
    return tuple(next(lists, ()))
