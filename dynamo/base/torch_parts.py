"""The private parts of torch that this package leans on, and whether this torch has them.

In: a version of torch. Out: an ImportError that names what is missing. Exists because private names
go without notice: a release that lacks one says so when `dynamo` is imported, in one sentence, not
with an AttributeError in the middle of a compile. `tests/test_torch_parts.py` holds the table to
the sources.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

NEWEST_TESTED = (2, 14)
"""The newest release of torch that the tests have run with."""

# By the module or class that has them. Public names of private modules are such parts, too.
PARTS: dict[str, str] = {
    "torch": """
        _amp_foreach_non_finite_check_and_unscale_ _assert _assert_async _check _check_index
        _check_is_size _check_not_implemented _check_tensor_all _check_tensor_all_with
        _check_type _check_value _check_with _conj _constrain_as_size _disable_dynamo
        _disable_functionalization _enable_functionalization _foreach_add_ _foreach_addcdiv_
        _foreach_addcmul_ _from_functional_tensor _functionalize_commit_update
        _functionalize_replace _functionalize_sync _fused_adagrad_ _fused_sdp_choice
        _fused_sgd_ _int_mm _is_functional_tensor _neg_view _safe_softmax _sync
        _to_functional_tensor""",
    "torch.Tensor": "_is_view _make_subclass _make_wrapper_subclass",
    "torch.UntypedStorage": "_expired",
    "torch._C": """
        DisableTorchFunction DisableTorchFunctionSubclass DispatchKey DispatchKeySet Graph
        ScriptFunction TensorBase _AutoDispatchBelowAutograd _DisableAutocast
        _DisablePythonDispatcher _DisableTorchDispatch _EnableTorchFunction
        _ExcludeDispatchKeyGuard _ForceDispatchKeyGuard _InferenceMode _TorchDispatchModeKey
        _VariableFunctions _are_functorch_transforms_active
        _FunctionBase _create_function_from_graph
        _current_autograd_node _current_graph_task_id _disabled_torch_dispatch_impl
        _disabled_torch_function_impl _dispatch_has_kernel_for_dispatch_key
        _dispatch_tls_is_dispatch_key_excluded _dispatch_tls_is_dispatch_key_included
        _dispatch_tls_local_exclude_set _dispatch_tls_local_include_set _enter_dual_level
        _exit_dual_level
        _get_blas_preferred_backend _get_default_device _get_dispatch_mode
        _get_function_stack_at _get_mkldnn_enabled _get_privateuse1_backend_name
        _get_sdp_priority_order _get_tracing_state _group_tensors_by_device_and_dtype
        _is_any_autocast_enabled _is_autocast_available _is_fwd_grad_enabled
        _is_torch_function_enabled _is_torch_function_mode_enabled _is_tracing
        _len_torch_dispatch_stack _len_torch_function_stack _log_api_usage_once
        _parse_dispatch_key
        _pop_torch_function_stack _push_on_torch_function_stack _set_conj _set_default_dtype
        _set_deterministic_algorithms _set_fwd_grad_enabled _set_grad_enabled _set_neg
        _should_allow_numbers_as_tensors is_grad_enabled""",
    "torch._C._autograd": """
        CreationMeta _get_creation_meta _get_current_graph_task_keep_graph
        _saved_tensors_hooks_disable _saved_tensors_hooks_enable
        _saved_tensors_hooks_get_disabled_error_message _set_creation_meta
        _top_saved_tensors_default_hooks""",
    "torch._C._functorch": """
        TransformType _add_batch_dim _func_decrement_nesting _grad_decrement_nesting
        _grad_increment_nesting _jvp_decrement_nesting _jvp_increment_nesting
        _remove_batch_dim _unwrap_for_grad _vmap_decrement_nesting _vmap_increment_nesting
        _wrap_for_grad current_level get_dynamic_layer_stack_depth
        get_inplace_requires_grad_allowed get_interpreter_stack get_unwrapped
        is_batchedtensor is_functorch_wrapped_tensor is_gradtrackingtensor
        maybe_current_level maybe_get_bdim maybe_get_level peek_interpreter_stack
        set_inplace_requires_grad_allowed unwrap_if_dead""",
    "torch._C._nn": "linear",
    "torch._decomp": "decomposition_table",
    "torch._dispatch.python": "enable_python_dispatcher",
    "torch._functorch.autograd_function": "VmapInfo",
    "torch._functorch.eager_transforms": "_autograd_grad",
    "torch._functorch.pyfunctorch": """
        retrieve_current_functorch_interpreter temporarily_clear_interpreter_stack""",
    "torch._functorch.vmap": "lazy_load_decompositions",
    "torch._guards": "Source",
    "torch._higher_order_ops": "associative_scan",
    "torch._jit_internal": "is_scripting",
    "torch._library.custom_ops": "OPDEFS",
    "torch._library.simple_registry": "singleton",
    "torch._meta_registrations": "check_inplace_broadcast div_rtn",
    "torch._ops": """
        HigherOrderOperator OpOverload OpOverloadPacket OperatorBase _OpNamespace _Ops""",
    "torch._prims_common": "suggest_memory_format",
    "torch.ops.mkldnn": "_is_mkldnn_bf16_supported _is_mkldnn_fp16_supported",
    "torch._refs": "istft",
    "torch._subclasses": "FakeTensor FakeTensorMode",
    "torch._subclasses.fake_tensor": """
        DataDependentOutputException DynamicOutputShapeException FakeTensor FakeTensorMode
        UnsupportedFakeTensorException UnsupportedOperatorException
        in_kernel_invocation_manager""",
    "torch.autograd": "_unsafe_preserve_version_counter",
    "torch.autograd.forward_ad": "_current_level _maybe_load_decompositions",
    "torch.autograd.function": "_SingleLevelFunction",
    "torch.autograd.graph": "_engine_run_backward",
    "torch.autograd.profiler": "_is_profiler_enabled",
    "torch.cpu": "_is_vnni_supported",
    "torch.distributions.kl": "_KL_REGISTRY _dispatch_kl",
    "torch.distributions.utils": "_lazy_property_and_property",
    "torch.fx._lazy_graph_module": "_LazyGraphModule",
    "torch.fx.graph": "_BoxedCodeGen _PyTreeCodeGen _PyTreeInfo",
    "torch.fx.node": "_get_qualified_name _side_effectful_functions",
    "torch._utils": "_get_available_device_type _get_device_index",
    "torch.cuda": "_exchange_device _lazy_init _maybe_exchange_device",
    "torch.masked._ops": "_combine_input_and_mask _input_mask _reduction_identity _where",
    "torch.nested._internal.nested_int": "NestedIntNode",
    "torch.nested._internal.nested_tensor": """
        NestedTensor _nt_view_dummy _tensor_symint_registry nested_from_padded
        nested_view_from_values_offsets nested_view_from_values_offsets_lengths""",
    "torch.nn.Module": "_call_impl",
    "torch.nn.modules._functions": "BackwardHookFunction",
    "torch.nn.modules.lazy.LazyModuleMixin": "_infer_parameters",
    "torch.nn.utils.stateless": "_reparametrize_module",
    "torch.ops.aten": """
        _assert_async _fused_adagrad_ _fused_rms_norm _fused_sgd_
        _scaled_dot_product_flash_attention_for_cpu""",
    "torch.ops.profiler": "_record_function_exit",
    "torch.optim._adafactor": "_single_tensor_adafactor adafactor",
    "torch.optim.asgd": "_single_tensor_asgd",
    "torch.optim.optimizer": "_get_value",
    "torch.optim.radam": "_multi_tensor_radam _single_tensor_radam",
    "torch.utils._python_dispatch": """
        TorchDispatchMode _disable_current_modes return_and_correct_aliasing""",
    "torch.utils._pytree": """
        LeafSpec TreeSpec _dict_flatten _get_node_type _list_flatten _tuple_flatten
        is_constant_class is_namedtuple_class keystr tree_flatten tree_flatten_with_path
        tree_leaves tree_map tree_map_only tree_unflatten treespec_dumps treespec_loads""",
    "torch.utils.checkpoint": "_StopRecomputationError",
}

# Of modules that `import torch` does not load: looked at by tests alone.
LATE_PARTS: dict[str, str] = {
    "torch._subclasses.schema_check_mode": "SchemaCheckMode",
    "torch.nn.attention.flex_attention": "_LARGE_SPARSE_BLOCK_SIZE",
    "torch.utils._device": "DeviceContext _device_constructors",
    "torch.utils._sympy.functions": """
        CeilDiv CleanDiv FloorDiv Identity Max Min Mod ModularIndexing PowByNatural
        PythonMod""",
    "torch.utils._sympy.numbers": "int_oo",
    "torch.utils._sympy.value_ranges": "ValueRanges",
}

# What some builds of torch have: for CUDA or ROCm, for several processes, with oneDNN.
BUILD_PARTS: dict[str, str] = {
    "torch._C": """
        _cuda_clearCublasWorkspaces _cuda_endAllocateToPool _cuda_getCurrentRawStream
        _cuda_getDevice _cuda_getDeviceCount _cuda_getDriverVersion
        _cuda_isCurrentStreamCapturing _cuda_releasePool""",
    "torch.distributed": "_DEFAULT_FIRST_BUCKET_BYTES",
    "torch.distributed.distributed_c10d": "_resolve_process_group _world",
    "torch.nn.parallel.DistributedDataParallel": "_active_ddp_module",
    "torch.ops.mkldnn": """
        _convolution_pointwise _linear_pointwise _reorder_convolution_weight
        _reorder_linear_weight""",
}


def names(parts: Mapping[str, str]) -> Iterator[str]:
    """Full names of a table.

    >>> list(names({"torch": "_check _assert"}))
    ['torch._check', 'torch._assert']
    """
    return (f"{owner}.{name}" for owner, text in parts.items() for name in text.split())


def missing(parts: Mapping[str, str]) -> list[str]:
    """Which of a table this torch has not."""
    return [name for name in names(parts) if not _has_part(name)]


def _has_part(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    value: Any = sys.modules.get(owner)
    if value is None:  # a class, or a namespace of operators
        home, _, inner = owner.rpartition(".")
        value = getattr(sys.modules.get(home) or sys.modules["torch"].ops, inner, None)
    return hasattr(value, last)


def check(version: str) -> None:
    """Errors: ImportError, one sentence, where this torch lacks a part."""
    lacks = missing(PARTS)
    if lacks:
        raise ImportError(
            f"dynamo-jit needs {', '.join(lacks)}, which torch {version} has not: it runs on torch "
            f"2.11 to {_text(NEWEST_TESTED)}, or wants a newer dynamo-jit.")


def check_version(version: str) -> None:
    """Warns where the tests have not run with a torch that new."""
    release = tuple(int(part) for part in version.split(".")[:2])
    if release > NEWEST_TESTED:
        warnings.warn(
            f"torch {version} is newer than torch {_text(NEWEST_TESTED)}, the newest one that "
            "dynamo-jit is tested with: it is used all the same; where a compiled function does "
            "not do what it does without, please say so, with both versions.", stacklevel=2)


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
