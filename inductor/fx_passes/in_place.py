"""Writes into parts of tensors, in place.

In: a functional ATen graph with fakes, in which a write into a part of a tensor is a new tensor
(`select_scatter`, `index_put`, ..). Out: the same graph (changed in place) where such tensors are
the written one itself: views of it, and in-place operators. Written are

- inputs, where a `copy_` at the end brings the last version back;
- what the graph makes, where several versions follow one another. Where an old one is wanted later,
  or its memory is somebody else's, it is copied once and the copy is written.

`places` says where that is sound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, elements_of, is_fake
from dynamo.aot.graphs import remove_dead_code
from dynamo.base import logs
from inductor.fx_passes.places import (
    MOST_UNTOUCHED,
    PARTS,
    PLACE,
    WRITTEN_AT_ONCE,
    NotInPlace,
    OpOverload,
    Plan,
    Planner,
    base_of,
    is_view,
    is_write,
    run_on_fake,
    uncopied,
    versions_of,
)
from inductor.runtime.gpu_properties import properties_of

aten = torch.ops.aten
HasKernel = Callable[[OpOverload], bool]

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Operators that give their argument's memory, which their schema does not tell.
SHOWS = (aten._unsafe_view.default,)
# Operators that add, and which of their arguments.
ADDITIONS: dict[Any, int] = {
    aten.scatter_add.default: 3, aten.index_add.default: 3, aten.index_put.default: 2,
}
HALVES = (torch.float16, torch.bfloat16)
LOOPS = (aten.select_scatter.default, aten.slice_scatter.default)

# Bytes of a tensor that the GPU measured, or a CPU, copies in the time of one more kernel.
COPIED_IN_A_LAUNCH = 4 << 20
COPIED_IN_A_CALL = 2 << 10
# So many replaced parts double the time of the loop that computes them with the tensor; it grows
# with their square.
PARTS_OF_A_PASS_ON_GPU = 16.0
PARTS_OF_A_PASS_ON_CPU = 5.5


def write_in_place(module: fx.GraphModule, has_kernel: HasKernel) -> fx.GraphModule:
    """See the top of the file. has_kernel: tells the operators that get a kernel of ours."""
    graph = module.graph
    changed = False
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        changed |= _write_input(graph, copy, has_kernel)
    for last in list(_last_versions(graph)):
        changed |= _write_made(graph, last, has_kernel)
    if changed:
        remove_dead_code(graph)
        graph.lint()
        module.recompile()
    return module


def _write_input(graph: fx.Graph, copy: fx.Node, has_kernel: HasKernel) -> bool:
    base, last = copy.args
    assert isinstance(base, fx.Node)
    versions = versions_of(base, uncopied(last))
    if base.op != "placeholder" or not versions:
        return False
    try:
        found = Planner(base, versions, has_kernel).plan(copy)
        _check_launches(found)
    except NotInPlace as refusal:
        logs.log("perf_hints").emit(f"{base.name} is copied to write a part of it: {refusal}")
        return False
    _rewrite(graph, found)
    graph.erase_node(copy)
    return True


def _check_launches(plan: Plan) -> None:
    """On a GPU one kernel that copies a small tensor is faster than several that write it."""
    fake = plan.base.meta["val"]
    extra = len(plan.writes) - 1
    if fake.device.type == "cpu" or any(write.target in WRITTEN_AT_ONCE for write in plan.writes):
        return
    if extra > 0 and bytes_of(fake) <= extra * _copied_in_a_launch(fake.device):
        raise NotInPlace("a copy of it costs less than a kernel for each write")


# -- what the graph makes ---------------------------------------------------------------------


def _last_versions(graph: fx.Graph) -> list[fx.Node]:
    """The writes that no other one of the same tensor follows."""
    writes = [node for node in graph.nodes if is_write(node)]
    followed = {base_of(write.args[0]) for write in writes}
    roots: dict[fx.Node, fx.Node] = {}
    for write in writes:
        part = uncopied(write.args[1]) if write.target in PARTS else None
        if isinstance(part, fx.Node) and is_write(part):
            if _root(part, roots) is _root(write, roots):
                followed.add(part)
    return [write for write in writes if write not in followed]


def _root(node: fx.Node, known: dict[fx.Node, fx.Node]) -> fx.Node:
    """What the first version of a tensor is, or is a part of."""
    path = []
    while node not in known and (is_write(node) or is_view(node)):
        path.append(node)
        node = node.args[0]  # type: ignore[assignment]
    root = known.get(node, node)
    known.update(dict.fromkeys(path, root))
    return root


def _write_made(graph: fx.Graph, last: fx.Node, has_kernel: HasKernel) -> bool:
    """Whether some of the versions that end in this one are written in place now."""
    changed = False
    writes = _writes_until(last)
    if all(map(_adds_in_float32, writes)):
        return False
    pending = [(writes, False)]
    while pending:
        chain, copied = pending.pop()
        given: Any = chain[0].args[0]
        base: Any = base_of(given)
        copied = copied or not is_made(base)
        base = _copy_of(graph, chain[0]) if copied else base
        if base is None:
            continue
        planner = Planner(base, versions_of(base, chain[-1]), has_kernel)
        try:
            found = planner.plan(None)
            _check_worth(found, copied, has_kernel)
        except NotInPlace as refusal:
            if copied:
                chain[0].replace_input_with(base, given)
                graph.erase_node(base)
            at = _first_behind(chain, planner.draft, refusal.seen)
            if at is not None and (at > 0 or not copied):
                pending.append((chain[at:], True))
                if at:
                    pending.append((chain[:at], copied))
        else:
            _rewrite(graph, found)
            changed = True
    return changed


def _adds_in_float32(write: fx.Node) -> bool:
    """Whether a tensor of half precision is made anew in any case, in float32, which what reads it
    may read: the old one need not be there, nor a rounded one if nothing else reads it."""
    at = ADDITIONS.get(write.target)
    fake = write.meta["val"]
    if at is None or fake.device.type == "cpu" or fake.dtype not in HALVES or len(write.args) <= at:
        return False
    if write.target is aten.index_put.default and write.args[3:] != (True,):
        return False
    values: Any = write.args[at]
    return elements_of(fake) <= MOST_UNTOUCHED * elements_of(values.meta["val"])


def put_in_place(graph: fx.Graph, base: fx.Node, last: fx.Node, has_kernel: HasKernel) -> None:
    """Write the versions from `base`, which the graph makes, to the last one in place, whatever
    that is worth. Errors: NotInPlace; the graph is as before."""
    _rewrite(graph, Planner(base, versions_of(base, last), has_kernel).plan(None))


def _writes_until(last: fx.Node) -> list[fx.Node]:
    """The writes of which each one, or a view of it, is the first argument of the next one."""
    chain = [last]
    while is_write(former := base_of(chain[-1].args[0])):
        chain.append(former)
    return chain[::-1]


def _first_behind(
    chain: list[fx.Node], plan: Plan, seen: frozenset[fx.Node] | None
) -> int | None:
    """The number of the first version that has seen more than the given writes."""
    if seen is None:
        return None
    for number, node in enumerate(chain):
        region = plan.regions.get(node)
        if region is None or not region.seen <= seen:
            return number
    return None


def is_made(node: Any) -> bool:
    """Whether the memory of its result is nobody else's."""
    target, fake = node.target, node.meta["val"]
    if not isinstance(target, OpOverload) or not is_fake(fake) or target in SHOWS:
        return False
    if target.namespace not in ("aten", "prims", "dynamo_jit") or target._schema.is_mutable:
        return False
    if any(result.alias_info is not None for result in target._schema.returns):
        return False
    return not target.has_kernel_for_dispatch_key(COMPOSITE)


