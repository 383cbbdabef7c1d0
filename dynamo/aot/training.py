"""Running a partitioned program under autograd: one `torch.autograd.Function` for each compile.

In: a `Partition` and compilers. Out: a callable from the program's inputs to the values of the
forward graph (its outputs, then the new values of mutated inputs). With `create_graph=True` the
captured program runs again to be differentiated twice, where it can (`second_order.py`).

Saved tensors go through `save_for_backward`: freed after backward unless the graph is retained,
with the error of eager where one was written into meanwhile. Backward is compiled when it is first
called. An output that nothing differentiates has no gradient, as in eager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.joint import JointGraph, Tangent, dense_stride, tangent_name
from dynamo.aot.missing import without_tangents
from dynamo.aot.partition import Partition
from dynamo.aot.records import Compiler, Place, Unsupported
from dynamo.aot.second_order import Refusal, second_order

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]


class LazyBackward:
    """Compiles the backward module when first called, once for each set of outputs in use."""

    def __init__(self, partition: Partition, compiler: Compiler) -> None:
        self._partition = partition
        self._compiler = compiler
        self._compiled: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, missing: tuple[int, ...], *args: Any) -> Any:
        """missing: the outputs that have no gradient; their tangents are not among args."""
        compiled = self._compiled.get(missing)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(missing)
                if compiled is None:
                    compiled = self._compiled[missing] = self._compile(missing)
        return compiled(*args)

    def _compile(self, missing: tuple[int, ...]) -> Callable[..., Any]:
        module = self._partition.backward
        if missing:
            module = without_tangents(module, {tangent_name(output) for output in missing})
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        return self._compiler(module, [node.meta["val"] for node in nodes])


def make_function(
    gm: fx.GraphModule, joint: JointGraph, partition: Partition, forward: Callable[..., Any],
    backward: LazyBackward,
) -> Callable[..., Any]:
    """The differentiable callable; gm: the program as it was captured."""
    values = joint.values
    inputs = tuple(at for kind, at in partition.saved if kind == "input")
    outputs = tuple(at for kind, at in partition.saved if kind == "output")
    order = _restore_order(partition)
    sizes = partition.sizes
    with_gradient = {tangent.output for tangent in joint.tangents}
    without_gradient = tuple(at for at in range(values) if at not in with_gradient)
    tangents = joint.tangents
    gradients = joint.gradients
    arity = len(joint.reference.inputs)
    dirty = tuple(
        (mutation.input, mutation.output)
        for mutation in joint.mutations
        if mutation.output is not None and joint.reference.histories[mutation.input]
    )
    second = second_order(gm, joint, inputs)
    if second is not None:
        outputs += tuple(at for at in second.results if at not in outputs)
    # Some kept tensor leads to every input: what can't be differentiated again is refused there.
    known = second is not None or set(gradients) <= set(inputs)
    marks = not known and with_gradient.isdisjoint(outputs)
    if not set(inputs).isdisjoint(at for at, _ in dirty):
        raise Unsupported("backward needs the old value of a mutated input")

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = tuple(forward(*args))
            ctx.set_materialize_grads(False)
            saved = [args[at] for at in inputs] + [results[at] for at in outputs]
            mark = (torch.empty(0),) if marks else ()
            ctx.save_for_backward(*saved, *mark)
            if second is not None:
                ctx.kept = second.keep(args)
            if sizes:
                ctx.sizes = [_read(args, place) for place in sizes]
            ctx.mark_non_differentiable(*[results[at] for at in without_gradient])
            if not dirty:
                return results[:values] + mark
            shown = list(results[:values])
            for given, at in dirty:
                shown[at] = args[given].copy_(results[at])
            ctx.mark_dirty(*[args[given] for given, _ in dirty])
            return (*shown, *mark)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            kept = ctx.saved_tensors
            if second is not None and torch.is_grad_enabled() and ctx.kept is not None:
                own = dict(zip(outputs, kept[len(inputs) :], strict=False))
                again = second.gradients(ctx.kept, kept, own, grads)
                if again is not None:
                    return tuple(again)
            given = [kept[at] for at in order]
            if sizes:
                given += ctx.sizes
            missing = tuple([t.output for t in tangents if grads[t.output] is None])
            given += [_fit(grads[t.output], t) for t in tangents if grads[t.output] is not None]
            with torch.no_grad():
                found = backward(missing, *given)
            if second is not None and not keeps_graph():
                ctx.kept = None
            if torch.is_grad_enabled():
                others = [] if second is None else second.history(ctx.kept)
                found = Refusal.apply(len(found), *found, *kept, *others, *grads)
            results: list[Any] = [None] * arity
            for at, grad in zip(gradients, found, strict=False):
                results[at] = grad
            return tuple(results)

    apply: Callable[..., Any] = CompiledFunction.apply
    return (lambda *args: apply(*args)[:values]) if marks else apply


def _read(inputs: tuple[Any, ...], place: Place) -> int:
    index, dim = place
    return inputs[index] if dim is None else inputs[index].shape[dim]  # type: ignore[no-any-return]


def _restore_order(partition: Partition) -> tuple[int, ...]:
    """Where each of backward's placeholders lies among the saved tensors: inputs come first."""
    kinds = [kind for kind, _ in partition.saved]
    counts = {"input": 0, "output": kinds.count("input")}
    order = []
    for kind in kinds:
        order.append(counts[kind])
        counts[kind] += 1
    return tuple(order)


def _fit(grad: torch.Tensor, tangent: Tangent) -> torch.Tensor:
    """The gradient as the backward graph expects it."""
    size, stride = tangent.form or (grad.shape, dense_stride(grad.shape, tangent.order))
    if grad.stride() == stride and not grad.is_conj() and not grad.is_neg():
        return grad
    fitted = torch.empty_strided(size, stride, dtype=tangent.dtype, device=grad.device)
    return fitted.copy_(grad)
