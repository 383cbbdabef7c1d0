"""Gradients that can be differentiated again: the captured program runs once more, under autograd.

In: a captured module, its joint graph, which inputs autograd saves anyway. Out: a `SecondOrder`,
which the autograd function of the compiled program asks when `create_graph=True`; None where the
program can't run twice (random numbers, writes).

Backward of `tanh`, `exp` and others reads their result. Where that is a result of the program, a
second derivative goes to the program's own tensor, past the hooks that were put on it (`Bridge`).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo.aot.function_backwards import functions_of
from dynamo.aot.function_runs import FunctionRuns, NonlinearCalls, nonlinear_calls
from dynamo.aot.graphs import is_once
from dynamo.aot.joint import SAVED, JointGraph
from dynamo.aot.lazy_backward import is_in_transform

TWICE = (
    "this compiled backward can't be differentiated again (create_graph=True, double backward): "
    "its program draws random numbers or writes into its inputs, or an input has changed since or "
    "has died. Compile it with backend=\"eager\", or run it uncompiled"
)


# Elements of an input without a gradient that is kept: the time of an equation's step, for one,
# dies before its gradient is wanted. What has more would be memory that eager does not hold.
LITTLE = 1 << 10

DEVICES = ("cpu", "cuda")  # of which autocast counts
# They read no element of their argument.
CONSTANT = frozenset([
    getattr(torch.ops.aten, name).default
    for name in "zeros_like ones_like full_like empty_like new_zeros new_ones new_full".split()
])  # fmt: skip

# Eager's backward of these reads their result, the recorded one does not.
SAVE_RESULTS = (torch.ops.aten.prod.default, torch.ops.aten.prod.dim_int)


class Refusal(torch.autograd.Function):
    """The first `count` tensors; differentiating them with respect to any of all raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        return tuple([None if given is None else given.detach() for given in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(TWICE)


def refuse_to_differentiate(
    found: Sequence[Any], is_open: Sequence[bool], given: Sequence[Any]
) -> list[Any]:
    """Gradients of which those that are open can't be differentiated by any of the given."""
    results = list(found)
    places = [at for at, is_refused in enumerate(is_open) if is_refused and found[at] is not None]
    refused = Refusal.apply(len(places), *[found[at] for at in places], *given) if places else ()  # type: ignore[no-untyped-call]
    for at, grad in zip(places, refused, strict=True):
        results[at] = grad
    return results


def learnable_sources(module: fx.GraphModule) -> list[frozenset[int]]:
    """For each gradient of a backward graph: the places of the placeholders that it has a
    derivative by. What counts, compares or only asks for sizes has none."""
    places = {node: at for at, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    found: dict[fx.Node, frozenset[int]] = {}
    none: frozenset[int] = frozenset()
    for node in module.graph.nodes:
        if not _has_derivative(node):
            found[node] = none
        elif node in places:
            found[node] = frozenset([places[node]])
        else:
            found[node] = none.union(*[found[given] for given in node.all_input_nodes])
    results: Any = module.graph.output_node().args[0]
    return [none if node is None else found[node] for node in results]


def _has_derivative(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()):
        return False
    return node.target not in CONSTANT


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """gm: the captured program. saved: the inputs that `save_for_backward` keeps, in order. others:
    the rest, and those without history there: these get no gradient, but gradients may depend on
    them. results: see `_saved_results`. places: where values of the program lie among its outputs.
    wanted: the inputs that get a gradient. autocast: the devices that have it in the program's
    call, with their dtypes. calls: see `NonlinearCalls`. ends: where values lie among the
    outputs that functions may get zeros behind, if no gradient comes to them."""

    gm: fx.GraphModule
    saved: tuple[int, ...]
    others: tuple[int, ...]
    results: tuple[int, ...]
    places: tuple[int, ...]
    wanted: tuple[int, ...]
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    calls: NonlinearCalls | None = None
    ends: tuple[int, ...] = ()

    def note_run(self, ctx: Any, grads: Sequence[Any]) -> FunctionRuns | None:
        """The program's own node runs backward, with these gradients of its values.

        Errors: RuntimeError where a function may not run for it once more. The result is None where
        all may, and before anything is differentiated twice."""
        if self.calls is None:
            return None
        runs: FunctionRuns | None = getattr(ctx, "runs", None)
        if runs is None:
            if not torch.is_grad_enabled():
                return None
            runs = ctx.runs = FunctionRuns()
        runs.note(self.calls.reached(grads))
        return runs

    def keep(self, args: tuple[Any, ...]) -> Any:
        """What finds the other inputs again: leaves are not kept alive, but for little ones."""
        return [_reference(args[at]) for at in self.others]

    def history(self, references: Any) -> list[torch.Tensor]:
        """Of these inputs, the tensors that are there. references: None where nothing is saved."""
        given = [item[0]() for item in references or () if isinstance(item, tuple)]
        return [tensor for tensor in given if tensor is not None]

    def gradients(
        self, references: Any, saved: tuple[Any, ...], results: Mapping[int, Any],
        grads: Sequence[Any], runs: FunctionRuns | None,
    ) -> list[Any] | None:
        """The gradients of all inputs, part of autograd's graph; None where an input has died or
        has been written into meanwhile. results: the program's own, as autograd has kept them.
        runs: see `note_run`."""
        args = self._args(references, saved)
        if args is None:
            return None
        # Batched gradients can't be copied to be leaves of their own, as a bridge needs them.
        plain = not self.results or is_in_transform()
        if plain:
            return self._in_places(self._differentiate(args, grads, runs), len(args))
        return self._in_places(self._bridged(results, args, grads, runs), len(args))

    def of_nothing(self, ctx: Any) -> list[Any] | None:
        """The gradients of all inputs where backward comes to the program's node with none: those
        that autograd functions make of zeros. None where there are no such, and as above."""
        if not self.ends or ctx.references is None:
            return None
        args = self._args(ctx.references, ctx.saved_tensors)
        if args is None:
            return None
        with torch.set_grad_enabled(True), _under_autocast(dict(self.autocast)):
            inputs = [args[at].view_as(args[at]) for at in self.wanted]
            leaves = pytree.tree_leaves(self.gm.forward(*self._with(args, inputs)))
            nothing = Nothing.apply(*[leaves[place] for place in self.ends])  # type: ignore[no-untyped-call]
        runs = self.note_run(ctx, leaves)
        found = torch.autograd.grad(
            nothing, inputs, create_graph=torch.is_grad_enabled(), allow_unused=True)
        if self.calls is not None and runs is not None:
            self.calls.watch(runs, self.gm, [leaves[place] for place in self.places], inputs)
        return self._in_places(found, len(args))

    def _args(self, references: Any, saved: tuple[Any, ...]) -> list[Any] | None:
        """What the program was called with; None where an input has died or has been written into.
        """
        args: list[Any] = [None] * len({*self.saved, *self.others})
        for at, value in zip(self.saved, saved, strict=False):  # saved outputs come behind
            args[at] = value
        for at, reference in zip(self.others, references, strict=True):
            value = _follow(reference)
            if value is None:
                return None
            args[at] = value
        return args

    def _with(self, args: list[Any], inputs: list[Any]) -> list[Any]:
        """The arguments with these in the places of inputs that get a gradient."""
        args = list(args)
        for at, value in zip(self.wanted, inputs, strict=True):
            args[at] = value
        return args

    def differentiated(self, args: list[Any], grads: Sequence[Any]) -> list[Any]:
        """The gradients of all inputs. grads: of the values of the program."""
        return self._in_places(self._differentiate(args, grads), len(args))

    def _in_places(self, computed: Sequence[Any], count: int) -> list[Any]:
        gradients: list[Any] = [None] * count
        for at, grad in zip(self.wanted, computed, strict=True):
            gradients[at] = grad
        return gradients

    def _differentiate(
        self, args: list[Any], grads: Sequence[Any], runs: FunctionRuns | None = None
    ) -> Sequence[Any]:
        return self._run(args, [args[at].view_as(args[at]) for at in self.wanted], grads, runs)[0]

    def _run(
        self, args: list[Any], inputs: list[Any], grads: Sequence[Any], runs: FunctionRuns | None
    ) -> tuple[Sequence[Any], list[Any]]:
        """The gradients, and the results that they were computed with. inputs: substitutes of the
        inputs that get a gradient: no hook runs, no input's history is followed, within."""
        with _under_autocast(dict(self.autocast)):
            leaves = pytree.tree_leaves(self.gm.forward(*self._with(args, inputs)))
        given = [(leaves[place], grad) for place, grad in zip(self.places, grads, strict=False)
                 if grad is not None]  # fmt: skip
        found = torch.autograd.grad(
            [value for value, _ in given], inputs, [grad for _, grad in given],
            create_graph=True, allow_unused=True,
        )  # fmt: skip
        if self.calls is not None and runs is not None:
            self.calls.watch(runs, self.gm, [leaves[place] for place in self.places], inputs)
        return found, [leaves[self.places[at]] for at in self.results]

    def _bridged(
        self, results: Mapping[int, Any], args: list[Any], grads: Sequence[Any],
        runs: FunctionRuns | None,
    ) -> Sequence[Any]:
        """Like `_differentiate`, with the program's own results in autograd's graph."""
        own = [args[at] for at in self.wanted]
        inputs, copies = [_leaf(value) for value in own], [_copy(grad) for grad in grads]
        found, computed = self._run(args, inputs, copies, runs)
        run = _Run(found, inputs, computed, copies, runs)
        own_results = [results[at] for at in self.results]
        bridged: Sequence[Any] = Bridge.apply(run, *own, *own_results, *grads)  # type: ignore[no-untyped-call]
        return bridged


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of the program, on leaves: its gradients, and what they were computed from."""

    gradients: Sequence[Any]
    inputs: list[Any]
    results: list[Any]
    grads: list[Any]
    runs: FunctionRuns | None

    def differentiated(self, grads: Sequence[Any], differentiable: bool) -> _Run:
        """The gradients of these gradients, by inputs, results and grads. differentiable: so
        are these."""
        copies = [_copy(grad) for grad in grads] if differentiable else list(grads)
        pairs = [(value, grad) for value, grad in zip(self.gradients, copies, strict=True)
                 if grad is not None and value.requires_grad]  # fmt: skip
        arrived: dict[int, torch.Tensor] = {}

        def stop(at: int, grad: torch.Tensor) -> torch.Tensor:
            arrived[at] = grad
            return torch.zeros_like(grad)

        hooks = [result.register_hook(functools.partial(stop, at))
                 for at, result in enumerate(self.results)]  # fmt: skip
        leaves = [*self.inputs, *filter(_learns, self.grads)]
        with contextlib.nullcontext() if self.runs is None else self.runs.within():
            found = iter(torch.autograd.grad(
                [value for value, _ in pairs], leaves, [grad for _, grad in pairs],
                retain_graph=True, create_graph=differentiable, allow_unused=True,
            ) if pairs else [None] * len(leaves))  # fmt: skip
        for hook in hooks:
            hook.remove()
        given = [*[next(found) for _ in self.inputs], *map(arrived.get, range(len(self.results))),
                 *[next(found) if _learns(grad) else None for grad in self.grads]]  # fmt: skip
        return _Run(given, self.inputs, self.results, [*self.grads, *copies], self.runs)


class Nothing(torch.autograd.Function):
    """A number whose backward has no gradient for the tensors that it is given."""

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
        return given[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (None,) * len(ctx.needs_input_grad)


class Bridge(torch.autograd.Function):
    """The gradients of a run, as a function of the program's own inputs, results and tangents.

    A gradient that reaches a result of the run does not go on to the run's inputs: it goes to the
    program's own result, whose history leads there, too. Gradients of these gradients are made by
    the same run, and are a function of the same and of what they were called with.
    """

    @staticmethod
    def forward(ctx: Any, run: _Run, *own: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.run, ctx.own = run, own
        given = [None if grad is None else grad.detach() for grad in run.gradients]
        ctx.mark_non_differentiable(*[
            mine for grad, mine in zip(run.gradients, given, strict=True)
            if mine is not None and not grad.requires_grad])  # fmt: skip
        return tuple(given)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if not torch.is_grad_enabled():
            return None, *ctx.run.differentiated(grads, differentiable=False).gradients
        run = ctx.run.differentiated(grads, differentiable=True)
        return None, *Bridge.apply(run, *ctx.own, *grads)  # type: ignore[no-untyped-call]


def second_order(
    gm: fx.GraphModule, joint: JointGraph, saved: tuple[int, ...], cut: Set[int],
    outputs: tuple[int, ...],
) -> SecondOrder | None:
    """Where the program may run again, what does so. saved, cut: see there; outputs: the values to
    differentiate."""
    bases = any(is_base for _, is_base in joint.plan.values)
    if bases or joint.mutations or not may_rerun(joint.module.graph.nodes):
        return None
    results = tuple([at for at in _saved_results(joint) if at in outputs])
    count = len(joint.reference.inputs)
    others = tuple(at for at in range(count) if at not in saved or at in cut)
    places = tuple(position for position, _ in joint.plan.values)
    # Of several outputs it is not known to which of them backward comes.
    ends = tuple([places[at] for at in outputs]) if len(outputs) == 1 and functions_of(gm) else ()
    return SecondOrder(gm, saved, others, results, places, joint.gradients, autocast_now(),
                       nonlinear_calls(joint), ends)  # fmt: skip


def autocast_now() -> tuple[tuple[str, torch.dtype], ...]:
    """The devices with autocast, and their dtypes."""
    return tuple([(device, torch.get_autocast_dtype(device)) for device in DEVICES
                  if torch.is_autocast_enabled(device)])  # fmt: skip


@contextlib.contextmanager
def _under_autocast(dtypes: Mapping[str, torch.dtype]) -> Iterator[None]:
    """As a program ran that had autocast on these devices; who wants its gradient may have it on
    others."""
    with contextlib.ExitStack() as stack:
        for device in DEVICES:
            if device in dtypes or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(
                    device, dtypes.get(device), enabled=device in dtypes))  # fmt: skip
        yield


def may_rerun(nodes: Iterable[fx.Node]) -> bool:
    """False for a program that has effects or draws random numbers."""
    return not any(map(is_once, nodes))


def _saved_results(joint: JointGraph) -> tuple[int, ...]:
    """The values of the program that need a gradient and that autograd saves."""
    values = next(iter(reversed(joint.module.graph.nodes))).args[0]
    return tuple(
        [tangent.output for tangent in joint.tangents if _is_saved(values[tangent.output])]
    )


def _is_saved(node: fx.Node | None) -> bool:
    return node is not None and (SAVED in node.meta or node.target in SAVE_RESULTS)


def _leaf(value: Any) -> Any:
    return None if value is None else value.detach().requires_grad_()


def _copy(grad: Any) -> Any:
    """What depends on nothing stays so: as in eager, a gradient made of it alone does, too."""
    return None if grad is None else grad.detach().requires_grad_(grad.requires_grad)


def _learns(grad: Any) -> bool:
    return grad is not None and grad.requires_grad


def _reference(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    kept = not value.is_leaf or (not value.requires_grad and value.numel() <= LITTLE)
    return (lambda: value) if kept else weakref.ref(value), value._version


def _follow(reference: Any) -> Any:
    if not isinstance(reference, tuple):
        return reference
    tensor = reference[0]()
    return tensor if tensor is not None and tensor._version == reference[1] else None