def _copy_of(graph: fx.Graph, write: fx.Node) -> Any:
    """The write's first argument from now on: a copy of what it is. None where that can't be."""
    given: Any = write.args[0]
    try:
        fake = run_on_fake(aten.clone.default, given.meta["val"])
    except NotInPlace:
        return None
    with graph.inserting_before(write):
        clone = graph.call_function(aten.clone.default, (given,))
    clone.meta = {**write.meta, "val": fake}
    write.args = (clone, *write.args[1:])
    return clone


def _check_worth(plan: Plan, copied: bool, has_kernel: HasKernel) -> None:
    """Compares the time of kernels that write parts with that of kernels that compute the tensor
    with its parts replaced, or copy it."""
    fake = plan.base.meta["val"]
    launches = launches_of(fake)
    loops = [write for write in plan.writes if _is_computed(write, has_kernel)]
    between = sum(0 < len(seen) < len(plan.writes) for seen in plan.wanted)
    kernels = 1 + len(plan.writes) - len(loops) + between
    apart = kernels * (1 + launches) + time_of_parts(fake, len(loops) + len(plan.settled))
    whole = elements_of(fake)
    sizes = [elements_of(plan.parts[loop]) if loop in plan.parts else whole for loop in loops]
    calls = 1 + copied + len(plan.writes)
    in_place = calls + (1 + copied + sum(sizes) / max(whole, 1)) * launches
    if apart - in_place < launches / 4:
        raise NotInPlace("it is computed together with the parts")


