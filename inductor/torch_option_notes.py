"""Options of torch.compile that change nothing here, each with one sentence that says why.

In: nothing. Out: the sentence for a name. Exists because programs come with options that they were
tuned with for other kernels; `inductor/torch_options.py` asks this table last. A test holds it to
the options of the torch that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping

CHOSEN = "this is decided by measurements or an estimate"
FIXED_HERE = "this is not to be switched"
NUMBERS = "results are rounded as eager rounds them: divisions and casts, no fast math"
DETERMINISTIC = "torch.use_deterministic_algorithms(True) asks for this, and is followed"
RANDOM = "random numbers are eager's, always"
MEMORY = "memory is planned for the whole graph, always"
BUILD = "kernels are built in processes beside this one, on all cores"
CACHES = "DYNAMO_CACHE_DIR names the folder of the cache, and there is none on other machines"
GRAPHS = "DYNAMO_LOGS=cudagraphs says what was recorded, and why something was not"
COLLECTIVES = 'options={"collectives": ...} says how fast they are, and decides where they run'
SHOWN = (
    "set DYNAMO_DEBUG_DIR or dynamo.config.debug_dir for graphs and kernels in a folder, "
    "DYNAMO_LOGS for lines, and use dynamo.profile for times")
DEVICES = "kernels are C++ for CPUs and Triton for GPUs, always"
PACKAGES = "dynamo.package makes what C++ programs run, by its own arguments"
TESTS = "this is for torch's own tests"

# By the part of a name before the dot.
FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(("cuda", "cutlass", "halide", "mtia", "rocm", "xpu"), DEVICES),
    **dict.fromkeys(("aot_inductor", "aot_inductor_mode"), PACKAGES),
    **dict.fromkeys(("_collective", "aten_distributed_optimizations"), COLLECTIVES),
    **dict.fromkeys(
        ("auto_chunker", "autoheuristic_collect", "autoheuristic_use", "lookup_table"), CHOSEN),
    "test_configs": TESTS,
}

_NAMES: Mapping[str, str] = {
    CHOSEN: """
        aggressive_fusion assume_32bit_indexing assume_aligned_inputs autoheuristic_collect
        autoheuristic_use autotune_lookup_table b2b_gemm_pass batch_fusion
        benchmark_combo_kernel benchmark_epilogue_fusion benchmark_fusion benchmark_kernel
        cache_sdpa_constraint combo_kernel_allow_mixed_sizes combo_kernel_autotune_grouping
        combo_kernel_compile_time_autotune combo_kernel_foreach_dynamic_shapes
        combo_kernel_max_distance combo_kernel_max_num_args combo_kernel_max_num_nodes
        combo_kernel_per_subkernel_blocks combo_kernels combo_kernels_autotune
        combo_kernels_pointwise_only comprehensive_padding compute_all_bounds conv_1x1_as_mm
        coordinate_descent_check_all_directions coordinate_descent_search_radius
        coordinate_descent_tuning cpp.dynamic_threads cpp.enable_concat_linear
        cpp.enable_grouped_gemm_template cpp.enable_loop_tail_vec cpp.enable_tiling_heuristics
        cpp.force_inline_kernel cpp.gemm_cache_blocking cpp.gemm_max_k_slices
        cpp.gemm_thread_factors cpp.max_horizontal_fusion_size cpp.min_chunk_size
        cpp.no_redundant_loops cpp.simdlen cpp.threads cpp.use_constexpr_for_int_array
        cpp.use_small_dequant_buffer cpp.weight_prepack decompose_mem_bound_mm
        delay_realize_cheap_outputs disable_padding_cpu dynamic_scale_rblock
        enable_linear_binary_folding epilogue_fusion_first
        epilogue_fusion_user_defined_triton_kernel epilogue_fusion_with_atomic_add
        expand_dimension_for_pointwise_nodes external_matmul force_fuse_int_mm_with_mul
        force_layout_optimization force_pointwise_cat force_shape_pad group_fusion
        inductor_default_autotune_rep inductor_default_autotune_warmup layout_opt_default
        loop_index_inversion_in_fusion loop_ordering_after_fusion loop_reindexing_after_fusion
        max_autotune_allow_flexible_layouts max_autotune_conv_backends
        max_autotune_conv_bwd_input_backends max_autotune_conv_bwd_weight_backends
        max_autotune_flex_search_space max_autotune_gemm_backends
        max_autotune_gemm_search_space max_autotune_prune_choices_based_on_shared_mem
        max_complex_pointwise_cat_inputs max_epilogue_benchmarked_choices
        max_fusion_buffer_group_pairwise_attempts max_fusion_size max_fusion_unique_io_buffers
        max_pointwise_cat_inputs min_num_split min_overlap_ratio mixed_mm_choice
        multi_kernel_hints online_softmax optimize_scatter_upon_const_tensor pad_channels_last
        pad_dynamic_shapes pad_outputs padding_alignment_bytes padding_stride_threshold
        partitioned_scatter_enabled partitioned_scatter_force
        partitioned_scatter_max_partitions partitioned_scatter_memory_budget
        partitioned_scatter_min_contention_ratio partitioned_scatter_min_index_size
        partitioned_scatter_min_partitions partitioned_scatter_non_model_floor_bytes
        permute_fusion prologue_fusion realize_acc_reads_size_threshold
        realize_acc_reads_threshold realize_cpu_acc_reads_threshold
        realize_cpu_opcount_threshold realize_opcount_threshold realize_opusers_threshold
        realize_reads_threshold reorder_for_locality reorder_for_locality_in_training
        score_fusion_memory_threshold shape_padding small_memory_access_threshold
        split_reductions triton.autotune_cublasLt triton.autotune_pointwise
        triton.autotune_with_sample_inputs triton.coalesce_tiling_analysis
        triton.cooperative_reductions triton.decompose_k_threshold triton.decompose_sort_ops
        triton.dense_indexing triton.divisible_by_16 triton.dynamic_disable_pipelining
        triton.emit_pointer_range_32 triton.enable_host_side_tma triton.enable_pdl
        triton.enable_persistent_tma_matmul triton.enable_template_autows
        triton.enable_template_tma_store triton.enable_tma_load_for_template_epilogue
        triton.force_cooperative_reductions triton.max_tiles triton.min_split_scan_rblock
        triton.mix_order_reduction triton.mix_order_reduction_allow_multi_stages
        triton.mix_order_reduction_autotune_split_size
        triton.mix_order_reduction_initial_xblock triton.mix_order_reduction_max_reads
        triton.mix_order_reduction_non_strict_mode triton.mix_order_reduction_split_size
        triton.multi_kernel triton.native_matmul triton.nested_reduction
        triton.num_decompose_k_splits triton.persistent_reductions triton.prefer_nd_tiling
        triton.spill_threshold triton.tile_reductions triton.tiling_prevents_pointwise_fusion
        triton.tiling_prevents_reduction_fusion
        triton.transpose_discontiguous_tensor_descriptor triton.use_block_ptr
        triton.use_tensor_descriptor unroll_reductions_threshold
        unsafe_ignore_unsupported_triton_autotune_args use_experimental_benchmarker
        use_mixed_mm""",
    FIXED_HERE: """
        add_pre_grad_passes alignment_asserts always_keep_tensor_constants
        assert_indirect_indexing assume_unaligned_fallback_output autotune_fallback_to_aten
        bw_outputs_user_visible constant_and_index_propagation cpp.fallback_scatter_reduce_sum
        cse dce disabled_passes do_not_emit_runtime_assertions
        efficient_conv_bn_eval_fx_passes enable_auto_functionalized_v2 enable_autograd_for_aot
        fallback_by_default fallback_embedding_bag_byte_unpack functionalize_rng_ops
        fx_passes_numeric_check fx_wrapper is_predispatch joint_graph_constant_folding
        keep_output_stride pick_loop_orders post_grad_fusion_options pre_grad_fusion_options
        remove_pre_grad_passes run_jit_post_compile_hook scalar_asserts selective_decompose
        size_asserts split_cat_fx_passes static_weight_shapes strict_output_strides
        triton_kernel_default_layout_constraint unbacked_symint_fallback use_dce
        use_joint_graph_passes use_post_grad_passes use_pre_grad_passes
        wrap_inductor_compiled_regions""",
    NUMBERS: """
        cpp.enable_floating_point_contract_flag cpp.enable_unsafe_math_opt_flag
        cpp.use_decompose_tanh cpp.use_two_step_variance_threshold eager_numerics.disable_ftz
        eager_numerics.division_rounding eager_numerics.use_pytorch_libdevice
        emulate_precision_casts emulate_precision_casts_on_saved_tensors force_same_precision
        keep_addmm_fused_for_half_dtypes numerics strict_signed_zero
        triton.codegen_upcast_to_fp32 triton.use_two_step_variance_min_numel
        triton.use_two_step_variance_threshold use_fast_math""",
    DETERMINISTIC: """
        batch_invariant deterministic write_are_deterministic_algorithms_enabled""",
    RANDOM: """
        align_random_eager apply_gumbel_max_trick fallback_random""",
    MEMORY: """
        allow_buffer_reuse can_inplace_pad_graph_input combo_kernel_peak_memory_increase_gb
        combo_kernel_peak_memory_pct_threshold donated_buffer freezing_discard_parameters
        inplace_buffers inplace_padding memory_planning memory_pool reorder_for_peak_memory
        size_threshold_for_succ_based_strategy""",
    BUILD: """
        autotune_in_subproc autotune_multi_device compile_threads compile_worker_wait_timeout
        compile_worker_watchdog_interval_seconds cpp.cxx cpp.enable_kernel_context_guard
        cpp.march cpp.vec_isa_ok cpp_wrapper cpp_wrapper_build_separate
        enable_caching_generated_triton_templates file_lock_timeout incremental_autotune
        max_autotune_subproc_graceful_timeout_seconds
        max_autotune_subproc_result_timeout_seconds
        max_autotune_subproc_terminate_timeout_seconds pipeline_max_autotune_gemm
        precompilation_timeout_seconds quiesce_async_compile_pool quiesce_async_compile_time
        static_launch_user_defined_triton_kernels strict_static_cuda_launcher
        strict_static_triton_launcher triton.autotune_at_compile_time
        triton_disable_device_detection use_fast_triton_launcher use_static_cuda_launcher
        use_static_triton_launcher worker_start_method""",
    CACHES: """
        autotune_local_cache autotune_remote_cache bundle_triton_into_fx_graph_cache
        bundled_autotune_remote_cache cpp_cache_precompile_headers fx_graph_remote_cache
        global_cache_dir non_blocking_remote_cache_write remote_gemm_autotune_cache
        search_autotune_cache triton.skip_l1_cache unsafe_marked_cacheable_functions
        unsafe_skip_cache_dynamic_shape_guards""",
    GRAPHS: """
        autotune_cudagraph_benchmarking cudagraph_policy cudagraph_unsafe_unbacked_ops
        custom_should_partition_ops graph_partition triton.cudagraph_capture_sizes
        triton.cudagraph_dynamic_shape_warn_limit triton.cudagraph_min_partition_size
        triton.cudagraph_or_error triton.cudagraph_partition_memory_budget
        triton.cudagraph_skip_dynamic_graphs triton.cudagraph_support_input_mutation
        triton.cudagraph_trees triton.cudagraph_trees_generation_cloning
        triton.cudagraph_trees_history_recording triton.cudagraph_trees_objgraph
        triton.cudagraph_unexpected_rerecord_limit triton.fast_path_cudagraph_asserts
        triton.force_cudagraph_sync triton.force_cudagraphs_warmup
        triton.reorder_for_reducing_graph_partitions triton.skip_cudagraph_warmup
        triton.slow_path_cudagraph_asserts""",
    COLLECTIVES: """
        _fuse_ddp_bucket_size _fuse_ddp_communication _fuse_ddp_communication_passes
        _micro_pipeline_tp bucket_all_gathers_bucket_mode bucket_all_gathers_fx
        bucket_all_gathers_fx_bucket_size_determinator bucket_all_reduces_fx
        bucket_all_reduces_fx_bucket_size_determinator bucket_reduce_scatters_bucket_mode
        bucket_reduce_scatters_fx bucket_reduce_scatters_fx_bucket_size_determinator
        collective_benchmark_nruns collective_benchmark_timeout cpu_gpu_bw
        decompose_shard_dim_alltoall dedup_reduce_scatters distributed_max_autotune_gemm
        estimate_op_runtime inter_node_bw intra_node_bw reorder_for_compute_comm_overlap
        reorder_for_compute_comm_overlap_passes reorder_prefetch_limit
        runtime_estimations_mms_benchmark""",
    SHOWN: """
        annotate_training autoheuristic_log_path autotune_num_choices_displayed
        benchmark_harness comment_origin cpp.descriptive_names cpp.enable_kernel_profile debug
        debug_fusion debug_index_asserts debug_ir_traceback developer_warnings
        disable_progress enabled_metric_tables generate_intermediate_hooks
        is_nightly_or_source kernel_name_max_ops log_tlparse max_autotune_report_choices_stats
        pre_grad_pass_timing profile_bandwidth profile_bandwidth_output
        profile_bandwidth_regex profile_bandwidth_with_do_bench_using_profiling
        profiler_mark_wrapper_call reorder_for_peak_memory_debug save_args
        torchinductor_worker_logpath trace.compile_profile trace.debug_dir trace.debug_log
        trace.dot_graph_shape trace.draw_orig_fx_graph trace.enabled trace.fx_graph
        trace.fx_graph_transformed trace.graph_diagram trace.graph_diagram_format
        trace.info_log trace.ir_post_fusion trace.ir_pre_fusion trace.log_autotuning_results
        trace.log_url_for_graph_xform trace.orig_fx_graph_diagram_format trace.output_code
        trace.provenance_tracking_level trace.provenance_tracking_max_events
        trace.provenance_tracking_to_timeline trace.save_real_tensors trace.upload_tar
        triton.debug_dump_kernel_inputs triton.debug_sync_graph triton.debug_sync_kernel
        triton.descriptive_names triton.max_kernel_dump_occurrences triton.proton_group_by_sm
        triton.proton_output_dir triton.proton_per_cta_occupancy triton.proton_profiling
        triton.proton_split_invocations triton.store_cubin triton.unique_kernel_names
        triton.unique_user_kernel_names use_launch_metadata_schema
        use_torch_profiler_benchmarker verbose_progress warn_mix_layout worker_log_path
        worker_suppress_logging""",
    DEVICES: """
        cpu_backend cuda_backend cutedsl_enable_autotuning disable_cpp_codegen
        keep_static_cubin_raw nvgemm_max_profiling_configs nvgemm_supplement_configs
        nvgemm_swap_ab tpu_backend triton.enable_tlx_templates triton.tlx_mode xpu_backend""",
    TESTS: """
        always_complex_memory_overlap_TESTING_ONLY check_stack_no_cycles_TESTING_ONLY
        cpp.inject_log1p_bug_TESTING_ONLY cpp.inject_relu_bug_TESTING_ONLY
        force_disable_cudagraph_TESTING_ONLY sleep_sec_TESTING_ONLY
        triton.disallow_failing_autotune_kernels_TESTING_ONLY
        triton.inject_relu_bug_TESTING_ONLY""",
}
NOTES: Mapping[str, str] = {
    name: sentence for sentence, names in _NAMES.items() for name in names.split()
}


def note_of(name: str) -> str | None:
    """The sentence for an option; None for one that is not here.

    >>> note_of("rocm.arch") == DEVICES, note_of("triton.max_tile")
    (True, None)
    """
    family, dot, _ = name.partition(".")
    return NOTES.get(name) or (FAMILIES.get(family) if dot else None)
