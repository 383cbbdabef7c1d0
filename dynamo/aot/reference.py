"""The reference run: the program over fake tensors as eager runs it, mutations and all.

In: the captured module and its example inputs. Out: a `Reference`, which knows eager's metadata of
every value, what the outputs share, and what a functional recording is checked against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo.aot.fakes import facts_of, hint_of, is_fake, storage_key
from dynamo.aot.overlap import overlap, overlaps_itself
from dynamo.aot.program import Observer, run_program
from dynamo.aot.records import OutputForm, Place, SymbolTable, Unsupported, Within
from dynamo.aot.spent import spent_outputs
from dynamo.base.errors import Signal
from dynamo.base.ragged_sizes import is_jagged, said_by
from dynamo.graph_operators.cuts import has_cuts
from dynamo.graph_operators.gradients import has_gradients
from dynamo.shapes.facts import Facts
from dynamo.shapes.fake import Fake, FakeWorld

aten = torch.ops.aten


class ReferenceWorld(FakeWorld):
    """A world that notes what functionalization loses: `x.bernoulli_(p)` keeps the strides of x and
    draws in the order of memory, `torch.bernoulli(x, p)` is contiguous; one functional operation
    stands for both.
    """

    is_symbolic = False
    around: Any = None  # see `run_program`
    shared: frozenset[int] = frozenset()  # inputs whose sharing of storages the fakes don't show

    def __init__(self) -> None:
        super().__init__()
        self.bernoulli: list[bool] = []
        self.places: Mapping[Any, Place] = {}  # static sizes have no symbols

    def input(self, index: int, example: Any) -> Any:
        """What stands for the index-th input: a Fake, or the number itself."""
        if isinstance(example, torch.Tensor):
            return self.from_real(example)
        if example is None or isinstance(example, (int, float, bool, str)):
            return example
        raise Unsupported(f"an input is a {type(example).__name__}")

    def in_python(self) -> AbstractContextManager[None]:
        """Inside, operations that are made of others are taken apart as this world needs it."""
        return nullcontext()

    def table(self) -> SymbolTable | None:
        """The symbols and what was assumed of them; None for static sizes."""
        return None

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if may_write(func):
            check_write(func, args, kwargs)
        if func is aten.as_strided.default:
            check_reach(facts_of(args[0]), *args[1:], **kwargs)
        in_place = BERNOULLI.get(func)
        if in_place is not None:
            self.bernoulli.append(in_place)
        result = super().dispatch(func, args, kwargs)
        note_view(func, args, result)
        return result


def note_view(func: Any, args: tuple[Any, ...], result: Any) -> None:
    """Marks views of which a write can't be carried over to their base; see `UNWRITABLE`."""
    if not args or not is_fake(args[0]):
        return
    if func in UNWRITABLE or UNWRITTEN in args[0].__dict__:
        for item in result if isinstance(result, (list, tuple)) else (result,):
            if is_fake(item) and storage_key(item) == storage_key(args[0]):
                item.__dict__[UNWRITTEN] = True


def may_write(func: Any) -> bool:
    """True for an operator that writes into its arguments."""
    return func._schema.is_mutable or func in BATCH_NORMS


