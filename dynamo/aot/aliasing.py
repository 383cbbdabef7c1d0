"""What outputs and inputs share: from a reference run to the records of the alias model.

The model itself is described in `records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._C._autograd import (  # type: ignore[attr-defined]
    CreationMeta,
    _get_creation_meta,
)
from torch.autograd.function import BackwardCFunction

from dynamo.aot.fakes import (
    expression_of,
    facts_of,
    fills_storage,
    is_fake,
    is_symbolic_number,
    storage_key,
)
from dynamo.aot.overlap import overlap, overlaps_itself
from dynamo.aot.records import (
    ConstantOutput,
    FreshOutput,
    InputOutput,
    NodeView,
    NumberOutput,
    Output,
    PlainOutput,
    Unsupported,
    ViewOutput,
)
from dynamo.aot.reference import Reference
from dynamo.shapes.facts import Facts
from dynamo.shapes.fake import Fake

CONJUGATED, NEGATED = 1, 2  # among the bits of `Facts`


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the program's outputs come about.

    outputs: records whose `FreshOutput.index` counts the graph's outputs.
    values: for each of the graph's outputs, the flat position of the program output that has its
        value, and whether it is not that value but the base that it is a view of.
    views: the values among these that are no results of the graph: a node of autograd's graph of
        our own makes them as views of an input, or of another value.
    """

    outputs: tuple[Output, ...]
    values: tuple[tuple[int, bool], ...]
    views: Mapping[int, NodeView]


class _Planner:
    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.objects: dict[int, Output] = {}
        self.bases: dict[int, tuple[Output, Fake]] = {}
        self.values: list[tuple[int, bool]] = []
        self.views: dict[int, NodeView] = {}
        for index, fake in enumerate(reference.inputs):
            if is_fake(fake):
                self.objects.setdefault(id(fake), InputOutput(index))
                self.bases.setdefault(storage_key(fake), (InputOutput(index), fake))
        for fake, real in reference.constants:
            self.objects[id(fake)] = ConstantOutput(real)
            self.bases[storage_key(fake)] = (ConstantOutput(real), fake)
        given = (*reference.inputs, *(fake for fake, _ in reference.constants))
        roots = {id(fake): fake for fake in given if is_fake(fake)}
        self.roots = Counter(map(storage_key, roots.values()))
        self.different = {id(out): out for out in reference.outputs if is_fake(out)}
        self.sharing = Counter(storage_key(fake) for fake in self.different.values())

    def plan(self, position: int, out: Any) -> Output:
        if not is_fake(out):
            if isinstance(out, torch.Tensor):
                raise Unsupported("an output is a tensor from outside of the graph")
            if is_symbolic_number(out):
                return NumberOutput(expression_of(out))
            return PlainOutput(out)
        known = self.objects.get(id(out))
        if known is not None:
            return known
        above = self.reference.cut_off.get(id(out))
        if above is not None:
            return self._of_view(position, out, above)
        base = self._base_of(out)
        record: Output
        if base is not None:
            if out._base is not base[1] and id(out._base) in self.different:
                return self._of_view(self._position(out._base), out, out._base)
            record = self._seen(position, out, *base)
        elif self._is_alone(out) or _owns_storage(out):
            record = self._fresh(position, False)
            self.bases[storage_key(out)] = (record, out)
            if out.requires_grad and is_one_of_many(out):
                record = _view(out, record, out)
        else:
            hidden = self._fresh(position, True)
            root = out._base
            if not is_fake(root) or not _owns_storage(root):
                raise Unsupported("outputs share a storage that none of them is a view of")
            self.bases[storage_key(out)] = (hidden, root)
            record = self._seen(position, out, hidden, root)
        self.objects[id(out)] = record
        return record

    def _is_alone(self, out: Fake) -> bool:
        """True for a result that nothing tells from one with a storage of its own."""
        alone = self.sharing[storage_key(out)] == 1 and not facts_of(out).bits
        return alone and not _has_no_history(out)

    def _of_view(self, position: int, out: Fake, view: Fake) -> Output:
        """A view of one that the program cuts off from its base: that one is made, too."""
        record = self.plan(position, view)
        if view.requires_grad and isinstance(record, ViewOutput) and record.detach:
            raise Unsupported("an output is a view made in another grad mode")
        made = self._view(out, record, view)
        if id(out) in self.reference.cut_off:  # it says of itself what it has from that view
            made = replace(made, detach="", no_grad=False)
        self.objects[id(out)] = made
        return made

    def _position(self, given: Fake) -> int:
        return next(at for at, out in enumerate(self.reference.outputs) if out is given)

    def _view(self, out: Fake, record: Output, base: Fake) -> ViewOutput:
        made = _view(out, record, base)
        if made.no_grad and id(out) in self.reference.inference_views:
            made = replace(made, inference=True)
        return made

    def _base_of(self, out: Fake) -> tuple[Output, Fake] | None:
        """What `out` is made from at run time: the very base where several inputs share memory."""
        root: Any = out._base
        if is_fake(root) and isinstance(self.objects.get(id(root)), InputOutput):
            return self.objects[id(root)], root
        if self.roots[storage_key(out)] > 1:
            raise Unsupported("an output is cut off from one of several tensors of a storage")
        return self.bases.get(storage_key(out))

    def _seen(self, position: int, out: Fake, record: Output, base: Fake) -> Output:
        """A view of what this record gives."""
        if not out.requires_grad or not has_own_backward(out, out._base):
            return self._view(out, record, base)
        if isinstance(record, InputOutput) and self.reference.written[record.index]:
            raise Unsupported("an output is a written input behind an autograd.Function")
        if isinstance(record, ConstantOutput):
            raise Unsupported("an output is a constant behind an autograd.Function")
        assert isinstance(record, (FreshOutput, InputOutput))
        view = self._fresh(position, False)
        self.views[view.index] = _node_view(out, record, base)
        return view

    def _fresh(self, position: int, is_base: bool) -> FreshOutput:
        self.values.append((position, is_base))
        return FreshOutput(len(self.values) - 1)


