"""May a value be computed twice? One predicate for every stage that computes something again.

An operation *decides* where a small change of an operand makes a large one in the result: it
compares, rounds to a whole number, sorts, finds a place, makes a mask or an index. A decision is
not made twice on values that may differ in their last bits: such a program finds no element that
equals the maximum, or two that are the first. So

- what decides reads a saved value, or one that is recomputed *exactly*: from the same loads by
  operations that are rounded once or not at all (`EXACT`), which give the same bits in any loop;
- otherwise the decision itself is saved, a byte for each element (`saved_decisions`);
- what is recomputed by other functions feeds smooth operations only (`SMOOTH`);
- what decides sees values of half precision as eager does, rounded after each operator
  (`decided_values`), not those of float32 that kernels keep between operators; so does what is
  used beside its own maximum (`bounded_values`).

An operator that is in no table decides by all its floating operands, and is not exact: an entry
that is missing costs memory, never a wrong answer. The names are those of ATen's operators without
overloads; those of the loop language (`inductor/ir/scalar_ops.py`) are in `FUNCTIONS`.

Who asks: the partition and its cuts (`saved_decisions`); lowering (`decided_values`, `is_exact`),
and the passes over loops (`inductor/ir/loop_repeats.py`). A checkpoint decides once more in
backward from what it recomputes there, all of it: its own answers agree with each other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import is_fake
from dynamo.aot.joint import viewed
from dynamo.aot.records import DECIDED

# Scalar functions whose last bit depends on how they are computed.
FUNCTIONS = frozenset(
    """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh erf erfc sigmoid lgamma pow atan2 hypot""".split()
)

# They move elements, or none of their results is a new number.
_MOVES = frozenset(
    """view _unsafe_view reshape expand permute transpose t squeeze unsqueeze slice select split
    split_with_sizes unbind chunk as_strided alias detach diagonal unfold flip roll repeat cat stack
    clone contiguous copy lift_fresh_copy constant_pad_nd gather index _unsafe_index index_select
    factor arrived embedding take slice_scatter select_scatter diagonal_scatter
    as_strided_scatter where masked_fill tril triu movedim swapaxes narrow expand_as view_as
    repeat_interleave reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d channel_shuffle pixel_shuffle pixel_unshuffle im2col
    full full_like zeros zeros_like ones ones_like new_full new_zeros new_ones scalar_tensor fill
    empty empty_like new_empty new_empty_strided arange eye one_hot""".split()
)
# One of the operands, or rounded once: the same bits wherever they are computed. No kernel makes
# an FMA of a product and a sum.
_ARITHMETIC = frozenset(
    """add sub rsub mul div neg abs maximum minimum fmax fmin clamp clamp_min clamp_max relu
    sqrt rsqrt reciprocal square positive amax amin max min hardtanh leaky_relu threshold
    hardshrink softshrink copysign""".split()
)
_WHOLE = frozenset(
    """eq ne lt le gt ge isnan isinf isfinite isposinf isneginf sign sgn signbit floor ceil trunc
    round frac floor_divide remainder fmod logical_not logical_and logical_or logical_xor
    bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
    __lshift__ __rshift__ heaviside argmax argmin any all""".split()
)
_CASTS = frozenset(("_to_copy", "to", "convert_element_type"))
# Of the form of a tensor, whatever its elements are.
_SIZES = frozenset("sym_size sym_stride sym_numel sym_storage_offset".split())
EXACT = _MOVES | _ARITHMETIC | _WHOLE | _CASTS | _SIZES

# Results that move little where operands move little. `hardshrink` and `threshold` jump.
SMOOTH = (
    _MOVES
    | _SIZES
    | (_ARITHMETIC - {"hardshrink", "threshold", "copysign"})
    | FUNCTIONS
    | frozenset(
        """addcmul addcdiv lerp sum mean prod var std var_mean std_mean linalg_vector_norm cumsum
        cumprod logsumexp logcumsumexp _softmax _log_softmax _safe_softmax softmax log_softmax
        native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_no_training _native_batch_norm_legit_functional batch_norm
        _batch_norm_with_update cudnn_batch_norm _fused_rms_norm rms_norm native_dropout
        silu gelu mish elu softplus hardswish hardsigmoid log_sigmoid_forward logit sinc erfinv
        digamma polygamma i0 special_i0e _prelu_kernel xlogy glu celu selu
        silu_backward gelu_backward mish_backward softplus_backward sigmoid_backward tanh_backward
        log_sigmoid_backward glu_backward _softmax_backward_data _log_softmax_backward_data
        native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
        batch_norm_backward cudnn_batch_norm_backward _fused_rms_norm_backward
        mm bmm addmm baddbmm mv addmv dot addr linear matmul convolution convolution_backward
        _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2
        _trilinear mkldnn_rnn_layer _cdist_forward
        avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
        upsample_bilinear2d upsample_linear1d upsample_trilinear3d upsample_bicubic2d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_bilinear2d_backward upsample_nearest2d_backward
        embedding_dense_backward _embedding_bag nll_loss_forward nll_loss_backward
        nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
        binary_cross_entropy_with_logits smooth_l1_loss huber_loss
        index_put scatter masked_scatter index_add scatter_add scatter_reduce index_reduce
        select_backward slice_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_fused_attention_overrideable _efficient_attention_forward
        _flash_attention_forward attention flex_attention cpu_attention joined_gemms
        _scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_efficient_attention_backward _efficient_attention_backward
        _scaled_dot_product_flash_attention_for_cpu_backward _flash_attention_backward
        _scaled_dot_product_fused_attention_overrideable_backward
        attention_backward flex_attention_backward complex real imag view_as_real
        view_as_complex _conj polar""".split()
    )
)


def name_of(node: fx.Node) -> str:
    """The name of the operator without its overload; empty for what is none."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    return target._schema.name.rpartition("::")[2]