def check_write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises Unsupported where elements that are written are also read, or written twice."""
    if func in BATCH_NORMS:
        if args[5]:  # in training
            _check_written(func, [*filter(is_fake, args[3:5])], [*filter(is_fake, args[:3])], False)
        return
    written: list[Fake] = []
    read: list[Fake] = []
    for at, argument in enumerate(func._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if is_fake(item):
                (written if writes else read).append(item)
    own = func.namespace in ("aten", "prim", "prims")  # whose kernels may be given one twice
    _check_written(func, written, read, own)


def _check_written(func: Any, written: list[Fake], read: list[Fake], own: bool) -> None:
    """The same. own: the operation may be given one tensor twice."""
    for number, target in enumerate(written):
        if UNWRITTEN in target.__dict__:
            raise Unsupported(f"{func} writes into a view by expand or unfold")
        if overlaps_itself(facts_of(target)):
            raise Unsupported(f"{func} writes elements twice")
        for other in (*written[:number], *read):
            if (own and other is target) or storage_key(other) != storage_key(target):
                continue
            mine, theirs = facts_of(target), facts_of(other)
            if not (own and theirs is mine and number == 0) and overlap(mine, theirs):
                raise Unsupported(f"{func} reads what it writes")


def check_reach(facts: Facts, size: Any, stride: Any, storage_offset: Any = None) -> None:
    """Raises Unsupported where `as_strided` reaches elements of the storage that its tensor has
    not: functional graphs know tensors, no storages."""
    if 0 in size:
        return
    start, stop = _reach(facts.size, facts.stride, facts.offset) if facts.numel() else (0, 0)
    first, last = _reach(size, stride, facts.offset if storage_offset is None else storage_offset)
    if stop - start != facts.numel() or first < start or last > stop:
        raise Unsupported("as_strided reaches elements of the storage that its tensor has not")


def _reach(size: Any, stride: Any, offset: Any) -> tuple[Any, Any]:
    """The first element of the storage that a tensor may touch, and the one behind the last."""
    return offset, offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1


# Functionalization adds to the base of an expanded view by how much the view has changed, which is
# NaN for infinities and rounds, and zeroes what no window of `unfold` holds.
UNWRITABLE = frozenset((aten.expand.default, aten.unfold.default))
# What they make is no view for functionalization, though it lies in the memory of their argument.
UNSAFE = ("unsafe_split", "unsafe_chunk")
UNWRITTEN = "view without an exact inverse"
# In training they write the running statistics, which their schemas do not tell.
BATCH_NORMS = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default)
BERNOULLI = {aten.bernoulli_.float: True, aten.bernoulli.p: False}


@dataclass(frozen=True, slots=True)
class Reference:
    """What eager does.

    inputs: a Fake, or the number itself, for each example input. outputs: flat; fakes or plain
    values. metadata: of arguments and results of each node (see `metadata_of`). constants: the
    fakes of the module's tensor attributes with the real ones. bernoulli: for each draw of
    `bernoulli_(p)` or `bernoulli(p)`, whether it was the first (see `ReferenceWorld`). grads: which
    inputs require grad before the program. histories: which ones it gives another `grad_fn`.
    inference: storages of tensors that are made in an inference mode. written: for each input,
    whether a version counter tells that it was written; `x.data.zero_()` moves none. spent: outputs
    of which a backward of the program itself has freed what their own needs. cut_off: outputs that
    view a view of no-grad mode, and that view. inference_views: the ids of such views that an
    inference mode of the program has made. within: see `AtenGraph`.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    form: OutputForm
    metadata: dict[fx.Node, tuple[Any, Any]]
    constants: tuple[tuple[Fake, torch.Tensor], ...]
    bernoulli: tuple[bool, ...]
    grads: tuple[bool, ...]
    histories: tuple[bool, ...]
    inference: frozenset[int]
    written: tuple[bool, ...]
    spent: frozenset[int]
    cut_off: Mapping[int, Fake]
    inference_views: frozenset[int]
    within: tuple[Within, ...] = ()


def metadata_of(value: Any) -> Any:
    """What must be equal between two runs of a program: sizes, strides, dtypes and plain values."""
    if is_jagged(value):  # each run has ragged sizes of its own
        return [metadata_of(value._values), metadata_of(value._offsets), list(said_by(value))]
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return [metadata_of(item) for item in value]
    if isinstance(value, dict):
        return [metadata_of(item) for item in value.values()]
    return value if isinstance(value, (int, float, bool, str)) else None


