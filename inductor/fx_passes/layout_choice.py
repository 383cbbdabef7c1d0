"""Which convolutions read channels last, and which operators mind in which order tensors lie.

What `layout.py` rewrites a graph by, and what passes ask that change convolutions before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from dynamo.shapes.iteration import is_channels_last
from inductor.config import config
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.single_channels import reads_single_channels

OpOverload = torch._ops.OpOverload
aten = torch.ops.aten
STRIDES_MATTER = {
    aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default,
    aten._reshape_alias.default,
}  # fmt: skip
PICKS = (aten._unsafe_index.Tensor, aten.index.Tensor)
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
HALVES = (torch.bfloat16, torch.float16)
FEW_CHANNELS = 32  # measured with 16 only
# What ATen computes from any strides; the kernels of others (attention, LSTMs) take those for
# granted that the functions above them make.
INDIFFERENT = """addmm baddbmm bmm convolution convolution_backward mm native_batch_norm
pixel_shuffle pixel_unshuffle grid_sampler_2d cumsum index_copy sort topk clone""".split()
INDIFFERENT_KINDS = (
    "upsample_", "_upsample_", "max_pool", "avg_pool", "adaptive_", "_adaptive_", "reflection_pad",
    "replication_pad",
)


def may_stay(node: fx.Node) -> bool:
    """Whether an operator that speaks of strides may be given a copy with the old ones: of tensors
    that fill their memory, in known sizes."""
    tensors = [given.meta["val"] for given in node.all_input_nodes]
    return all(is_fake(tensor) and fills_memory(tensor) for tensor in tensors)


def is_known(tensor: Any) -> bool:
    """Whether sizes and strides are numbers."""
    facts = facts_of(tensor)
    return all(type(number) is int for number in (*facts.size, *facts.stride))


def fills_memory(tensor: Any) -> bool:
    facts, elements = facts_of(tensor), 1
    if not is_known(tensor):
        return False
    for step, extent in sorted(zip(facts.stride, facts.size, strict=True)):
        if extent != 1 and step != elements:
            return False
        elements *= extent
    return facts.offset == 0


def wants_last(node: fx.Node) -> bool:
    """Of convolutions, forward and backward."""
    if node.target not in CONVOLUTIONS:
        return False
    source = operands_of(node)[0].meta["val"]
    if source.dim() not in LAST or source.dtype not in fast_dtypes(source.device):
        return False
    if source.dim() == 5 and not _is_known_film(source):
        return False
    return source.device.type == "cpu" or suits_matrix_units(node)


def is_padded(node: fx.Node) -> bool:
    """Of convolutions that read channels last: those in half precision on a GPU, unless templates
    of ours compete, which take channels as they are."""
    value = operands_of(node)[0].meta["val"]
    return value.dtype in HALVES and on_gpu(value.device) and not config.max_autotune


def _is_known_film(source: Any) -> bool:
    """Films of known sizes on a GPU: with both gradients 0.51 to 0.94 of the time on an H200 in
    half precision, 0.6 to 1.03 in TensorFloat-32."""
    return on_gpu(source.device) and all(type(n) is int for n in facts_of(source).size)


def suits_matrix_units(node: fx.Node) -> bool:
    """Not for convolutions of single channels. In float32 not for patches side by side, which the
    library computes in full float32 as long as they are not channels last; and not for windows of
    one column (or row) over few channels, whose gradients it computes more slowly channels last:
    5 x 1 of 16 channels to 32, 26 and 54 us on an H200."""
    source, weight = (arg.meta["val"] for arg in operands_of(node))
    stride = node.args[4 if node.target is aten.convolution_backward.default else 3]
    window = tuple(weight.shape[2:])
    patches = window == tuple(stride) != (1, 1)  # type: ignore[arg-type]
    few = type(weight.shape[1]) is int and weight.shape[1] <= FEW_CHANNELS
    flat = few and 1 in window and window != (1, 1)
    slow = (patches or flat) and source.dtype is torch.float32
    return not slow and not _is_of_single_channels(node)


def _is_of_single_channels(node: fx.Node) -> bool:
    source, weight = (arg.meta["val"] for arg in operands_of(node))
    first = node.target is aten.convolution_backward.default  # it has one argument more
    transposed: Any = node.args[6 + first]
    return reads_single_channels(source.shape[1], weight.shape, node.args[8 + first], transposed)


def groups_of_images(node: fx.Node) -> int:
    """How many groups a convolution has that reads channels-last images of known sizes in half
    precision on a GPU, forward and backward. 1 for others: plain ones, transposed ones, those whose
    results each read one channel."""
    args: Any = node.args
    first = node.target is aten.convolution_backward.default  # the gradient stands in front
    values = [argument.meta["val"] for argument in args[: 2 + first]]
    if any(value.dim() != 4 or value.dtype not in HALVES for value in values):
        return 1
    if not on_gpu(values[0].device):
        return 1
    numbers = [number for value in values for number in facts_of(value).size]
    if any(type(number) is not int or number == 0 for number in numbers):
        return 1
    transposed, groups = args[6 + first], args[8 + first]
    if transposed or _is_of_single_channels(node) or not all(map(is_last, values[:-1])):
        return 1
    return groups


def operands_of(node: fx.Node) -> tuple[Any, Any]:
    """What is convolved, and the weight."""
    first = node.target is aten.convolution_backward.default
    return node.args[first], node.args[1 + first]


def fast_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Dtypes whose convolutions are fastest channels last: on a GPU those of its matrix units."""
    if device.type == "cpu":
        return (torch.float32, torch.bfloat16, torch.float16)
    if device.type != "cuda" or not torch.backends.cudnn.enabled:
        return ()
    allows_tf32 = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return (torch.float32, *HALVES) if allows_tf32 else HALVES


