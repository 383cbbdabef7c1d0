"""`x[i]` where `i` is a tensor without dimensions: eager reads the number and gives a view of `x`.

The graph takes a copy instead, without reading. That is the same for a result that stays inside of
the graph, where nothing writes into it, and into `x` only after its last use; and where it is
written once and then put back, as by `x[i] += v`. Elsewhere, or where the program asks what only a
view knows, the trace begins again with a break in this place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx

from dynamo.base.errors import Break, RestartTrace
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.tensors.memory import guard_apart
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform, put_in_graph

NONE = ConstVar(None)


@dataclass(slots=True)
class Pick:
    """A copy that stands for a view. place, base: the storages of the copy and of what it is of.

    made: what the program's `x[i]` gave, and x and i. back: the node that does `x[i] = copy`.
    """

    node: fx.Node
    place: int
    base: int
    step: int
    text: str
    made: tuple[Var, Var, Var] | None = None
    back: fx.Node | None = None

    def give_up(self) -> RestartTrace:
        return RestartTrace(self.step, Break("item", self.text))


class Picks:
    """The copies of one trace that stand for views."""

    def __init__(self, trace: Evaluation) -> None:
        self.made: list[Pick] = []


@rule(torch.Tensor.__getitem__, TensorVar, TensorVar)
def pick(tx: Frame, var: TensorVar, index: TensorVar) -> Var | None:
    trace, fake, number = tx.trace, var.fake, index.fake
    if not is_number(index) or in_transform():
        return None
    if trace.world.constant_of(number) is not None:
        return trace.call(tx, torch.Tensor.__getitem__, var, as_known(tx, index))
    if number.device != fake.device:
        return None
    # Of others the view has strides of its own; of nothing there is no item.
    if not fake.dim() or not fake.is_contiguous() or not fake.shape[0]:
        return None
    copy = put_in_graph(tx, torch.ops.aten.index.Tensor, [var, ListVar([index])], {})
    assert isinstance(copy, TensorVar)
    trace.state(Picks).made.append(Pick(
        copy.node, storage_of(copy.fake), storage_of(fake), tx.step_at_start, repr(index)))
    return noted(trace, var, index, copy)


def noted(trace: Evaluation, var: Var, key: Var, made: TensorVar) -> TensorVar:
    storage = storage_of(made.fake)
    for found in trace.state(Picks).made:
        if found.place == storage:
            found.made = made, var, key
    return made


def note_put_back(trace: Evaluation, var: TensorVar, key: Var, value: Var) -> None:
    """After `var[key] = value`."""
    for found in trace.state(Picks).made:
        if found.made is not None and isinstance(value, TensorVar):
            made, base, index = found.made
            if base is var and index is key and same_place(made.as_fake(), value.fake):
                found.back = trace.graph.mark()


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    return storage_of(one) == storage_of(other) and one.shape == other.shape and (
        one.stride() == other.stride() and one.storage_offset() == other.storage_offset())


def is_number(index: Var) -> bool:
    return isinstance(index, TensorVar) and (
        not index.fake.dim() and index.fake.dtype is torch.int64)


def as_known(tx: Frame, index: Var) -> Var:
    """The int in the place of an index that is made of constants."""
    known = tx.trace.world.constant_of(index.as_fake()) if is_number(index) else None
    return index if known is None else ConstVar(known.item())


@rule(torch.Tensor.__getitem__, TensorVar, TupleVar)
def pick_by_several(tx: Frame, var: TensorVar, index: TupleVar) -> Var | None:
    """`x[0, i, 1:]` is `x[0][i][1:]`, where the numbers come first."""
    items = [as_known(tx, item) for item in index.items]
    if items != index.items:
        return tx.trace.call(tx, torch.Tensor.__getitem__, var, TupleVar(items))
    tensors = [place for place, item in enumerate(items) if isinstance(item, TensorVar)]
    if not tensors or len(items) > var.fake.dim() or in_transform():
        return None
    whole = var
    first, rest = items[:tensors[-1] + 1], items[tensors[-1] + 1:]
    if not all(is_number(item) or item.python_type() in (int, slice) for item in items):
        return None
    if any(item.python_type() is slice for item in first):
        return pick_behind_slices(tx, var, index)
    for key in [*first, *([TupleVar(rest)] if rest else ())]:
        made = tx.trace.call(tx, torch.Tensor.__getitem__, var, key)
        assert isinstance(made, TensorVar)
        var = made
    return noted(tx.trace, whole, index, var)


def pick_behind_slices(tx: Frame, var: TensorVar, index: TupleVar) -> Var | None:
    """`x[:, i]`: the copy has the strides of eager's view, for what is computed of it has its order
    in memory from them."""
    trace, fake, items = tx.trace, var.fake, index.items
    numbers: list[Var] = [item for item in items if isinstance(item, TensorVar)]
    for item in numbers:
        if item.as_fake().device != fake.device:
            return None
    if not all(type(size) is int and size for size in (*fake.shape, *fake.stride())):
        return None
    target = with_numbers_first(tx, var, items)
    moved, count = target.as_fake(), len(numbers)
    copy = put_in_graph(tx, torch.ops.aten.index.Tensor, [target, ListVar(numbers)], {})
    strides = moved.stride()[count:]
    if copy.as_fake().stride() != strides:
        kind: dict[str, Var] = {"dtype": ConstVar(fake.dtype), "device": ConstVar(fake.device)}
        sizes = [trace.constant(tuple(part)) for part in (moved.shape[count:], strides)]
        spread = put_in_graph(tx, torch.empty_strided, sizes, kind)
        put_in_graph(tx, torch.Tensor.copy_, [spread, copy], {})
        copy = spread
    assert isinstance(copy, TensorVar)
    trace.state(Picks).made.append(Pick(
        trace.graph.mark(), storage_of(copy.fake), storage_of(fake), tx.step_at_start, repr(var)))
    return noted(trace, var, index, copy)


def with_numbers_first(tx: Frame, var: TensorVar, items: list[Var]) -> Var:
    """What ints and slices among the keys leave; its first dimensions are those of the numbers."""
    made: Var = var
    places: list[int] = []
    axis = 0
    for item in items:
        if isinstance(item, TensorVar):
            places.append(axis)
        else:
            before = [SliceVar(NONE, NONE, NONE) for _ in range(axis)]
            made = tx.trace.call(tx, torch.Tensor.__getitem__, made, TupleVar([*before, item]))
        axis += item.python_type() is not int
    if places == list(range(len(places))):
        return made
    front = tx.trace.constant(tuple(range(len(places))))
    return tx.trace.call(tx, torch.movedim, made, tx.trace.constant(tuple(places)), front)


@rule([torch.Tensor.storage_offset, torch.Tensor._is_view, torch.Tensor.is_inference,
       torch.is_inference, torch.Tensor.is_set_to], TensorVar)
def check_view(tx: Frame, *args: Var) -> Var | None:
    """What a copy answers differently."""
    for var in args:
        if isinstance(var, TensorVar):
            refuse_picked(tx.trace, var)
    return None


def refuse_picked(trace: Evaluation, var: TensorVar) -> None:
    """Errors: RestartTrace for a tensor that is a picked one, or a view of one."""
    if trace.state(Picks).made:
        storage = storage_of(var.fake)
        for made in trace.state(Picks).made:
            if made.place == storage:
                raise made.give_up()


def settle_picks(trace: Evaluation, reached: Iterable[Var]) -> None:
    """At the end of a trace. reached: what lives on. Errors: RestartTrace."""
    picks = [made for made in trace.state(Picks).made if not made.node._erased]
    if not picks:
        return
    alive = {
        storage_of(var.fake) for var in reached if isinstance(var, TensorVar) and not var.is_unread}
    for made in picks:
        written = written_after(made.node)
        if made.place in alive or made.place in written and not is_put_back(trace, made):
            raise made.give_up()
        if made.base in written and not is_used_before(made):
            raise made.give_up()
        keep_base_apart(trace, made, written - {made.base})


def keep_base_apart(trace: Evaluation, made: Pick, written: set[int]) -> None:
    """Tensors from outside may share memory: what is written must not be what was picked from."""
    if not are_outside_apart(trace, made.base, written):
        raise made.give_up()


def are_outside_apart(trace: Evaluation, base: int, others: set[int]) -> bool:
    """Whether no memory is shared by tensors from outside with this storage and those. Guarded."""
    inputs = {var: storage_of(var.fake) for var in tensor_state(trace).tensor_inputs}
    of_base = [var for var, storage in inputs.items() if storage == base]
    of_others = [var for var, storage in inputs.items() if storage in others - {base}]
    return not (of_base and of_others) or guard_apart(trace, [*of_base, *of_others])


def is_used_before(made: Pick) -> bool:
    """Whether nothing uses the copy from the first write into what it is of, unless that puts it
    back, and no backward, which eager would refuse."""
    written = False
    for node in nodes_after(made.node):
        written = written or made.base in changed_by(node)
        if node is made.back or made.place not in used_by(node):
            continue
        if written or made.place not in changed_by(node) and needs_grad(node):
            return False
    return True


def needs_grad(node: fx.Node) -> bool:
    values = node.meta.get("example_value")
    values = values if isinstance(values, (list, tuple)) else (values,)
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def is_put_back(trace: Evaluation, made: Pick) -> bool:
    """Whether the copy is written once, and put back before anybody could see the difference."""
    if made.back is None or made.made is None:
        return False
    origin = storage_of(made.made[1].as_fake())
    writes = 0
    for node in nodes_after(made.node):
        used = used_by(node)
        if node is made.back:
            break
        if changed_by(node):
            writes += 1
            if changed_by(node) != {made.place} or origin in used:
                return False
            if not are_outside_apart(trace, origin, used):
                return False
        elif writes and not shows_only(node):
            return False
    else:
        return False
    later = nodes_after(made.back)
    return writes == 1 and not any(made.place in used_by(node) for node in later)


def shows_only(node: fx.Node) -> bool:
    """Whether its result is a view of an argument, of which nothing is read."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and storage_of(value) in used_by(node)


def nodes_after(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def changed_by(node: fx.Node) -> set[int]:
    """The storages that it writes into."""
    return set(map(storage_of, node.meta.get("changed", ())))


def used_by(node: fx.Node) -> set[int]:
    """The storages of its arguments."""
    values = (given.meta.get("example_value") for given in node.all_input_nodes)
    return {storage_of(item) for value in values
            for item in (value if isinstance(value, (list, tuple)) else (value,))
            if isinstance(item, torch.Tensor)}


def written_after(node: fx.Node) -> set[int]:
    """The storages that the graph writes into behind a node."""
    return {storage for later in nodes_after(node) for storage in changed_by(later)}
