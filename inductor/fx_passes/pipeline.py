"""Which passes run on a graph, in order: on the captured one, on the joint one, before lowering.

Each function takes a graph module and gives it back, rewritten. What `config.leave_out` names is
not done.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.base.counters import timed
from inductor.collectives.settings import with_buckets
from inductor.config import config, is_enabled
from inductor.fx_passes.attention.calls import replace_attention
from inductor.fx_passes.attention.counters import count_programs
from inductor.fx_passes.attention.cpu_calls import replace_cpu_attention
from inductor.fx_passes.attention.gradients import lay_gradients_as_results
from inductor.fx_passes.attention.patterns import replace_written_attention
from inductor.fx_passes.bias import unfuse_biases, unfuse_convolution_biases
from inductor.fx_passes.checks import apply
from inductor.fx_passes.chunked_gemms import with_chunks
from inductor.fx_passes.complex_pairs import compute_on_pairs
from inductor.fx_passes.copies_of_tables import add_into_copies
from inductor.fx_passes.counted_sorts import sort_by_counts
from inductor.fx_passes.custom import run_pass
from inductor.fx_passes.dropout import draw_in_kernels
from inductor.fx_passes.fakes import any_on_gpu
from inductor.fx_passes.filled_parts import join_filled_parts
from inductor.fx_passes.fold import fold_constants
from inductor.fx_passes.grouped_channels import pad_groups
from inductor.fx_passes.grouped_pixels import grouped_pixels_as_gemms
from inductor.fx_passes.grouped_sequences import without_slow_groups
from inductor.fx_passes.growing_cats import share_growing_cats
from inductor.fx_passes.half_gemms import compute_in_float32
from inductor.fx_passes.host_numbers import compute_numbers_on_gpu
from inductor.fx_passes.host_tables import hold_tables
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.interleaved import interleave_writes
from inductor.fx_passes.large_windows import sum_large_windows
from inductor.fx_passes.layout import channels_last
from inductor.fx_passes.looked_up_matrices import multiply_in_loops
from inductor.fx_passes.losses.chunks import chunk_losses
from inductor.fx_passes.narrow_cats import convert_before_joining
from inductor.fx_passes.odd_gemms import pad_odd_gemms
from inductor.fx_passes.odd_gradients import widen_channels
from inductor.fx_passes.one_of_each_row import compare_columns
from inductor.fx_passes.operators_in_place import call_in_place
from inductor.fx_passes.order import large_results_last
from inductor.fx_passes.parts import read_parts
from inductor.fx_passes.patches import patches_as_gemms
from inductor.fx_passes.permutations import read_by_inverses
from inductor.fx_passes.row_topk import take_from_rows
from inductor.fx_passes.sequences import sequences_as_images
from inductor.fx_passes.small_gemms import add_in_loops
from inductor.fx_passes.stored_numbers import name_stored_numbers
from inductor.fx_passes.sums_of_gemms import add_in_gemms
from inductor.fx_passes.table import decompositions as decompositions
from inductor.fx_passes.table_gradients import add_rows_to_gemms
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.sizes import has_symbols


def replace_patterns(gm: torch.fx.GraphModule, example_inputs: list[Any], trains: bool) -> None:
    """Attention of a captured graph, which is changed in place."""
    if not is_enabled("patterns"):
        return
    if any_on_gpu(example_inputs):
        replace_attention(gm)
    elif not trains:
        replace_written_attention(gm)


def laid_out(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Channels last for kernels alone: ATen's copies would keep strides that the fakes say to be
    the old ones. Before that, dropout: its order of numbers goes by the strides of eager. And GEMMs
    of odd sizes."""
    if not config.kernels:
        return module
    if is_enabled("dropout") and not has_symbols(module):
        module = apply(draw_in_kernels, module)
    if is_enabled("patterns"):
        module = apply(unfuse_convolution_biases, module)
        module = apply(pad_odd_gemms, module, LOWERINGS.__contains__)
    if not is_enabled("layout") or _goes_back_on_cpu(module):
        return module
    for rewrite in (patches_as_gemms, without_slow_groups, sequences_as_images):
        module = apply(rewrite, module)
    module = apply(channels_last, module, LOWERINGS.__contains__)
    for rewrite in (grouped_pixels_as_gemms, pad_groups, widen_channels):
        module = apply(rewrite, module)
    return module