def is_last(value: Any) -> bool:
    """Whether images or films lie channels last."""
    return value.dim() in LAST and bool(value.is_contiguous(memory_format=LAST[value.dim()]))


def is_doubtful(value: Any) -> bool:
    """Whether ATen does not take images or films for channels last although they lie so: it goes by
    strides along single elements, too. On a GPU it would copy them, twice."""
    facts = facts_of(value)
    if not on_gpu(facts.device):
        return False
    if not is_known(value) or 0 in facts.size:
        return False
    return not is_channels_last(facts.size, facts.stride)


def is_normalized_last(value: Any) -> bool:
    """Whether a group norm is computed from images, films or sequences as they lie, channels last:
    on a GPU by a kernel of ours, which is for known sizes; the library's there refuses them."""
    if value.device.type == "cpu":
        return is_last(value)
    facts = facts_of(value)
    if not all(type(number) is int for number in facts.size):
        return False
    if value.dim() != 3:
        return is_last(value)
    _, channels, length = facts.size
    last = (channels * length, 1, channels)
    return all(
        extent == 1 or step == wanted
        for extent, step, wanted in zip(facts.size, facts.stride, last, strict=True))


def _is_of_rows(node: fx.Node) -> bool:
    """Whether a convolution is of sequences on a GPU, which ATen copies to rows by itself, in a
    kernel more than ours that compute them. Those of single channels are ours."""
    value = operands_of(node)[0].meta["val"]
    return value.dim() == 3 and on_gpu(value.device) and not _is_of_single_channels(node)


def picks_pixels(node: fx.Node) -> bool:
    """Whether a node picks pixels of channels-last images or films, as upsampling to the nearest
    does, and its result is not channels last as it stands: an index gives row-major tensors."""
    if node.target not in PICKS:
        return False
    source: Any = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    indices: Any = node.args[1]
    alone = all(index is None for index in indices[:2])
    return (
        alone and before.dim() == after.dim() and is_last(before) and not is_last(after)
        and before.device == after.device)


def sees_strides(node: fx.Node, has_kernel: Callable[[OpOverload], bool]) -> bool:
    """False for operators of which the result is the same whatever the strides are."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace == "mkldnn":
        return False
    if target in STRIDES_MATTER:
        return True
    if torch.Tag.nondeterministic_seeded in target.tags:  # draws in the order of memory
        return True
    if target is aten.native_group_norm.default:
        value = node.args[0].meta["val"]  # type: ignore[union-attr]
        return not is_normalized_last(value)
    if target in CONVOLUTIONS and _is_of_rows(node):
        return True
    if torch.Tag.pointwise in target.tags or has_kernel(target):
        return target.namespace not in ("aten", "prims")
    name = target._schema.name.removeprefix("aten::")
    if name in INDIFFERENT or name.startswith(INDIFFERENT_KINDS):
        return False
    is_view = any(result.alias_info is not None for result in target._schema.returns)
    return not is_view or target is aten.view.dtype
