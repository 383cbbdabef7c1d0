"""`TensorState`: what one trace knows of tensors, beside what their own trackers know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.decisions import is_in_graph
from dynamo.base.errors import Break
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.sources import AttrSource
from dynamo.symbolic.core.frame import Evaluation

if TYPE_CHECKING:
    from dynamo.symbolic.tensors.tensor import TensorVar

MOST_PAIRS = 64  # of a written tensor and one that is looked at


class TensorState:
    """One per trace.

    tensor_inputs: tensors that became inputs of the graph. looked_at: those from outside whose
        metadata were read. mutated: those that a graph operation writes into.
    arrays: tensors in the memory of numpy arrays from outside. tables: inputs of known values.
    watched: tensors with new hooks, and their `grad_fn`.
    settings_of_grad: inputs made to require grad or not to, and the steps. read_flags: results that
        `requires_grad_` was called of. new_gradients_read: how often the program has asked for a
        `grad` that it has stored. compiled: how often it has asked for a compiled function. moved:
        tensors that have got `data`, and where it is from.
    contexts: what the trace has entered and not left. default_devices: those of the `with` blocks
        that are open.
    nested: nested tensors, from outside and made; ragged_sources: those from outside.
    functions_enabled: whether `__torch_function__` of classes is asked now in the traced program
        (it never is while tracing). function_modes: those that see torch functions, outermost
        first, and the steps where they were entered; None for those from outside.
    """

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self.tensor_inputs: list[TensorVar] = []
        self.looked_at: dict[TensorVar, None] = {}
        self.mutated: dict[TensorVar, None] = {}
        self.arrays: list[TensorVar] = []
        self.tables: list[TensorVar] = []
        self.watched: dict[TensorVar, Any] = {}
        self.settings_of_grad: dict[TensorVar, int] = {}
        self.read_flags: set[TensorVar] = set()
        self.moved: set[TensorVar] = set()
        self.moved_leaves: set[TensorVar] = set()  # those that require gradients
        self.nested: list[TensorVar] = []
        self.ragged_sources: dict[TensorVar, None] = {}
        self.new_gradients_read = self.compiled = 0
        self.contexts: list[Any] = []
        self.default_devices: list[torch.device] = []
        self.functions_enabled = torch._C._is_torch_function_enabled()
        self.function_modes: list[tuple[Any, int | None]] = []
        self.inference_mode = self.saw_inference_mode = torch.is_inference_mode_enabled()

    def set_inference_mode(self, mode: bool) -> None:
        """The traced program is in inference mode from here on, or not."""
        self.inference_mode = mode
        self.saw_inference_mode = True

    # -- reading ----------------------------------------------------------------------------

    def guard_tensor(self, var: TensorVar) -> None:
        """Guards the metadata of a tensor from outside."""
        assert var.real is not None
        self.trace.guard("TENSOR", var.source, TensorFacts.of(var.real))

    def guard_history(self, var: TensorVar) -> None:
        """Guards whether a tensor from outside is a leaf, and which output it is."""
        if var.source is not None and var.fake.requires_grad and var.real is not None:
            if var.overrides:  # which reading it at each call would ask
                raise Break("tensor_subclass", f"{var!r}, whose history matters")
            for part in ("is_leaf", "output_nr"):
                place = AttrSource(var.source, part)
                self.trace.guard("CONST", place, getattr(var.real, part))

    def note_look(self, var: TensorVar) -> None:
        """The metadata of a tensor from outside are read, or it became a graph input: it must stay
        another one than the mutated ones, which may get other metadata."""
        if var in self.looked_at:
            return
        self.looked_at[var] = None
        if self.has_many_pairs():
            return
        for other in self.mutated:
            self.trace.guard("NOT_SAME", other.source, var.source)

    def has_many_pairs(self) -> bool:
        """Whether one guard over all tensors is to say what pairs of them would."""
        return len(self.mutated) * len(self.looked_at) > MOST_PAIRS

    def add_input(self, var: TensorVar) -> None:
        """A tensor became a graph input."""
        self.note_look(var)
        self.tensor_inputs.append(var)

    def note_nested(self, var: TensorVar, source: TensorVar | None) -> None:
        """There is another nested tensor. source: its ragged source, where that is from outside.

        Nested tensors fit where they have one ragged source: which of them are one is guarded.
        """
        self.nested.append(var)
        if source is None or source.source is None or source in self.ragged_sources:
            return
        for other in self.ragged_sources:
            if other.fake.device != source.fake.device:  # one may be a copy of the other
                raise Break("tensor_not_modelled", "nested tensors of two devices")
            self.trace.guard("NOT_SAME", other.source, source.source)
        self.ragged_sources[source] = None

    # -- operations -------------------------------------------------------------------------

    def run_fake(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs an operation on fakes, and guards what it assumed of symbolic sizes."""
        world, symbols = self.trace.world, self.trace.symbols
        world.constants.varies = symbols.gave_hint or is_in_graph(function)
        world.constants.settled = False
        world.constants.read.clear()
        result = world.run(function, *args, **kwargs)
        symbols.keep_assumptions()
        return result

    def note_mutation(self, var: TensorVar) -> None:
        """A graph operation wrote into the tensor."""
        self.trace.effects.tick()
        self.trace.world.constants.forget(var.fake)
        if var.source is None or var in self.mutated:
            return
        self.mutated[var] = None
        self.guard_history(var)
        if self.has_many_pairs():
            return
        for other in self.looked_at:
            if other is not var:
                self.trace.guard("NOT_SAME", var.source, other.source)


def tensor_state(trace: Evaluation) -> TensorState:
    """That of a trace."""
    return trace.state(TensorState)
