"""Records between the stages of `dynamo.aot`, and the alias model.

**The alias model.** A captured graph (torch-level calls, in-place operations, views) becomes a
functional ATen graph: no node writes into a value, and every value that leaves the graph is a
tensor of its own. What the program's outputs and inputs share stands beside the graph, by records,
and done again at run time on the real tensors, in this order:

1. *Numbers.* A number among the example inputs was taken as a constant; other values at run time
   make the program run as it was captured. With symbolic sizes, ints are symbols instead.
2. *The compiled graph* is called with all inputs, in order. It reads the inputs as they were.
3. *Mutations.* An input whose data the program changed, directly or through a view, gets its last
   value: `input.copy_(value)`, which bumps the version counter once. The value is an extra output
   of the graph, or the graph ends with `aten.copy_(placeholder, value)` nodes, which stand
   after all other nodes (`AtenGraph.epilogue_in_graph`; forward of a training graph may end with
   some); no other node mutates. Under autograd, an
   input that gets a value with a gradient is written inside of the autograd function and marked
   dirty, so that it gets the function's history.
4. *Outputs.* Each is one of:
   - `FreshOutput`: an output of the graph, with eager's size, stride and dtype. Two entries with
     one index are one object. Its storage is shared with no input and no other output; under
     autograd a `NodeView` is one all the same, which the autograd function makes itself.
   - `InputOutput`: the input object itself.
   - `ViewOutput`: a view by `as_strided` of an input (after its mutation), of an output of the
     graph that other outputs share a storage with, or of another such view; its offset counts from
     where that base begins, since inputs of other calls begin elsewhere. So `_base` and
     `_is_view()` are as in eager;
     `detach` tells where the program cut that tie. A lone view of an intermediate is a
     `FreshOutput`, or a view of one where autograd refuses writes into it.
   - `ConstantOutput`: a tensor attribute of the captured module, itself.
   - `NumberOutput`: an expression over sizes. `PlainOutput`: no tensor.

**Symbolic sizes.** The same for all sizes that the frontend left open: sizes, strides and offsets
in the records are SymPy expressions over symbols that are read from inputs (`SymbolTable`).

Inputs that share memory with one another are fine as long as the program mutates none of them;
otherwise `Unsupported` is raised at compile time, and at run time the program runs as it was
captured. Also `Unsupported`: mutated constants, metadata of inputs changed (`x.t_()`, `resize_`),
results that depend on data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from dynamo.base.errors import Signal

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
Keeping = Callable[[tuple[Any, ...], Callable[[], Callable[..., Any]]], Callable[..., Any]]
"""(half, outputs without a gradient, perhaps which part of it) and what compiles that backward ->
the compiled backward."""
Place = tuple[int, int | None]
"""Where a symbol's value is read: the number of an input, and a place in it (`fakes.number_at`)."""


class Unsupported(Signal):
    """The graph can't be brought to ATen form: run it as it was captured.

    reason: a sentence for the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# In the meta of a module: the caller asks for `WrapperGradient`, and for `PlainRefused`.
TAKES_WRAPPERS = "takes_wrapper_gradients"


class Retrace(Signal):
    """What was assumed of the program does not hold: it is to be recorded again, otherwise."""


class WrapperMet(Retrace):
    """A wrapper subclass is used where none was expected."""


class WrapperGradient(Retrace):
    """A plain input gets a wrapper as its gradient, in a program that was not made for one.

    index: of the input. grad: the gradient, whose metadata counts.
    """

    def __init__(self, index: int, grad: Any) -> None:
        super().__init__(f"the gradient of input {index} is a {type(grad).__qualname__}")
        self.index = index
        self.grad = grad


class PlainRefused(Retrace):
    """A plain program can't be compiled; it stands for one with wrappers, which runs instead."""

    def __init__(self, refusal: Unsupported) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class BackwardFails(Unsupported):
    """The backward of an operation can't be recorded: its own, in Python, may look at values.

    functions: the autograd functions of the program to which that happened, if it was in theirs.
    """

    def __init__(self, reason: str, functions: Iterable[type] = ()) -> None:
        super().__init__(reason)
        self.functions = frozenset(functions)


class NeedsGradients(Unsupported):
    """An output of a graph for inference requires grad."""


# In the meta of nodes that a checkpoint recomputes: backward does so, nothing of it is saved.
RECOMPUTED = "recomputed"
# In the meta of operations of the program that may raise by the values of their tensors.
FAILS = "fails"
# In the meta of nodes that are parts of an operation which was taken apart.
PART = "part"
# In the meta of values of both halves that one of them decides by: see `repeats`.
DECIDED = "decided"
# In the meta of what backward does for its effect.
LATE = "late"
# In the meta of what backward does: places of inputs ("input", n) and values ("output", n) that it
# does not read, but that eager keeps for it, and wants to find as they were.
CHECKS = "checks"