def time_of_parts(fake: Any, count: int) -> float:
    """What a tensor costs more that is computed with so many replaced parts, in launches."""
    is_cpu = fake.device.type == "cpu"
    of_a_pass = PARTS_OF_A_PASS_ON_CPU if is_cpu else PARTS_OF_A_PASS_ON_GPU
    return (count / of_a_pass) ** 2 * launches_of(fake)


def launches_of(fake: Any) -> float:
    """The time that a copy of it takes, in that of one more kernel."""
    is_cpu = fake.device.type == "cpu"
    return bytes_of(fake) / (COPIED_IN_A_CALL if is_cpu else _copied_in_a_launch(fake.device))


def _copied_in_a_launch(gpu: torch.device) -> int:
    return properties_of(gpu).scaled_by_bandwidth(COPIED_IN_A_LAUNCH)


def _is_computed(write: fx.Node, has_kernel: HasKernel) -> bool:
    """Whether its result, if it is not written in place, is computed where it is used."""
    if write.target is aten.index_put.default:
        indices: Any = write.args[1]
        return any(index is not None and index.meta["val"].dtype is torch.bool for index in indices)
    step = write.args[5:] or [write.kwargs.get("step", 1)]
    if write.meta["val"].dtype.is_complex or step[0] != 1:
        return False
    return write.target in LOOPS and has_kernel(write.target)  # type: ignore[arg-type]


# -- the new graph ----------------------------------------------------------------------------


def _rewrite(graph: fx.Graph, plan: Plan) -> None:
    name = plan.base.name
    for node, region in plan.regions.items():
        node.meta.update({PLACE: name, "val": region.fake})
    settled = set(plan.settled)
    for node in plan.regions:
        if node in plan.writes:
            with graph.inserting_before(node):
                _put_write(graph, node, plan)
        if node in plan.writes or node in settled:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    for node in reversed([*plan.writes, *settled]):
        if not node.users:
            graph.erase_node(node)


def _put_write(graph: fx.Graph, node: fx.Node, plan: Plan) -> None:
    """The write itself. What it reads of the same memory is copied before."""
    whole, *rest = node.args
    part = plan.parts.get(node)

    def apart(given: fx.Node) -> fx.Node:
        if PLACE not in given.meta or given.meta[PLACE] != plan.base.name:
            return given
        clone = graph.call_function(aten.clone.default, (given,))
        clone.meta = {"val": run_on_fake(aten.clone.default, given.meta["val"])}
        return clone

    if part is None:
        given, options = fx.map_arg((tuple(rest), dict(node.kwargs)), apart)
        write = graph.call_function(WRITTEN_AT_ONCE[node.target], (whole, *given), options)  # type: ignore[index]
        goal = whole
    else:
        source, *where = rest
        goal = graph.call_function(PARTS[node.target], (whole, *where), dict(node.kwargs))  # type: ignore[index]
        goal.meta = {**node.meta, "val": part, PLACE: plan.base.name}
        write = graph.call_function(aten.copy_.default, (goal, fx.map_arg(source, apart)))
    write.meta = {**node.meta, "val": goal.meta["val"], PLACE: plan.base.name}  # type: ignore[union-attr]
