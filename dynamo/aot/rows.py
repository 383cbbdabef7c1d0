"""Before the cut: operations over rows fall into a few numbers for each row and a tail.

In: a joint graph, decomposed. Out: the same graph, where a softmax or log-softmax that backward
reads is its maxima and sums (one of each for a row) and an elementwise tail, which backward can
recompute from the input: the input is often there anyway, or narrower. And what is computed
twice is computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import elements_of, facts_of, is_fake, is_static
from dynamo.aot.graphs import must_run, remove_dead_code
from dynamo.aot.joint import SAVED, viewed
from dynamo.aot.records import RECOMPUTED

aten = torch.ops.aten
Tensor = torch.Tensor

# Writing into one of these in place is cheaper than to share it.
_NEW = frozenset(
    {
        aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
        aten.empty_like.default, aten.new_zeros.default, aten.new_ones.default,
        aten.new_full.default, aten.new_empty.default, aten.new_empty_strided.default,
    }
)  # fmt: skip


def _wide(x: Tensor) -> Tensor | None:
    """x in the dtype in which ATen computes; None for what stays whole."""
    if x.dim() == 0 or x.numel() == 0 or not x.dtype.is_floating_point:
        return None
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _narrowed(value: Tensor, x: Tensor, half_to_float: bool) -> Tensor:
    """The result in its dtype, laid out as ATen's, which is contiguous for an x in any layout."""
    value = value if half_to_float or value.dtype is x.dtype else value.to(x.dtype)
    if value.is_contiguous():
        return value
    return aten.clone.default(value, memory_format=torch.contiguous_format)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    wide = _wide(x)
    if wide is None:
        return NotImplemented
    top = torch.amax(wide, [dim], keepdim=True)
    total = torch.sum(torch.exp(wide - top), [dim], keepdim=True)
    value = (wide - top) - torch.log(total)  # twice: what two read, a compiler might store
    return _narrowed(value, x, half_to_float)


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    wide = _wide(x)
    if wide is None:
        return NotImplemented
    exp = torch.exp(wide - torch.amax(wide, [dim], keepdim=True))
    return _narrowed(exp / torch.sum(exp, [dim], keepdim=True), x, half_to_float)


