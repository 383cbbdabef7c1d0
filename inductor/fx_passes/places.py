"""Where the versions of a tensor that is written would lie in its memory.

In: a functional ATen graph with fakes, and a node whose memory may be written. Out: a `Plan`, or
`NotInPlace`. Each version of that tensor, and each view of one, is given the region of the memory
where it would lie, and the set of writes that it has seen. A plan is sound where everybody who
reads a version stands behind the writes that it has seen, and before all others; where the last
version has seen all writes; and where a part that is put back lies already where it is put.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, facts_of, is_fake, is_static, storage_key
from dynamo.aot.overlap import overlaps_itself
from dynamo.shapes.fake import Fake
from inductor.fx_passes.fakes import fake_runner, on_gpu

OpOverload = torch._ops.OpOverload
aten = torch.ops.aten

# In the meta of nodes that lie in the memory of another one, or in their own: its name.
PLACE = "place"

# The part of its first argument that an operator replaces by its second one.
PARTS = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.as_strided_scatter.default: aten.as_strided.default,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
# Elements for each that is added, where all of them are converted, so that half precision is added
# up in float32 on a GPU (`inductor/lowering/scatter.py`).
MOST_UNTOUCHED = 64
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
# GEMMs that add to their first argument, where that is a tensor as large as the result: into memory
# of its own the library copies it first.
SUMS = {
    aten.addmm.default: aten.addmm_.default,
    aten.baddbmm.default: aten.baddbmm_.default,
}
WRITTEN_AT_ONCE = ELEMENTS | SUMS  # the whole tensor
# Views that may show an element more than once.
REPEATS = (aten.expand.default, aten.unfold.default, aten.as_strided.default)


class NotInPlace(Exception):
    """Why the writes into a tensor are no writes in place. seen: the writes that a version has seen
    which is wanted after others."""

    def __init__(self, reason: str, seen: frozenset[fx.Node] | None = None) -> None:
        super().__init__(reason)
        self.seen = seen


@dataclass(frozen=True, slots=True)
class Region:
    """fake: over the memory of the base, where the value would lie; a list of them for several.
    seen: the writes that the value has seen. repeats: an element may stand there several times,
    which a write would change all."""

    fake: Any
    seen: frozenset[fx.Node]
    repeats: bool = False


@dataclass(slots=True)
class Plan:
    """base: whose memory is written. regions: of all nodes that lie in it. writes: nodes that
    become writes, with the places that each is known to lie inside of. parts: where such a write
    goes, if not to its first argument. settled: nodes that write what lies there already.
    wanted: for everybody else who reads a version, the writes that it has seen."""

    base: fx.Node
    regions: dict[fx.Node, Region] = field(default_factory=dict)
    writes: dict[fx.Node, set[Any]] = field(default_factory=dict)
    parts: dict[fx.Node, Any] = field(default_factory=dict)
    settled: list[fx.Node] = field(default_factory=list)
    wanted: set[frozenset[fx.Node]] = field(default_factory=set)

    @property
    def done(self) -> frozenset[fx.Node]:
        return frozenset(self.writes)


def versions_of(base: fx.Node, last: Any) -> set[fx.Node]:
    """The nodes that may be writes, of those that the last value is made of."""
    found: set[fx.Node] = set()
    seen: set[Any] = {base}
    work = [last]
    while work:
        node = work.pop()
        if not isinstance(node, fx.Node) or node in seen:
            continue
        seen.add(node)
        if is_write(node):
            found.add(node)
        if node.target in PARTS:
            work.append(uncopied(node.args[1]))
        if is_write(node) or is_view(node):
            work.append(node.args[0])
    return found


def is_write(node: fx.Node) -> bool:
    """Whether its result is its first argument, of which something is replaced."""
    if node.target in SUMS:
        return _adds_to_whole(node)
    return node.target in PARTS or node.target in ELEMENTS


def _adds_to_whole(node: fx.Node) -> bool:
    """Of GEMMs on a GPU; on a CPU they have kernels that read what they add to."""
    given: Any = node.args[0]
    if not is_fake(given.meta.get("val")) or not is_fake(node.meta.get("val")):
        return False
    old, new = facts_of(given.meta["val"]), facts_of(node.meta["val"])
    alike = old.dtype is new.dtype and old.device == new.device
    return alike and on_gpu(new.device) and _numbers(old.size) == _numbers(new.size)


def is_view(node: fx.Node) -> bool:
    """Whether it shows its first argument, or an item of what shows it."""
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    return isinstance(node.target, OpOverload) and node.target.is_view


def base_of(node: Any) -> fx.Node:
    """What it is a view of, or a view of a view; itself if it is none."""
    while is_view(node):
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def device_kind(node: fx.Node) -> str:
    """Empty where it is no tensor."""
    value: Any = node.meta.get("val")
    return str(value.device.type) if hasattr(value, "device") else ""


def uncopied(source: Any) -> Any:
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


def geometry(fake: Any) -> Any:
    """Equal for tensors of one storage with the same elements in the same order."""
    facts = facts_of(fake)
    sizes = _numbers(facts.size)
    strides = tuple([
        0 if size == 1 else step for size, step in zip(sizes, _numbers(facts.stride), strict=True)
    ])  # fmt: skip
    return facts.dtype, sizes, strides, expression_of(facts.offset)


def _is_within(node: fx.Node) -> bool:
    """Whether the part surely lies inside of its tensor: views by an index are not checked any
    more, the operators that replace a part are."""
    whole = node.args[0].meta["val"]  # type: ignore[union-attr]
    if all(type(size) is int for size in whole.shape):
        return True  # fakes raise
    if node.target is aten.as_strided_scatter.default:
        return False
    if node.target is not aten.select_scatter.default:
        return True  # slices and diagonals end where the tensor ends
    # sympy takes long to import, and graphs without symbolic sizes need none of it
    from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_and

    dim, index = fx.map_arg(node.args[2:4], lambda given: given.meta["val"])  # type: ignore[misc]
    size = whole.shape[dim]
    return statically_known_true(sym_and(-size <= index, index < size))


def _repeats(fake: Any, target: Any = None, whole: Region | None = None) -> bool:
    """Whether a tensor may show an element of its memory more than once. target: the operator that
    views a region so."""
    facts = facts_of(fake)
    if is_static(facts):
        return overlaps_itself(facts)
    return target in REPEATS or (whole is not None and whole.repeats)


def _has_strides(node: Any, region: Region) -> bool:
    """Whether the functional value has the strides of its region."""
    if not is_fake(region.fake):
        return True
    return geometry(node.meta["val"])[2] == geometry(region.fake)[2]


def _sees_strides(target: Any) -> bool:
    """True for operators whose results depend on more than the elements."""
    if not isinstance(target, OpOverload):
        return False
    return target.namespace not in ("aten", "prims") or (
        torch.Tag.nondeterministic_seeded in target.tags
    )


class Planner:
    def __init__(
        self, base: fx.Node, versions: set[fx.Node], has_kernel: Callable[[OpOverload], bool]
    ) -> None:
        self.draft = Plan(base)
        self.versions = versions
        self.has_kernel = has_kernel
        self.key = storage_key(base.meta["val"])

    def plan(self, copy: fx.Node | None) -> Plan:
        """copy: what brings the last value back into an input; None for other bases."""
        base, regions = self.draft.base, self.draft.regions
        fake = base.meta["val"]
        regions[base] = Region(fake, frozenset(), _repeats(fake))
        work, seen = list(base.users), set(base.users)
        heapq.heapify(work)  # in the order of the graph
        while work:
            node = heapq.heappop(work)
            if node is copy:
                self._end(node)
            else:
                self._visit(node)
            if node in regions:
                for user in node.users:
                    if user not in seen:
                        seen.add(user)
                        heapq.heappush(work, user)
        return self.draft

    def _visit(self, node: fx.Node) -> None:
        region = self.draft.regions.get(node.args[0]) if node.args else None  # type: ignore[arg-type]
        if region is not None and node.target is operator.getitem:
            index: Any = node.args[1]
            fake = region.fake[index]
            repeats = _repeats(fake, node.args[0].target, region)  # type: ignore[union-attr]
            self.draft.regions[node] = Region(fake, region.seen, repeats)
        elif region is not None and is_view(node):
            self._view(node, region)
        elif region is not None and node in self.versions:
            self._write(node, region)
        elif node.target is aten.copy.default:  # of the first one, nothing but its form counts
            self._read(node, [node.args[1]])  # type: ignore[list-item]
        else:
            self._read(node, node.all_input_nodes)

    def _read(self, reader: fx.Node, given: Iterable[fx.Node]) -> None:
        """The reader must stand before all writes that what it reads has not seen."""
        if reader.op == "output" and self.draft.base.op == "placeholder":
            raise NotInPlace("it is also returned as a tensor of its own")
        for node in given:
            region = self.draft.regions.get(node)
            if region is not None:
                self._check(reader, node, region)
                self.draft.wanted.add(region.seen)

    def _check(self, reader: fx.Node, node: fx.Node, region: Region) -> None:
        if not self.draft.done <= region.seen:
            raise NotInPlace(f"{reader.name} reads what it was before", region.seen)
        exact = self.draft.base.op != "placeholder" or _sees_strides(reader.target)
        if exact and not _has_strides(node, region):
            raise NotInPlace(f"{reader.name} depends on other strides")

    def _view(self, node: fx.Node, region: Region) -> None:
        if node.target is aten.as_strided.default and not _has_strides(node.args[0], region):
            raise NotInPlace(f"{node.name} depends on other strides")
        fake = run_on_fake(node.target, region.fake, node.args[1:], node.kwargs)
        one = fake[0] if isinstance(fake, (list, tuple)) else fake
        if storage_key(one) != self.key:  # it copies
            self._read(node, node.all_input_nodes)
            return
        if one.dtype is not self.draft.base.meta["val"].dtype:
            raise NotInPlace(f"{node.name} views it as another dtype")
        if not self.has_kernel(node.target):  # type: ignore[arg-type]
            raise NotInPlace(f"{node.target} falls back to ATen")
        self.draft.regions[node] = Region(fake, region.seen, _repeats(one, node.target, region))

    def _write(self, node: fx.Node, region: Region) -> None:
        plan, done = self.draft, self.draft.done
        if region.repeats:
            raise NotInPlace(f"{node.name} writes what is shown in several places")
        rest = [given for given in node.all_input_nodes if given is not node.args[0]]
        factors = node.args[1:3] if node.target in SUMS else ()
        if any(given in plan.regions for given in factors):
            raise NotInPlace(f"{node.name} adds a product of what it writes")
        if node.target in WRITTEN_AT_ONCE:
            inside = {geometry(region.fake)}
        else:
            view = PARTS[node.target]  # type: ignore[index]
            if view is aten.as_strided.default and not _has_strides(node.args[0], region):
                raise NotInPlace(f"{node.name} depends on other strides")
            if not _is_within(node):
                raise NotInPlace(f"{node.name} may lie outside")
            part = run_on_fake(view, region.fake, node.args[2:], node.kwargs)
            if _numbers(part.shape) != _numbers(node.args[1].meta["val"].shape):  # type: ignore[union-attr]
                raise NotInPlace(f"{node.name} gets a source of another size")
            if _repeats(part):
                raise NotInPlace(f"{node.name} replaces some elements twice")
            place = geometry(part)
            inside = {place, geometry(region.fake)}
            source = plan.regions.get(uncopied(node.args[1]))
            if source is not None and geometry(source.fake) == place:
                self._settle(node, region, source, place)
                return
            plan.parts[node] = part
        self._check(node, node.args[0], region)  # type: ignore[arg-type]
        self._read(node, rest)
        plan.writes[node] = inside
        plan.regions[node] = Region(region.fake, done | {node})

    def _settle(self, node: fx.Node, region: Region, source: Region, place: Any) -> None:
        """What is put into a part lies there already. The rest of the result must not have seen
        more than the first argument."""
        plan = self.draft
        if not plan.done <= source.seen:
            raise NotInPlace(f"{node.name} puts back what was written since")
        for write in plan.done - region.seen:
            if place not in plan.writes[write]:
                raise NotInPlace(f"{node.name} puts back a part of what was written")
            plan.writes[write].add(geometry(region.fake))
        plan.settled.append(node)
        plan.regions[node] = Region(region.fake, plan.done)

    def _end(self, copy: fx.Node) -> None:
        base, last = copy.args
        region = self.draft.regions.get(uncopied(last))
        if region is None or geometry(region.fake) != geometry(base.meta["val"]):  # type: ignore[union-attr]
            raise NotInPlace("all of it is written in the end")
        if region.seen != self.draft.done:
            raise NotInPlace("some writes are none of its last value")


def run_on_fake(target: Any, fake: Any, rest: Any = (), options: Any = None) -> Any:
    """An operation on a fake, without new assumptions about its sizes."""
    rest = fx.map_arg(tuple(rest), lambda node: node.meta["val"])
    options = fx.map_arg(dict(options or {}), lambda node: node.meta["val"])
    guards = [] if type(fake) is Fake else fake.fake_mode.shape_env.guards
    known = len(guards)
    try:
        result = fake_runner(fake)(target, fake, *rest, **options)
    except (RuntimeError, ValueError, IndexError) as error:
        raise NotInPlace(f"{target}: {error}") from error
    if len(guards) != known:
        raise NotInPlace(f"{target} depends on sizes")
    return result