def _owns_storage(fake: Fake) -> bool:
    return not fake._is_view() and facts_of(fake).offset == 0 and fills_storage(fake)


def _node_view(out: Fake, record: FreshOutput | InputOutput, base: Fake) -> NodeView:
    facts, whole = _alike(out, base)
    size, stride, offset = facts.size, facts.stride, facts.offset
    is_input = isinstance(record, InputOutput)
    if [*map(expression_of, (*size, *stride, offset))] == [
        *map(expression_of, (*whole.size, *whole.stride, whole.offset))
    ]:
        return NodeView(is_input, record.index, None, out._base is not base)
    numbers = *size, *stride, offset, whole.offset
    if any(type(number) is not int for number in numbers):
        raise Unsupported("an output is a part of an input behind an autograd.Function, in "
                          "symbolic sizes")
    form = size, stride, offset - whole.offset
    return NodeView(is_input, record.index, form, out._base is not base)


def _alike(out: Fake, base: Fake) -> tuple[Facts, Facts]:
    """Errors: Unsupported where `as_strided` of one does not give the other."""
    facts, whole = facts_of(out), facts_of(base)
    if facts.dtype != whole.dtype or facts.bits != whole.bits:
        raise Unsupported("an output views its base as another dtype")
    return facts, whole


def _view(out: Fake, record: Output, base: Fake) -> ViewOutput:
    facts, whole = facts_of(out), facts_of(base)
    dtype, scale = None, 1
    if facts.dtype is not whole.dtype:
        dtype, scale = facts.dtype, _elements_in_one(facts, whole)
    changed = facts.bits ^ whole.bits
    if not out._is_view():
        detach = "after"
    else:
        detach = "" if base is out or base is out._base else "before"
    assert isinstance(record, (FreshOutput, InputOutput, ConstantOutput, ViewOutput))
    size, stride = (tuple(map(expression_of, part)) for part in (facts.size, facts.stride))
    offset = expression_of(facts.offset) - expression_of(whole.offset) * scale
    without = not detach and base.requires_grad and _is_without_grad(out)
    return ViewOutput(
        record, size, stride, offset, detach, is_one_of_many(out), without, dtype,
        bool(changed & CONJUGATED), bool(changed & NEGATED))


def _elements_in_one(facts: Facts, whole: Facts) -> int:
    """How many elements of a view lie in one of its base. Errors: Unsupported where no view of the
    whole base makes them."""
    if facts.dtype.itemsize == whole.dtype.itemsize and not whole.bits:
        if facts.dtype.is_complex == whole.dtype.is_complex:
            return 1
    if whole.dtype.is_complex and facts.dtype is whole.dtype.to_real() and not whole.bits:
        return 2
    raise Unsupported("an output views its base as another dtype")