def scatter_add(zeros: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """One element for each row among zeros: elementwise, so that nothing has to be there."""
    dim %= zeros.dim()
    places = aten.arange.default(zeros.shape[dim], dtype=torch.int64, device=zeros.device)
    places = places.view([-1 if at == dim else 1 for at in range(zeros.dim())])
    nothing = aten.scalar_tensor.default(0, dtype=zeros.dtype, device=zeros.device)
    return torch.where(places == index, source, nothing)


def one_hot(zeros: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """A number at one place of each row among zeros. Places are looked up among all that there are,
    so that one which is none of these is an error, as it is for `scatter`."""
    dim %= zeros.dim()
    places = aten.arange.default(zeros.shape[dim], dtype=torch.int64, device=zeros.device)
    known = aten.gather.default(places, 0, index.reshape([-1])).view(index.shape)
    places = places.view([-1 if at == dim else 1 for at in range(zeros.dim())])
    one, nothing = (aten.scalar_tensor.default(each, dtype=zeros.dtype, device=zeros.device)
                    for each in (value, 0))
    return torch.where(places == known, one, nothing)


ONE_HOTS: Mapping[Any, Callable[..., Any]] = {aten.scatter.value: one_hot}
ROWS: Mapping[Any, Callable[..., Any]] = {
    aten._log_softmax.default: log_softmax, aten._softmax.default: softmax,
    aten.scatter_add.default: scatter_add,
}  # fmt: skip
LARGE = 1 << 20  # elements, of which writing one for each row would hold all; chosen, not measured
_ZEROS = frozenset((aten.new_zeros.default, aten.zeros_like.default, aten.zeros.default))


def has_tail(node: fx.Node) -> bool:
    """Whether to take a node apart: any log-softmax, a softmax of a narrower input, and the
    gradient of one element that was picked of each row. Else the result takes no more memory than
    the input does, and GEMMs read it as well."""
    if node.target is aten.scatter_add.default:
        return _picks_one(node)
    return node.target is aten._log_softmax.default or _is_wider(node)


def _picks_one(node: fx.Node) -> bool:
    """Whether it is the gradient of `x.gather(dim, index)` with one index for each row, which has
    looked at the indices."""
    _, dim, index, source = node.args
    if not _has_one_place(node) or not isinstance(source, fx.Node):
        return False
    return bool(source.meta["val"].shape == index.meta["val"].shape) and any(  # type: ignore[union-attr]
        user.target is aten.gather.default and user.args[1:] == (dim, index)
        for user in index.users)  # type: ignore[union-attr]


def is_one_hot(node: fx.Node) -> bool:
    """Whether it is `F.one_hot` on a GPU, of a size that should not be in memory."""
    fake = node.meta["val"]
    large = is_fake(fake) and is_static(facts_of(fake)) and elements_of(fake) >= LARGE
    return large and fake.device.type == "cuda" and _has_one_place(node)


def _has_one_place(node: fx.Node) -> bool:
    """Whether there is one place of each row of zeros into which something is written."""
    base, dim, index = node.args[:3]
    if not isinstance(base, fx.Node) or not isinstance(index, fx.Node) or (
            base.target not in _ZEROS):
        return False
    whole, places = base.meta["val"], index.meta["val"]
    if not all(is_fake(fake) and is_static(facts_of(fake)) for fake in (whole, places)):
        return False
    if not whole.dim() or not whole.numel() or places.dtype is not torch.int64:
        return False
    size = list(whole.shape)
    assert isinstance(dim, int)
    size[dim % len(size)] = 1
    return list(places.shape) == size


def _is_wider(node: fx.Node) -> bool:
    """Whether a softmax gives a wider dtype than that from which its input was made."""
    given: Any = node.args[0]
    if given.target is aten._to_copy.default:
        given = given.args[0]
    wide: int = node.meta["val"].dtype.itemsize
    return bool(given.meta["val"].dtype.itemsize < wide)


def merge_equal(module: fx.GraphModule) -> None:
    """Of nodes that compute the same the first one stays. The graph's results stay apart: who gets
    them may write into one of them."""
    shown = _results(module.graph)
    first: dict[Any, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op != "call_function" or node in shown or not _may_be_shared(node):
            continue
        same = _same_view(node)
        if same is not None:
            node.replace_all_uses_with(same)
            continue
        found = first.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        if found is not node:
            if SAVED in node.meta:
                found.meta[SAVED] = True
            node.replace_all_uses_with(found)
    remove_dead_code(module.graph)
    module.recompile()


def _same_view(node: fx.Node) -> fx.Node | None:
    """Of a view that is laid out as what it is a view of, directly or by way of others
    (`x.t().t()`, a view in the size that x has), that value; what reads either reads the same."""
    value = node.meta.get("val")
    if not is_fake(value) or not is_static(facts_of(value)):
        return None
    layout = _layout(value)
    source = _source_of_view(node)
    while source is not None:
        other = source.meta["val"]
        if is_fake(other) and _layout(other) == layout:
            return source
        source = _source_of_view(source)
    return None


def _source_of_view(node: fx.Node) -> fx.Node | None:
    """What a view is of. Its operator says that it is one: a pass may have given the fake of one
    node to another that computes with it."""
    maker = node.all_input_nodes[0] if node.target is operator.getitem else node
    return viewed(node) if getattr(maker.target, "is_view", False) else None


def _layout(fake: Any) -> tuple[Any, ...]:
    facts = facts_of(fake)
    return facts.size, facts.stride, facts.offset, facts.dtype, facts.bits


def _results(graph: fx.Graph) -> set[fx.Node]:
    """The values of the output node, and what these are views of."""
    found: set[fx.Node] = set()
    for node in graph.output_node().all_input_nodes:
        root: fx.Node | None = node
        while root is not None and root not in found:
            found.add(root)
            root = viewed(root)
    return found


def _may_be_shared(node: fx.Node) -> bool:
    if must_run(node) or RECOMPUTED in node.meta or node.target in _NEW:
        return False
    value = node.meta.get("val")
    if node.all_input_nodes or node.target is aten.arange.start_step or not is_fake(value):
        return True
    return elements_of(value) <= 1


def _key(value: Any) -> Any:
    """Equal for arguments that do the same: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    return type(value), repr(value)