def _goes_back_on_cpu(module: torch.fx.GraphModule) -> bool:
    """Whether a graph has a whole step of training: the sums over images and pixels that batch
    norms want, forward and backward, lose more channels last than convolutions gain."""
    backward = module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.convolution_backward.default)
    return any(node.args[0].meta["val"].device.type == "cpu" for node in backward)


def in_chunks(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Losses over large vocabularies for some rows at a time; the graph, perhaps a joint one, as it
    was recorded."""
    if not config.kernels or not is_enabled("losses") or has_symbols(module):
        return module
    with timed("inductor.passes"):
        return apply(chunk_losses, module)


def joint_laid_out(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """As above; on a CPU, backward loses by it. And gradients of rows that were sorted."""
    module = in_chunks(module)
    if config.kernels and is_enabled("patterns") and not has_symbols(module):
        module = apply(read_by_inverses, module)
    fakes = (node.meta.get("val") for node in module.graph.nodes)
    if not any(isinstance(fake, torch.Tensor) and fake.device.type == "cuda" for fake in fakes):
        return module
    with timed("inductor.passes"):
        return laid_out(in_loops(module))


def in_loops(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """GEMMs with matrices that are looked up, whatever the sizes, those with few rows, columns or
    terms, and writes of an element of each row: before it is decided what backward is given."""
    if not config.kernels or not is_enabled("patterns"):
        return module
    module = apply(add_in_loops, apply(multiply_in_loops, module))
    return module if has_symbols(module) else apply(compare_columns, module)


def in_float32(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """GEMMs of half precision for which the processor has no instructions: before their operands
    are prepared, hence before the other passes."""
    return apply(compute_in_float32, module) if config.kernels else module


def rewritten(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A functional ATen graph as it is lowered."""
    module = apply(fold_constants, run_pass("post_grad_custom_pre_pass", module))
    module = in_loops(in_float32(module))
    if config.kernels and is_enabled("patterns") and not has_symbols(module):
        module = apply(name_stored_numbers, module)  # of which tables need not be held
    if config.kernels:
        module = apply(compute_numbers_on_gpu, apply(hold_tables, module))
    if config.kernels and not has_symbols(module):
        for rewrite in (
            compute_on_pairs, large_results_last, sort_by_counts, take_from_rows, sum_large_windows
        ):
            module = apply(rewrite, module)
    if is_enabled("patterns"):
        module = apply(unfuse_biases, module, LOWERINGS.__contains__)
    if config.kernels and not has_symbols(module):
        module = apply(count_programs, apply(replace_cpu_attention, module))
    if is_enabled("patterns"):
        module = apply(add_in_gemms, apply(convert_before_joining, module))
    if is_enabled("patterns") and not has_symbols(module):
        module = apply(add_into_copies, apply(add_rows_to_gemms, module))
    if config.kernels and is_enabled("buckets"):
        module = apply(with_buckets, module)
    if config.kernels:
        module = apply(lay_gradients_as_results, apply(with_chunks, module))
    if config.kernels:  # ATen's results would have the strides of what they read
        module = where_it_lies(module)
    return run_pass("post_grad_custom_post_pass", module)


def where_it_lies(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Parts of tensors are read, and results written, where they lie."""
    if is_enabled("patterns"):
        module = apply(interleave_writes, apply(read_parts, apply(join_filled_parts, module)))
    module = apply(share_growing_cats, module, LOWERINGS.__contains__)
    module = apply(write_in_place, module, LOWERINGS.__contains__)
    return apply(call_in_place, module)
