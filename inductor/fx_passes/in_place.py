"""Writes into parts of an input, in place.

In: a functional ATen graph with fakes, in which a write into a part of an input is a new tensor
(`select_scatter`, `index_put`, ..) that a `copy_` at the end brings back. Out: the same graph
(changed in place) where these tensors are the input itself: views of it, and in-place operators.

Each version of the input, and each view of one, is given the region of the input's memory where it
would lie, and the set of writes that it has seen. The graph is rewritten where everybody who reads
a version stands behind the writes that it has seen, and before all others; where the last version
has seen all writes; and where a part that is put back lies already where it is put. Otherwise
nothing is changed for this input.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher

from dynamo.aot.fakes import bytes_of, expression_of, facts_of, is_fake, storage_key
from dynamo.aot.graphs import remove_dead_code
from dynamo.base import logs
from dynamo.shapes.fake import Fake

OpOverload = torch._ops.OpOverload
aten = torch.ops.aten

# In the meta of nodes that lie in an input's memory: its name.
PLACE = "place"

# The part of its first argument that an operator replaces by its second one.
PARTS = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.as_strided_scatter.default: aten.as_strided.default,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
# Operators that write here and there, and how they do it in place.
ELEMENTS = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_reduce.default: aten.index_reduce_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.reduce: aten.scatter_.reduce,
    aten.scatter.value_reduce: aten.scatter_.value_reduce,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}
# Bytes of an input that a GPU copies in the time of one more launch.
COPIED_IN_A_LAUNCH = 4 << 20


def write_in_place(
    module: fx.GraphModule, has_kernel: Callable[[OpOverload], bool]
) -> fx.GraphModule:
    """See the top of the file. has_kernel: tells the operators that get a kernel of ours."""
    copies = module.graph.find_nodes(op="call_function", target=aten.copy_.default)
    changed = False
    for copy in copies:
        found = _find_plan(module, copy, has_kernel)
        if found is not None:
            _rewrite(module.graph, copy, found)
            changed = True
    if changed:
        remove_dead_code(module.graph)
        module.graph.lint()
        module.recompile()
    return module


class _NotInPlace(Exception):
    """Why the writes into an input are no writes in place."""


@dataclass(frozen=True, slots=True)
class _Region:
    """fake: over the memory of the input, where the value would lie; a list of them for several.
    seen: the writes that the value has seen."""

    fake: Any
    seen: frozenset[fx.Node]


@dataclass(slots=True)
class _Plan:
    """base: the input. regions: of all nodes that lie in its memory. writes: nodes that become
    writes, with the places that each is known to lie inside of. parts: where such a write
    goes, if not to its first argument. settled: nodes that write what lies there already."""

    base: fx.Node
    regions: dict[fx.Node, _Region] = field(default_factory=dict)
    writes: dict[fx.Node, set[Any]] = field(default_factory=dict)
    parts: dict[fx.Node, Any] = field(default_factory=dict)
    settled: list[fx.Node] = field(default_factory=list)

    @property
    def done(self) -> frozenset[fx.Node]:
        return frozenset(self.writes)


def _find_plan(
    module: fx.GraphModule, copy: fx.Node, has_kernel: Callable[[OpOverload], bool]
) -> _Plan | None:
    base, last = copy.args
    assert isinstance(base, fx.Node)
    versions = _versions(base, _uncopied(last))
    if base.op != "placeholder" or not versions:
        return None
    try:
        return _Planner(base, versions, has_kernel).plan(module.graph, copy)
    except _NotInPlace as refusal:
        logs.log("perf_hints").emit(f"{base.name} is copied to write a part of it: {refusal}")
        return None


def _versions(base: fx.Node, last: Any) -> set[fx.Node]:
    """The nodes that may be writes, of those that the last value is made of."""
    found: set[fx.Node] = set()
    seen: set[Any] = {base}
    work = [last]
    while work:
        node = work.pop()
        if not isinstance(node, fx.Node) or node in seen:
            continue
        seen.add(node)
        if node.target in PARTS:
            found.add(node)
            work += [node.args[0], _uncopied(node.args[1])]
        elif node.target in ELEMENTS:
            found.add(node)
            work.append(node.args[0])
        elif _is_view(node) or node.target is operator.getitem:
            work.append(node.args[0])
    return found


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def _uncopied(source: Any) -> Any:
    """What a part gets, where that is copied into the part's old value before."""
    while isinstance(source, fx.Node) and source.target is aten.copy.default:
        old, new = source.args[:2]
        given, wanted = new.meta["val"], old.meta["val"]  # type: ignore[union-attr]
        if given.dtype is not wanted.dtype or len(given.shape) != len(wanted.shape):
            break
        if _numbers(given.shape) != _numbers(wanted.shape):
            break
        source = new
    return source