def _values(node: fx.Node) -> Iterable[Any]:
    value = node.meta.get("val")
    return value if isinstance(value, (tuple, list)) else (value,)


def _is_real(node: fx.Node) -> bool:
    """Whether it holds numbers that are rounded; a result of several tensors may."""
    return any(
        is_fake(each) and (each.dtype.is_floating_point or each.dtype.is_complex)
        for each in _values(node)
    )


def _moves(node: fx.Node) -> bool:
    return node.target is operator.getitem or viewed(node) is not None


def _is_whole(node: fx.Node) -> bool:
    """Whether its results are whole numbers, places or truth values."""
    return not _is_real(node)


def decided_by(node: fx.Node) -> Iterator[fx.Node]:
    """The operands by whose bits a node decides."""
    if node.op != "call_function" or _moves(node):
        return
    name = name_of(node)
    if _asks_for_infinity(node, name) and all(map(_is_bounded, node.all_input_nodes)):
        return
    smooth = name in SMOOTH and not (name in _CASTS or node.kwargs.get("rounding_mode"))
    if name in _CASTS:
        smooth = not _is_whole(node)
    if name in ("max", "min") and len(list(_values(node))) > 1:
        smooth = False  # with positions
    if smooth:
        return
    yield from (given for given in node.all_input_nodes if _is_real(given))


# Functions whose results lie between two numbers that are far from overflow.
_BOUNDED = frozenset("tanh sigmoid sin cos atan erf erfc _softmax".split())
_WITHIN = {"view", "_unsafe_view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze",
           "slice", "select", "alias", "detach", "clone", "factor",
           "abs", "neg", "amax", "amin"}  # of bounded operands
LARGEST_FACTOR = 1e6


def _asks_for_infinity(node: fx.Node, name: str) -> bool:
    """`x == inf`, as in `logsumexp`."""
    if name in ("isinf", "isfinite"):
        return True
    return name in ("eq", "ne") and len(node.args) == 2 and node.args[1] in (math.inf, -math.inf)