class _CutOffViews:
    """Views that no-grad mode made of what requires grad. They say that they require grad, too, but
    none comes to them or their base: grad mode reads them as if they were detached.
    """

    def __init__(self) -> None:
        self._made: dict[int, Fake] = {}
        self._read: dict[int, tuple[Fake, int]] = {}  # in grad mode; with their versions then
        self._above: dict[int, tuple[Fake, Fake]] = {}  # views that grad mode made of those
        self._sources: list[tuple[Fake, Fake]] = []  # such, of what the node takes that runs
        self.inference: set[int] = set()  # those that an inference mode has made

    def before(self, node: fx.Node, arguments: Any) -> None:
        """What grad mode reads. Errors: Unsupported for what changes a view in place."""
        if not self._made or not torch.is_grad_enabled():
            return
        leaves = pytree.tree_leaves(arguments)
        views = [x for x in leaves if id(x) in self._made]
        name = str(getattr(node.target, "__name__", node.target))
        if views and name.endswith("_") and not name.endswith("__"):
            raise Unsupported(f"{name} of a view that was made in no-grad mode")
        for view in views:
            self._read.setdefault(id(view), (view, view._version))
        self._sources = [*((x, x) for x in views),
                         *(self._above[id(x)] for x in leaves if id(x) in self._above)]

    def after(self, made: Fake, inference: bool) -> None:
        """A result, which may be such a view or above one. inference: of an inference mode."""
        if not made.requires_grad or not made._is_view():
            return
        if not torch.is_grad_enabled():
            self._made[id(made)] = made
            if inference:
                self.inference.add(id(made))
            return
        for _, source in self._sources:
            if storage_key(made) == storage_key(source):
                self._above[id(made)] = (made, source)

    def above(self, outputs: list[Any]) -> dict[int, Fake]:
        """The outputs that view such a view in grad mode, by their ids, with that view: made again
        of the base, the gradient would go there.

        Errors: Unsupported where backward would tell that one was written after it was saved."""
        if any(view._version != version for view, version in self._read.values()):
            raise Unsupported("a view that was made in no-grad mode is written after it is used")
        return {id(out): self._above[id(out)][1] for out in outputs if id(out) in self._above}


class _Collector(Observer):
    def __init__(self) -> None:
        self.metadata: dict[fx.Node, tuple[Any, Any]] = {}
        self.storages: dict[int, bool] = {}
        self._arguments: Any = None
        self._versions: list[tuple[Any, int]] = []  # of inference tensors outside of their mode
        self.cut_off = _CutOffViews()
        self._apart: set[int] = set()  # storages of which `unsafe_split` has made parts
        self._parts: list[tuple[Any, int]] = []  # their versions before a node

    def before(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        self._arguments = metadata_of((*args, *kwargs.values()) if kwargs else args)
        self._versions = []
        if self._apart:
            shares = (x for x in filter(is_fake, pytree.tree_leaves((args, kwargs)))
                      if storage_key(x) in self._apart)
            self._parts = [(x, x._version) for x in shares]
        self.cut_off.before(node, (args, kwargs))
        if not self.inference and True in self.storages.values():
            given = filter(is_fake, pytree.tree_leaves((args, kwargs)))
            made_there = (x for x in given if self.storages.get(storage_key(x)))
            self._versions = [(x, x._version) for x in made_there]

    def after(self, node: fx.Node, value: Any) -> None:
        if any(x._version != version for x, version in self._versions):
            raise Unsupported("an inference tensor is written outside of its mode")
        if any(x._version != version for x, version in self._parts):
            raise Unsupported("writes where unsafe_split or unsafe_chunk has made parts")
        if str(getattr(node.target, "__name__", node.target)).startswith(UNSAFE):
            self._apart.update(map(storage_key, value))
        self.metadata[node] = (self._arguments, metadata_of(value))
        for fake in value if isinstance(value, (tuple, list)) else (value,):
            if is_fake(fake):
                self.cut_off.after(fake, self.inference)
                self.storages.setdefault(storage_key(fake), self.inference)


    @contextmanager
    def watching_saved(self, gm: fx.GraphModule) -> Iterator[None]:
        """Inside, Unsupported for what an inference mode of the program has made and autograd
        saves: eager raises there."""
        if not any(node.args[:1] == ("inference_mode",) for node in gm.graph.nodes):
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._check_saved, lambda value: value):
            yield

    def _check_saved(self, value: torch.Tensor) -> torch.Tensor:
        if is_fake(value) and self.storages.get(storage_key(value)):
            raise Unsupported("an inference tensor is saved for backward, which eager refuses")
        return value