def _numbers(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([expression_of(value) for value in values])


def _geometry(fake: Any) -> Any:
    """Equal for tensors of one storage with the same elements in the same order."""
    facts = facts_of(fake)
    sizes = _numbers(facts.size)
    strides = tuple([
        0 if size == 1 else step for size, step in zip(sizes, _numbers(facts.stride), strict=True)
    ])  # fmt: skip
    return facts.dtype, sizes, strides, expression_of(facts.offset)


def _has_strides(node: Any, region: _Region) -> bool:
    """Whether the functional value has the strides of its region."""
    if not is_fake(region.fake):
        return True
    return _geometry(node.meta["val"])[2] == _geometry(region.fake)[2]


def _sees_strides(target: Any) -> bool:
    """True for operators whose results depend on more than the elements."""
    if not isinstance(target, OpOverload):
        return False
    return target.namespace not in ("aten", "prims") or (
        torch.Tag.nondeterministic_seeded in target.tags
    )


class _Planner:
    def __init__(
        self, base: fx.Node, versions: set[fx.Node], has_kernel: Callable[[OpOverload], bool]
    ) -> None:
        self.found = _Plan(base)
        self.versions = versions
        self.has_kernel = has_kernel
        self.key = storage_key(base.meta["val"])

    def plan(self, graph: fx.Graph, copy: fx.Node) -> _Plan:
        found = self.found
        for node in graph.nodes:
            if node is found.base:
                found.regions[node] = _Region(node.meta["val"], frozenset())
            elif node is copy:
                self._end(node)
            elif any(given in found.regions for given in node.all_input_nodes):
                self._visit(node)
        self._check_worth()
        return found

    def _visit(self, node: fx.Node) -> None:
        region = self.found.regions.get(node.args[0]) if node.args else None  # type: ignore[arg-type]
        if region is not None and node.target is operator.getitem:
            index: Any = node.args[1]
            self.found.regions[node] = _Region(region.fake[index], region.seen)
        elif region is not None and _is_view(node):
            self._view(node, region)
        elif region is not None and node in self.versions:
            self._write(node, region)
        elif node.target is aten.copy.default:  # of the first one, nothing but its form counts
            self._read(node, [node.args[1]])  # type: ignore[list-item]
        else:
            self._read(node, node.all_input_nodes)

    def _read(self, reader: fx.Node, given: Iterable[fx.Node]) -> None:
        """The reader must stand before all writes that what it reads has not seen."""
        if reader.op == "output":
            raise _NotInPlace("it is also returned as a tensor of its own")
        for node in given:
            region = self.found.regions.get(node)
            if region is None:
                continue
            if not self.found.done <= region.seen:
                raise _NotInPlace(f"{reader.name} reads what it was before")
            if not _has_strides(node, region) and _sees_strides(reader.target):
                raise _NotInPlace(f"{reader.name} depends on other strides")

    def _view(self, node: fx.Node, region: _Region) -> None:
        if node.target is aten.as_strided.default and not _has_strides(node.args[0], region):
            raise _NotInPlace(f"{node.name} depends on other strides")
        fake = _run(node.target, region.fake, node.args[1:], node.kwargs)
        one = fake[0] if isinstance(fake, (list, tuple)) else fake
        if storage_key(one) != self.key:  # it copies
            self._read(node, node.all_input_nodes)
            return
        if one.dtype is not self.found.base.meta["val"].dtype:
            raise _NotInPlace(f"{node.name} views it as another dtype")
        if not self.has_kernel(node.target):  # type: ignore[arg-type]
            raise _NotInPlace(f"{node.target} is left to ATen")
        self.found.regions[node] = _Region(fake, region.seen)

    def _write(self, node: fx.Node, region: _Region) -> None:
        found, done = self.found, self.found.done
        rest = [given for given in node.all_input_nodes if given is not node.args[0]]
        if node.target in ELEMENTS:
            self._read(node, node.all_input_nodes)
            inside = {_geometry(region.fake)}
        else:
            view = PARTS[node.target]  # type: ignore[index]
            if view is aten.as_strided.default and not _has_strides(node.args[0], region):
                raise _NotInPlace(f"{node.name} depends on other strides")
            part = _run(view, region.fake, node.args[2:], node.kwargs)
            place = _geometry(part)
            inside = {place, _geometry(region.fake)}
            source = found.regions.get(_uncopied(node.args[1]))
            if source is not None and _geometry(source.fake) == place:
                self._settle(node, region, source, place)
                return
            self._read(node, [node.args[0], *rest])  # type: ignore[list-item]
            found.parts[node] = part
        found.writes[node] = inside
        found.regions[node] = _Region(region.fake, done | {node})

    def _settle(self, node: fx.Node, region: _Region, source: _Region, place: Any) -> None:
        """What is put into a part lies there already. The rest of the result must not have seen
        more than the first argument."""
        found = self.found
        if not found.done <= source.seen:
            raise _NotInPlace(f"{node.name} puts back what was written since")
        for write in found.done - region.seen:
            if place not in found.writes[write]:
                raise _NotInPlace(f"{node.name} puts back a part of what was written")
            found.writes[write].add(_geometry(region.fake))
        found.settled.append(node)
        found.regions[node] = _Region(region.fake, found.done)

    def _end(self, copy: fx.Node) -> None:
        base, last = copy.args
        region = self.found.regions.get(_uncopied(last))
        if region is None or _geometry(region.fake) != _geometry(base.meta["val"]):  # type: ignore[union-attr]
            raise _NotInPlace("all of it is written in the end")
        if region.seen != self.found.done:
            raise _NotInPlace("some writes are none of its last value")

    def _check_worth(self) -> None:
        """On a GPU one kernel that copies a small tensor is faster than several that write it."""
        fake = self.found.base.meta["val"]
        extra = len(self.found.writes) - 1
        if fake.device.type == "cpu" or any(w.target in ELEMENTS for w in self.found.writes):
            return
        if extra > 0 and bytes_of(fake) <= extra * COPIED_IN_A_LAUNCH:
            raise _NotInPlace("a copy of it costs less than a kernel for each write")

def _run(target: Any, fake: Any, rest: Any = (), options: Any = None) -> Any:
    """An operation on a fake, without new assumptions about its sizes."""
    rest = fx.map_arg(tuple(rest), lambda node: node.meta["val"])
    options = fx.map_arg(dict(options or {}), lambda node: node.meta["val"])
    try:
        with torch.no_grad():
            if type(fake) is Fake:
                return fake.world.run(target, fake, *rest, **options)
            known = len(fake.fake_mode.shape_env.guards)
            with fake.fake_mode, enable_python_dispatcher():
                result = target(fake, *rest, **options)
    except (RuntimeError, ValueError, IndexError) as error:
        raise _NotInPlace(f"{target}: {error}") from error
    if len(fake.fake_mode.shape_env.guards) != known:
        raise _NotInPlace(f"{target} depends on sizes")
    return result


def _rewrite(graph: fx.Graph, copy: fx.Node, found: _Plan) -> None:
    name = found.base.name
    for node, region in found.regions.items():
        node.meta.update({PLACE: name, "val": region.fake})
    settled = set(found.settled)
    for node in found.regions:
        if node in found.writes:
            with graph.inserting_before(node):
                _put_write(graph, node, found)
        if node in found.writes or node in settled:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    graph.erase_node(copy)
    for node in reversed([*found.writes, *settled]):
        if not node.users:
            graph.erase_node(node)


def _put_write(graph: fx.Graph, node: fx.Node, found: _Plan) -> None:
    """The write itself. What it reads of the input's memory is copied before."""
    whole, *rest = node.args
    part = found.parts.get(node)

    def apart(given: fx.Node) -> fx.Node:
        if PLACE not in given.meta or given.meta[PLACE] != found.base.name:
            return given
        clone = graph.call_function(aten.clone.default, (given,))
        clone.meta = {"val": _run(aten.clone.default, given.meta["val"])}
        return clone

    if part is None:
        given, options = fx.map_arg((tuple(rest), dict(node.kwargs)), apart)
        write = graph.call_function(ELEMENTS[node.target], (whole, *given), options)  # type: ignore[index]
        goal = whole
    else:
        source, *where = rest
        goal = graph.call_function(PARTS[node.target], (whole, *where), dict(node.kwargs))  # type: ignore[index]
        goal.meta = {**node.meta, "val": part, PLACE: found.base.name}
        write = graph.call_function(aten.copy_.default, (goal, fx.map_arg(source, apart)))
    write.meta = {**node.meta, "val": goal.meta["val"], PLACE: found.base.name}  # type: ignore[union-attr]