def _is_bounded(node: fx.Node) -> bool:
    """Whether a value is far from overflow, so that its last bits don't decide whether it is
    infinite."""
    name = name_of(node)
    if name in _BOUNDED:
        return True
    if name in ("mul", "div"):
        factor = node.args[1]
        if not isinstance(factor, int | float) or not factor:
            return False
        size = abs(factor) if name == "mul" else 1 / abs(factor)
        return size <= LARGEST_FACTOR and _is_bounded(node.all_input_nodes[0])
    if name == "_to_copy":
        dtype = node.meta["val"].dtype
        wide = dtype.is_floating_point and dtype.itemsize >= 4
        return wide and _is_bounded(node.all_input_nodes[0])
    return name in _WITHIN and all(map(_is_bounded, node.all_input_nodes))


def is_exact(node: fx.Node) -> bool:
    """Whether a node gives the same bits for the same operands in any kernel."""
    if node.op != "call_function":
        return True
    name = name_of(node)
    if name in ("add", "sub", "rsub") and (
        node.kwargs.get("alpha", 1) != 1 or len(node.args) > 2
    ):
        return _is_whole(node)
    return _moves(node) or name in EXACT or name not in FUNCTIONS and not any(
        map(_is_real, (node, *node.all_input_nodes))
    )


def saved_decisions(
    graph: fx.Graph, backward: Collection[fx.Node], results: Iterable[fx.Node | None],
    known: Collection[fx.Node],
) -> set[fx.Node]:
    """The nodes to save so that no decision is made twice.

    backward: nodes that only backward computes. results: what it gives. known: what is saved and
    has the bits that forward computed. The others that backward reads it recomputes. What is
    found: decisions on values that may have other bits then, and such values by which nodes of
    backward decide.
    """
    needed = _needed(results, known)
    differs: set[fx.Node] = set()
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node not in needed or name_of(node) in _SIZES:
            continue
        unsure = [given for given in decided_by(node) if given in differs]
        if node in backward:
            found.update(unsure)
            continue
        if unsure:
            found.add(node)
        if not is_exact(node) or not differs.isdisjoint(node.all_input_nodes):
            differs.add(node)
    return found


def _needed(
    results: Iterable[fx.Node | None], known: Collection[fx.Node]
) -> set[fx.Node]:
    """What backward computes."""
    found: set[fx.Node] = set()
    work = [node for node in results if node is not None]
    while work:
        node = work.pop()
        if node not in found and node not in known and node.op == "call_function":
            found.add(node)
            work += node.all_input_nodes
    return found


def mark_decided(graph: fx.Graph, twice: Collection[fx.Node]) -> None:
    """Notes of values that both halves of a joint graph compute whether one of them decides by
    them: the other then rounds them alike, also where it only takes an extremum that is compared
    with them. (A maximum of values in float32 is none of the rounded ones.)"""
    for node in decided_values(graph):
        if node in twice:
            node.meta[DECIDED] = True


def decided_values(graph: fx.Graph) -> frozenset[fx.Node]:
    """The real values that something is decided by, here or in the other half of a joint graph,
    directly or through operations that make each element of single elements."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.meta.get(DECIDED):
            found.add(node)
        reads = list(decided_by(node))
        if node in found and node.op == "call_function" and (_moves(node) or _computes(node)):
            reads += node.all_input_nodes
        found.update(given for given in reads if _is_real(given))
    return frozenset(found)


_EXTREMA = frozenset(("amax", "amin", "max", "min", "aminmax"))


def bounded_values(graph: fx.Graph) -> frozenset[fx.Node]:
    """The values beside which their own extremum is used: `v - v.amax()` is never above zero, and
    zero somewhere. That holds where both are rounded; with v in float32 its root is NaN."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node) in _EXTREMA:
            value = node.all_input_nodes[0]
            shared = len(value.users) > 1
            while _moves(value) and value.op == "call_function":  # to what computes it
                value = value.all_input_nodes[0]
                shared |= len(value.users) > 1
            if shared and _is_real(value):
                found.add(value)
    return frozenset(found)


def _computes(node: fx.Node) -> bool:
    """Whether an element of the result is made of single elements of the operands, or is one."""
    target = node.target
    if name_of(node) in EXACT:
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