def run_reference(world: Any, gm: fx.GraphModule, examples: list[Any]) -> Reference:
    """Runs the program once over fakes of a `ReferenceWorld` of either kind.

    Errors: Unsupported, and what eager raises.
    """
    if has_cuts(gm):
        raise Unsupported("an operation needs the program's own tensors")
    inputs = [world.input(index, example) for index, example in enumerate(examples)]
    facts = [_facts(item) for item in inputs]
    histories = [item.grad_fn if is_fake(item) else None for item in inputs]
    grads = tuple(is_fake(item) and item.requires_grad for item in inputs)
    versions = [item._version if is_fake(item) else 0 for item in inputs]
    constants: dict[int, tuple[Fake, torch.Tensor]] = {}
    collector = _Collector()
    collector.storages = {storage_key(item): False for item in inputs if is_fake(item)}

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        fake = world.from_real(tensor)
        constants[id(fake)] = (fake, tensor)
        collector.storages[storage_key(fake)] = False
        return fake

    with world, collector.watching_saved(gm):
        result = run_program(gm, inputs, leaf, collector, world.around)
    draws = tuple(world.bernoulli)
    outputs, form = _flatten(result)
    cut_off = collector.cut_off.above(outputs)
    with world:
        spent = spent_outputs(outputs) if has_gradients(gm) else frozenset()
    if any(_changed(*pair) for pair in zip(facts, map(_facts, inputs), strict=True)):
        raise Unsupported("the metadata of an input changes")
    if any(was and not item.requires_grad for was, item in zip(grads, inputs, strict=True)):
        raise Unsupported("an input is detached in place")
    if any(fake._version for fake, _ in constants.values()):
        raise Unsupported("a tensor attribute of the graph is mutated")
    return Reference(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        form=form,
        metadata=collector.metadata,
        constants=tuple(constants.values()),
        bernoulli=draws,
        grads=grads,
        histories=tuple(
            is_fake(item) and item.grad_fn is not history
            for item, history in zip(inputs, histories, strict=True)
        ),
        inference=frozenset(key for key, inside in collector.storages.items() if inside),
        written=tuple(
            is_fake(item) and item._version != version
            for item, version in zip(inputs, versions, strict=True)
        ),
        spent=spent,
        cut_off=cut_off,
        inference_views=frozenset(collector.cut_off.inference),
    )


def check_example(reference: Reference, gm: fx.GraphModule, examples: list[Any]) -> None:
    """Raises Unsupported where a run with symbolic sizes gives other sizes or strides than one with
    the examples' own: it runs torch's meta kernels, which are not exact (broadcasts)."""
    world = ReferenceWorld()
    try:
        static = run_reference(world, gm, examples)
    except (Unsupported, Signal, RuntimeError):
        return  # a probe of one element may divide by a size that is zero
    finally:
        world.forget_reals()
    for node, (_, value) in reference.metadata.items():
        if not _agree(value, static.metadata[node][1]):
            raise Unsupported(f"{node.name} has other strides with symbolic sizes")


def _agree(symbolic: Any, static: Any) -> bool:
    """Whether this metadata of a symbolic run stands for that of a static one."""
    if type(symbolic) is list and type(static) is list:
        return len(symbolic) == len(static) and all(map(_agree, symbolic, static))
    if type(symbolic) is not tuple or type(static) is not tuple:
        return True
    size, stride, dtype = symbolic
    hints = tuple(map(hint_of, size))
    if (hints, dtype) != (tuple(static[0]), static[2]):
        return False
    if 0 in hints:
        return True
    return all(n == 1 or hint_of(a) == b for n, a, b in zip(hints, stride, static[1], strict=True))


def _facts(value: Any) -> Facts | None:
    return facts_of(value) if is_fake(value) else None


def _changed(before: Facts | None, after: Facts | None) -> bool:
    if before is None or after is None or before is after:
        return before is not after
    return (before.size, before.stride, before.offset, before.bits) != (
        after.size, after.stride, after.offset, after.bits,
    )  # fmt: skip


def _flatten(result: Any) -> tuple[list[Any], OutputForm]:
    if type(result) in (tuple, list) and not any(
        isinstance(item, (tuple, list, dict)) for item in result
    ):
        return list(result), OutputForm(type(result))
    flat, spec = pytree.tree_flatten(result)
    return flat, OutputForm(None, spec)
