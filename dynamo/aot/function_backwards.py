"""Backward of the program's own autograd functions while a joint graph is recorded.

In: the context of a call of `apply` in autograd's graph. It runs the program's code as before, with
two things around it. A branch that only values decide (`if torch.equal(grad, one)`) is taken both
ways, and the gradients are chosen by the condition when the graph runs. And what such code writes
into what the program's caller can see, which eager's backward would change when it runs, is noted.
Where neither will do, `blamed` has the class: a backend runs its calls as they are.

Of several results of a function, a backward may differentiate some: it gets zeros for the others,
which the graph notes (`arrived`), or None where it has chosen that: then it is blamed.

    >>> class Twice(torch.autograd.Function):
    ...     forward = staticmethod(lambda ctx, x: x * 2)
    ...     backward = staticmethod(lambda ctx, g: g + g)
    >>> [node.name() for node in contexts_of([Twice.apply(torch.ones(1, requires_grad=True))])]
    ['TwiceBackward']
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake, storage_key
from dynamo.aot.functional_tensors import inner_of
from dynamo.aot.graphs import ancestors, is_effect, is_once
from dynamo.aot.histories import nodes_behind
from dynamo.aot.linear_backwards import is_linear
from dynamo.aot.recorder import Recorder
from dynamo.aot.records import FAILS, BackwardFails, Unsupported
from dynamo.base.autograd_apply import AUTOGRAD_FUNCTION, materializes
from dynamo.graph_operators.arrived import ARRIVED
from dynamo.shapes.fake import DataDependent, Fake

aten = torch.ops.aten
_is_functional: Any = torch._is_functional_tensor  # type: ignore[attr-defined]
MOST_RUNS = 8  # of one backward; each branch doubles them
PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.Tensor, type(None))


def contexts_of(results: Iterable[Any], until: Iterable[Any] = ()) -> Iterator[Any]:
    """The contexts of autograd functions that these results come from. until: what lies before
    these tensors is not looked at."""
    return (node for node in nodes_behind(results, until) if hasattr(node, "_forward_cls"))


def in_order(contexts: Iterable[Any], functions: Collection[type]) -> list[Any]:
    """The contexts of these functions in the order of their calls."""
    own = [context for context in contexts if context._forward_cls in functions]
    return sorted(own, key=lambda context: context._sequence_nr())


def functions_of(gm: fx.GraphModule) -> frozenset[Any]:
    """The autograd functions that a captured graph calls."""
    return frozenset([getattr(node.target, AUTOGRAD_FUNCTION) for node in gm.graph.nodes
                      if hasattr(node.target, AUTOGRAD_FUNCTION)])  # fmt: skip


def with_backward(function: Any, run: Callable[[Any, Any, tuple[Any, ...]], Any]) -> type:
    """A class whose backward is `run(backward, context, gradients)`: torch looks a backward up on
    the class that the context names."""
    takes = "vjp" if function.vjp is not torch.autograd.Function.vjp else "backward"
    inner = getattr(function, takes)

    def backward(context: Any, *grads: Any) -> Any:
        return run(inner, context, grads)

    return type(function.__name__, (function,), {takes: staticmethod(backward)})


class Backwards:
    """Watches the backward of the functions that a captured graph calls.

    watched: functional tensors whose data the caller of the program sees. tangents: those of the
    gradients of the program's results, with their places. blamed: the functions that can't be
    recorded. nonlinear: the calls of functions whose backward is not linear in its gradients, or
    not known to be: their places in program order, with those of the tangents that lead there.
    """

    def __init__(
        self, gm: fx.GraphModule, recorder: Recorder, value: Callable[[Any], Fake],
        watched: Iterable[Any], tangents: Iterable[Any],
    ) -> None:
        self.functions = functions_of(gm)
        self.recorder, self.value = recorder, value
        self.watched = [one for one in watched
                        if isinstance(one, torch.Tensor) and _is_functional(inner_of(one))]
        self.tangents = {recorder.node_of(value(one)): at for at, one in enumerate(tangents)}
        self.blamed: set[type] = set()
        self.nonlinear: dict[int, frozenset[int]] = {}

    def attach(self, results: Iterable[Any]) -> None:
        """Puts this around the backward of all calls that the results come from."""
        if not self.functions:
            return
        for at, context in enumerate(in_order(contexts_of(results), self.functions)):
            context._forward_cls = self._around(context._forward_cls, at)

    def _around(self, function: Any, at: int) -> type:
        """A class whose backward is watched. at: the place of the call."""

        def watch(inner: Any, context: Any, grads: tuple[Any, ...]) -> Any:
            before = [self.value(one) for one in self.watched]
            try:
                grads = self._arrived(context, grads)
                last = self.recorder.graph._root.prev
                result = self._run(inner, context, grads)
                self._note_nonlinear(at, last, grads, result)
            except BackwardFails:
                self.blamed.add(function)
                raise
            except (DataDependent, RuntimeError) as error:
                self.blamed.add(function)
                name = type(error).__name__
                raise BackwardFails(f"the backward of {function.__name__} fails: {name}: {error}") \
                    from error
            if any(self.value(one) is not old for one, old in zip(
                    self.watched, before, strict=True)):
                self.blamed.add(function)
                raise BackwardFails(
                    f"the backward of {function.__name__} writes into what its caller sees")
            return result

        return with_backward(function, watch)

    def _note_nonlinear(self, at: int, last: fx.Node, grads: Any, result: Any) -> None:
        results = result if isinstance(result, (tuple, list)) else (result,)
        given, found = self._nodes_of(grads), self._nodes_of(results)
        if given is None:
            self.nonlinear[at] = frozenset(self.tangents.values())
        elif found is None or not is_linear(_behind(last), given, found):
            before = ancestors(given)
            self.nonlinear[at] = frozenset([
                place for node, place in self.tangents.items() if node in before])

    def _nodes_of(self, values: Iterable[Any]) -> list[fx.Node] | None:
        """The nodes that compute these tensors; None where one's is not known."""
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not all(_is_functional(inner_of(value)) for value in tensors):
            return None
        try:
            return [self.recorder.node_of(self.value(value)) for value in tensors]
        except Unsupported:
            return None

    def _arrived(self, context: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients, noted where some of them may be missing while others are there.

        Errors: BackwardFails where the function tells None from zeros."""
        tensors = [grad for grad in grads if isinstance(grad, torch.Tensor)]
        is_plain = all(_is_functional(inner_of(grad)) for grad in tensors)
        if min(len(tensors), len(self.tangents)) < 2 or not is_plain:
            return grads
        nodes = [self.recorder.node_of(self.value(grad)) for grad in tensors]
        if len({frozenset(self.tangents.keys() & ancestors([node])) for node in nodes}) < 2:
            return grads
        if not materializes(context):
            raise BackwardFails("an autograd function asks which of its results are differentiated")
        return tuple([
            ARRIVED(grad, [other for other in tensors if other is not grad])
            if isinstance(grad, torch.Tensor) else grad for grad in grads
        ])  # fmt: skip

    def _run(self, inner: Any, context: Any, grads: tuple[Any, ...]) -> Any:
        outer = self.recorder.answers
        answers = self.recorder.answers = Answers(self.recorder, ())
        in_program, self.recorder.in_program = self.recorder.in_program, True
        last = self.recorder.graph._root.prev
        try:
            state, old = _state_of(context), [_value_of(self.value, grad) for grad in grads]
            result = inner(context, *grads)
            if not answers.conditions:
                _forget_failures(last)
                return result
            result = _Runs(self.recorder, lambda: inner(context, *grads)).all(result, answers)
            _ = context.saved_tensors  # raises an error where one was written into
            now = [_value_of(self.value, grad) for grad in grads]
            changed = state is None or _state_of(context) != state
            _check_branches(last, changed or any(a is not b for a, b in zip(now, old, strict=True)))
            return result
        finally:
            self.recorder.answers, self.recorder.in_program = outer, in_program


class Answers:
    """Outcomes for branches of code that reads a truth value: first those of `fixed`, then False.

    conditions: what was read, tensors of one bool. given: the outcomes.
    """

    def __init__(self, recorder: Recorder, fixed: tuple[bool, ...]) -> None:
        self.recorder, self.fixed = recorder, fixed
        self.conditions: list[Fake] = []
        self.given: list[bool] = []

    def answer(self, func: Any, args: tuple[Any, ...]) -> bool | None:
        """None where the operation asks for something else than a truth value."""
        if func is aten.equal.default:
            first, second = args
            if not (is_fake(first) and is_fake(second)) or first.dtype is not second.dtype:
                return None
            if storage_key(first) == storage_key(second) or first.device != second.device:
                return None
            if facts_of(first).size != facts_of(second).size:
                return False
            same = self.recorder.call(aten.eq.Tensor, (first, second), {})
            condition = self.recorder.call(aten.all.default, (same,), {})
        elif func is aten._local_scalar_dense.default and args[0].dtype is torch.bool:
            condition = self.recorder.call(aten.view.default, (args[0], []), {})
        else:
            return None
        place = len(self.conditions)
        self.conditions.append(condition)
        self.given.append(self.fixed[place] if place < len(self.fixed) else False)
        return self.given[-1]


class _Runs:
    """All runs of one backward."""

    def __init__(self, recorder: Recorder, run: Callable[[], Any]) -> None:
        self.recorder, self.run, self.count = recorder, run, 1

    def all(self, result: Any, answers: Answers) -> Any:
        """The gradients by all conditions behind those whose outcomes are fixed."""
        for place in reversed(range(len(answers.fixed), len(answers.conditions))):
            self.count += 1
            if self.count > MOST_RUNS:
                raise BackwardFails("a backward has many branches that values decide")
            fixed = (*answers.given[:place], not answers.given[place])
            other = self.recorder.answers = Answers(self.recorder, fixed)
            found = self.all(self.run(), other)
            pair = (found, result) if fixed[-1] else (result, found)
            result = _chosen(self.recorder, answers.conditions[place], *pair)
        return result


def _chosen(recorder: Recorder, condition: Fake, yes: Any, no: Any) -> Any:
    """The gradients of one branch or the other. Errors: BackwardFails where they look different."""
    if isinstance(yes, (tuple, list)) and isinstance(no, (tuple, list)) and len(yes) == len(no):
        return tuple(_chosen(recorder, condition, *pair) for pair in zip(yes, no, strict=True))
    if yes is no:
        return yes
    if not isinstance(yes, torch.Tensor) or not isinstance(no, torch.Tensor):
        raise BackwardFails("branches of a backward give a gradient and none")
    if _look_of(yes) != _look_of(no):
        raise BackwardFails("branches of a backward give gradients that look different")
    wrapped = torch._to_functional_tensor(condition)  # type: ignore[attr-defined]
    return torch.where(wrapped, yes, no)


def _look_of(value: torch.Tensor) -> tuple[Any, ...]:
    return type(value), value.shape, value.stride(), value.dtype, value.device


def _value_of(value: Callable[[Any], Fake], grad: Any) -> Any:
    return value(grad) if isinstance(grad, torch.Tensor) else grad


def _state_of(context: Any) -> dict[str, Any] | None:
    """What the program has set on a context; None where it may change unnoticed."""
    found: dict[str, Any] = {}
    for name, value in context.__dict__.items():
        items = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(item, PLAIN) or callable(item) for item in items):
            return None
        found[name] = [item if isinstance(item, (bool, int, float, str)) else
                       (id(item), getattr(item, "_version", None)) for item in items]
    return found


def _behind(last: fx.Node) -> Iterator[fx.Node]:
    node = last.next
    while node.op != "root":
        yield node
        node = node.next


def _forget_failures(last: fx.Node) -> None:
    """Operations of backward are no lines of the program that must run to raise."""
    for node in _behind(last):
        node.meta.pop(FAILS, None)


def _check_branches(last: fx.Node, changed: bool) -> None:
    """Both branches run whatever the condition says, so that they may only compute."""
    if changed:
        raise BackwardFails("branches of a backward write into what it reads")
    if any(FAILS in node.meta or is_effect(node) or is_once(node) for node in _behind(last)):
        raise BackwardFails("branches of a backward do more than to compute")

