"""Options of torch.compile by its names: what each asks of this backend.

In: `options={...}` of one compile. Out: the same by our names. Exists because programs come with
options that they were tuned with: each is honoured, or accepted with one note that says what it
means here, or refused with what to write instead; none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dynamo.base import counters, logs

# What is on here always; False leaves a stage out.
STAGE_OF = {
    "epilogue_fusion": "fusion", "layout_optimization": "layout", "pattern_matcher": "patterns",
    "attention": "attention", "symbolic_on_gpu": "symbolic",
}

# Other names of one option.
SAME = {
    "fx_graph_cache": "graph_cache", "max_autotune_gemm": "max_autotune",
    "max_autotune_pointwise": "max_autotune", "triton.cudagraphs": "cudagraphs",
}

FOLDER = "set DYNAMO_DEBUG_DIR or dynamo.config.debug_dir: graphs and kernels go into a folder"
VERIFY = 'write options={"verify": True}, which compares each call with eager'
# What must be as it is here, with the value that it has, and what to do for another one.
FIXED: dict[str, tuple[Any, str]] = {
    "debug_check_inf_and_nan": (False, VERIFY), "nan_asserts": (False, VERIFY),
    "trace.save_real_tensors": (False, FOLDER),
    "profiler_mark_wrapper_call": (False, "dynamo.profile(f, *args) tells the time of each kernel"),
    "force_disable_caches": (
        False, 'write options={"graph_cache": False}, and DYNAMO_CACHE_DIR names an empty folder'),
    "guard_filter_fn": (
        None, "guards are all needed; dynamo.mark_static and `dynamic=` say what may change"),
    "custom_partitioner_fn": (
        None, "a backend of your own gives partition= to dynamo.aot.compile_training"),
    "implicit_fallbacks": (True, "DYNAMO_LOGS=fallbacks shows what falls back to ATen"),
}

RANDOM = "random numbers are eager's, always"
CASTS = "each cast that the program writes is done, always"
CHOSEN = "this is decided by measurements or an estimate"
MEMORY = "memory is planned for the whole graph, always"
FIXED_HERE = "this is not to be switched"
BUILD = "kernels are built in processes beside this one, on all cores"
# What is accepted with any value, and what holds here.
NOTES = {
    "fallback_random": RANDOM, "align_random_eager": RANDOM, "emulate_precision_casts": CASTS,
    **dict.fromkeys(
        ("shape_padding", "comprehensive_padding", "force_shape_pad", "coordinate_descent_tuning",
         "coordinate_descent_check_all_directions", "benchmark_kernel", "benchmark_fusion",
         "aggressive_fusion", "epilogue_fusion_first", "prologue_fusion", "split_reductions",
         "loop_ordering_after_fusion", "max_fusion_size", "unroll_reductions_threshold",
         "conv_1x1_as_mm", "reorder_for_locality", "max_autotune_gemm_backends",
         "max_autotune_conv_backends", "max_autotune_gemm_search_space", "combo_kernels",
         "force_same_precision", "triton.multi_kernel", "triton.persistent_reductions",
         "triton.cooperative_reductions", "triton.max_tiles", "triton.prefer_nd_tiling",
         "triton.autotune_pointwise", "triton.tiling_prevents_pointwise_fusion", "cpp.simdlen",
         "cpp.threads", "cpp.min_chunk_size", "cpp.dynamic_threads", "cpp_wrapper"), CHOSEN),
    **dict.fromkeys(
        ("inplace_buffers", "allow_buffer_reuse", "memory_planning", "memory_pool",
         "donated_buffer"), MEMORY),
    **dict.fromkeys(
        ("size_asserts", "scalar_asserts", "alignment_asserts", "assert_indirect_indexing",
         "keep_output_stride", "dce", "cse", "functionalize_rng_ops", "pick_loop_orders",
         "constant_and_index_propagation", "joint_graph_constant_folding", "static_weight_shapes",
         "triton.cudagraph_trees", "triton.cudagraph_skip_dynamic_graphs",
         "triton.slow_path_cudagraph_asserts", "triton.unique_kernel_names",
         "triton.descriptive_names", "comment_origin", "debug", "verbose_progress",
         "disable_progress", "autotune_local_cache", "autotune_remote_cache",
         "fx_graph_remote_cache", "reorder_for_compute_comm_overlap"), FIXED_HERE),
    **dict.fromkeys(("compile_threads", "worker_start_method"), BUILD),
    **dict.fromkeys(("trace.enabled", "trace.graph_diagram", "trace.draw_orig_fx_graph"), FOLDER),
}

NAMES = frozenset({*STAGE_OF, *SAME, *FIXED, *NOTES})


def translate(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options by our names. Errors: ValueError for a value that torch's option can't have here,
    TypeError for one that it can't have at all.

    >>> dict(translate({"fx_graph_cache": False, "epilogue_fusion": False, "freezing": True}))
    {'graph_cache': False, 'freezing': True, 'leave_out': 'fusion'}
    """
    if not NAMES & options.keys():
        return options
    found: dict[str, Any] = {}
    left_out = [options["leave_out"]] if options.get("leave_out") else []
    for name, value in options.items():
        if name in STAGE_OF:
            if not isinstance(value, bool):
                raise TypeError(f"options={{{name!r}: ...}} takes True or False, not {value!r}")
            if not value:
                left_out.append(STAGE_OF[name])
        elif name in FIXED:
            here, instead = FIXED[name]
            if value is not here:
                raise ValueError(f"the inductor backend has {name}={here!r} always: {instead}")
        elif name in NOTES:
            _tell(name, value)
        elif name in SAME:
            ours = SAME[name]
            found[ours] = value or found[ours] if ours in found else value
        else:
            found[name] = value
    if left_out:
        found["leave_out"] = ", ".join(left_out)
    return MappingProxyType(found)


def _tell(name: str, value: Any) -> None:
    """Says what an option of torch's means here, once for each."""
    if counters.once(("option of torch", name)):
        logs.tell(f"options={{{name!r}: {value!r}}} is accepted and changes nothing: {NOTES[name]}")