def is_one_of_many(out: torch.Tensor) -> bool:
    """True for a view that an operation of several results (as `chunk`) made in grad mode."""
    return out._is_view() and _get_creation_meta(out) == CreationMeta.MULTI_OUTPUT_NODE


def _is_without_grad(out: torch.Tensor) -> bool:
    return out._is_view() and _get_creation_meta(out) == CreationMeta.NO_GRAD_MODE


def _rank(out: Any) -> int:
    if not is_fake(out):
        return 0
    return 2 if not _owns_storage(out) else 0 if out.requires_grad else 1


def plan_outputs(reference: Reference) -> OutputPlan:
    """Classifies the program's outputs. Owners of a storage come first, so that views find them;
    among these, what has a gradient before what is detached from it."""
    planner = _Planner(reference)
    outputs: list[Output | None] = [None] * len(reference.outputs)
    order = sorted(range(len(outputs)), key=lambda at: _rank(reference.outputs[at]))
    for position in order:
        outputs[position] = planner.plan(position, reference.outputs[position])
    records: Any = tuple(outputs)
    return OutputPlan(records, tuple(planner.values), planner.views)


def check_views(reference: Reference, plan: OutputPlan) -> None:
    """Raises Unsupported where a view made again at run time would not require grad as eager's."""
    grad = torch.is_grad_enabled()
    for record, out in zip(plan.outputs, reference.outputs, strict=True):
        if isinstance(record, FreshOutput) and _has_no_history(out):
            raise Unsupported("an output is a view made in another grad mode")
        if isinstance(record, ViewOutput):
            base = out._base if not record.detach else None
            expected = grad and base is not None and base.requires_grad
            if record.dtype is not None and base is not None and not base.dtype.is_complex:
                expected = False  # of numbers that are read as others there is no derivative
            if record.no_grad:
                _is_leaf(out)
                continue
            if out.requires_grad != expected or (expected and _is_leaf(out)):
                raise Unsupported("an output is a view made in another grad mode")
            if expected and overlaps_itself(facts_of(base)):
                raise Unsupported("an output views an input that names elements twice")


def _has_no_history(out: Any) -> bool:
    """True for a view made without grad mode of what the program computes and does not give: it
    says that it requires grad, but backward ends at it."""
    return is_fake(out) and out.requires_grad and out._base is not None and (
        out._base.grad_fn is not None and out.grad_fn is None)


def has_own_backward(out: Any, base: Any) -> bool:
    """True where a function of the program's own stands between a view and its base, as one that
    returns its input does: a view made again at run time would not have its backward."""
    if not is_fake(base):
        return False
    try:
        end, node = base.grad_fn, out.grad_fn
    except RuntimeError:  # autograd refuses to follow it: see `_is_leaf`
        return False
    while node is not None and node is not end:
        if isinstance(node, BackwardCFunction):
            return True
        node = next((inner for inner, _ in node.next_functions), None)
    return False


def _is_leaf(out: Any) -> bool:
    """Errors: Unsupported for a view that autograd refuses to follow since its base was written;
    eager says so where something asks, if ever."""
    try:
        return bool(out.is_leaf)
    except RuntimeError as error:
        raise Unsupported(f"an output is a view without a history: {error}") from error


def check_mutations(
    reference: Reference, mutated: list[int], used: Mapping[int, Any]
) -> None:
    """Raises Unsupported where a mutated input shares memory with another one, or with itself.
    used: the inputs that the program takes."""
    groups: dict[int, list[tuple[int, Facts]]] = {}
    for index, fake in used.items():
        groups.setdefault(storage_key(fake), []).append((index, facts_of(fake)))
    for index in mutated:
        fake = reference.inputs[index]
        if overlaps_itself(facts_of(fake)):
            raise Unsupported("a mutated input names elements twice")
        for other, facts in groups[storage_key(fake)]:
            if other != index and overlap(facts_of(fake), facts):
                raise Unsupported("a mutated input shares memory with another input")
    for fake, _ in reference.constants:
        if any(storage_key(reference.inputs[index]) == storage_key(fake) for index in mutated):
            raise Unsupported("a mutated input shares memory with a constant")