@dataclass(frozen=True, slots=True)
class FreshOutput:
    """The index-th output of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class InputOutput:
    """The index-th input itself."""

    index: int


@dataclass(frozen=True, slots=True)
class ConstantOutput:
    """A tensor attribute of the captured module, itself."""

    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class PlainOutput:
    """A value that is no tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """A view of an input, of an output of the graph or of a constant.

    size, stride, offset: ints, or SymPy expressions over the graph's symbols. The offset counts
        from where base begins.
    detach: "" for a view of base, "before" for a view of `base.detach()`, "after" for a tensor that
        shares the storage but is no view.
    one_of_many: made by an operation that returns several views (`chunk`, `unbind`): autograd lets
        nobody write into it.
    no_grad: made without grad mode of what requires grad: it says that it requires grad, too, and
        has no history. inference: made in inference mode.
    dtype: what the elements of base are read as; None for its own. size, stride and offset count
        in elements of this one. conjugated, negated: lazily, after that.
    """

    base: FreshOutput | InputOutput | ConstantOutput | ViewOutput
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    detach: str
    one_of_many: bool = False
    no_grad: bool = False
    dtype: torch.dtype | None = None
    conjugated: bool = False
    negated: bool = False
    inference: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """A value of a training program that a node of autograd's graph gives as a view: of its
    index-th input, or of its index-th value. So are inputs that an autograd.Function of the program
    returns.

    form: size, stride, and the offset from where the other begins; None where it is as that one.
    detach: the program has cut the other off before.
    """

    is_input: bool
    index: int
    form: tuple[tuple[int, ...], tuple[int, ...], int] | None
    detach: bool = False

    def of(self, inputs: Sequence[Any], values: Sequence[Any]) -> torch.Tensor:
        """The view."""
        base: torch.Tensor = (inputs if self.is_input else values)[self.index]
        if self.detach:
            base = base.detach()
        if self.form is None:
            return base.view_as(base)
        size, stride, offset = self.form
        return base.as_strided(size, stride, base.storage_offset() + offset)


@dataclass(frozen=True, slots=True)
class NumberOutput:
    """A number, as a SymPy expression over the graph's symbols."""

    expression: Any


Output = FreshOutput | InputOutput | ConstantOutput | PlainOutput | NumberOutput | ViewOutput


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """What a graph with symbolic sizes holds for; a compiler reads `module.meta["symbols"]`.

    symbols: SymPy symbol -> where its value is read among the graph's inputs. Sizes are at least 2.
    assumptions: SymPy booleans over these symbols, beyond these ranges. They must be checked before
        the graph is used for other sizes (see `dynamo.aot.symbols`).
    """

    symbols: Mapping[Any, Place]
    assumptions: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """Input `input` gets the value of the graph's output `output` (None: in the graph)."""

    input: int
    output: int | None


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How the program's outputs nest: `kind` is tuple or list where flat, else None with a spec."""

    kind: type | None
    spec: Any = None


@dataclass(frozen=True, slots=True)
class Within:
    """An input that is a view of another one, where the program writes either. start: bytes from
    where that one begins."""

    input: int
    owner: int
    start: int


@dataclass(frozen=True, slots=True)
class AtenGraph:
    """A functional ATen graph and what surrounds it.

    module: one placeholder for each input of the program, in order; `get_attr` of tensor constants;
        calls of functional `OpOverload`s and `getitem`; one tuple of tensors as output.
        `node.meta["val"]` is a Fake (or a tuple of them, or a number for the placeholder of one),
        `node.meta["stack_trace"]` the user's stack.
    outputs: the program's outputs, flat. form: how they nest.
    mutations: see the module's docstring.
    numbers: (input, value) of the inputs that are no tensors.
    symbols: where the symbols of sizes are read; empty for static sizes. Then nodes' values are
        torch FakeTensors and SymInts, number placeholders have a SymInt, and sizes among the
        arguments are nodes: `aten.sym_size.int` of placeholders and arithmetic. assumptions: see
        `SymbolTable`.
    needs_grad: flat positions of program outputs that the graph computes and that require grad.
    mutates_history: mutated inputs whose new value has a gradient.
    inference: the graph's outputs are made in inference mode; in_inference: those of its outputs
        that are, where others are not.
    quiet: mutated inputs whose version counter does not move by that (`x.data.zero_()`).
    touched: inputs whose counter moves before the graph runs: their data stays
        (`x[0].unsqueeze_(0)`), or is written later.
    spent: outputs of the graph that require grad, though a backward in the program has freed what
        theirs needs. leaves: inputs that require grad. within: inputs that the graph does not read,
        since it has made them views of others.
    """

    module: fx.GraphModule
    outputs: tuple[Output, ...]
    form: OutputForm
    mutations: tuple[Mutation, ...]
    numbers: tuple[tuple[int, Any], ...]
    needs_grad: tuple[int, ...]
    mutates_history: tuple[int, ...]
    epilogue_in_graph: bool
    symbols: Mapping[Any, Place] = field(default_factory=dict)
    assumptions: tuple[Any, ...] = ()
    inference: bool = False
    in_inference: tuple[int, ...] = ()
    quiet: tuple[int, ...] = ()
    touched: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    within: tuple[Within, ...] = ()

    @property
    def fakes(self) -> list[Any]:
        """The value of each placeholder."""
        return [node.meta["val"] for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def is_symbolic(self) -> bool:
        """True for a graph of a symbolic world, even where it found no symbol."""
        return "symbols" in self.module.meta

    @property
    def is_plain(self) -> bool:
        """True where the graph's outputs are the program's, and nothing else is to do."""
        straight = tuple(FreshOutput(index) for index in range(len(self.outputs)))
        return (
            not self.mutations_outside
            and not self.touched
            and not self.spent
            and not self.in_inference
            and not self.numbers
            and self.form.kind is tuple
            and self.outputs == straight
        )

    @property
    def mutations_outside(self) -> tuple[Mutation, ...]:
        """Those that `copy_` does after the graph; the others happen in the compiled callable."""
        return tuple(
            mutation
            for mutation in self.mutations
            if mutation.output is not None and mutation.input not in self.mutates_history
        )
