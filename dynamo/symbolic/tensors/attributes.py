"""Attributes and methods of tensors: metadata are constants, views are graph nodes."""

from __future__ import annotations

import operator
import os
import sys
import types
from typing import Any, NoReturn

import torch

from dynamo.base.errors import Break
from dynamo.base.subclasses import PLAIN, shielded
from dynamo.guards.sources import AttrSource
from dynamo.symbolic.core import table
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named
from dynamo.symbolic.python.functions import BuiltinVar, FunctionVar, MethodVar, inline_polyfill
from dynamo.symbolic.python.lists import SizeVar
from dynamo.symbolic.python.partials import PartialVar
from dynamo.symbolic.python.polyfill_checks import check_assertion
from dynamo.symbolic.tensors import hooks, torch_functions
from dynamo.symbolic.tensors.overriding import read_attribute, special, write_attribute
from dynamo.symbolic.tensors.picking import refuse_picked
from dynamo.symbolic.tensors.plain_subclasses import write_own
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tables import restart_for_branch
from dynamo.symbolic.tensors.tensor import TensorVar

# Attributes that are tensors made of this one.
VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
# Attributes that are plain metadata of the fake tensor too.
FACTS = frozenset(
    """shape dtype device ndim layout requires_grad is_leaf is_cuda is_cpu is_sparse is_sparse_csr
    is_quantized is_meta is_nested is_mkldnn is_mps is_xpu is_xla is_ipu is_vulkan is_maia is_mtia
    itemsize output_nr grad_fn""".split()
)
# Attributes that tell how a tensor was made, which its metadata do not.
HISTORY = frozenset({"is_leaf", "output_nr", "grad_fn"})
# Code that gives another answer when it is compiled: `nn.Module` leaves out `always_call` hooks of
# modules that raise, the encoder leaves what it computes where the mask of padding is set. Known by
# its place, which the rest of a frame behind a break has, too.
AS_IN_EAGER = frozenset(
    (function.__code__.co_filename, function.__code__.co_firstlineno)
    for function in (torch.nn.Module._call_impl, torch.nn.TransformerEncoder.forward))
OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep
__all__ = ["restart_for_branch", "special"]  # those of `TensorRules`
METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def get_attr(tx: Frame, var: TensorVar, name: str) -> Var:
    """`tensor.name`."""
    trace = tx.trace
    own = of_program(tx, var, name)
    if own is not None:
        return own
    if name in HISTORY:
        tensor_state(trace).guard_history(var)
        if name == "grad_fn" and var.fake.grad_fn is not None:
            if var.source is None:
                refuse_picked(trace, var)
                return hooks.history(tx, var)
            raise Break("attribute_unknown", f"grad_fn of {var!r}")
        if name == "output_nr" and var.real is not None:
            if var in tensor_state(trace).mutated:
                raise Break("attribute_unknown", f"output_nr of {var!r}")
            return trace.constant(var.real.output_nr)
    if name == "nbytes":
        count = tx.trace.call(tx, torch.Tensor.numel, var)
        return tx.trace.call(tx, operator.mul, count, ConstVar(var.fake.itemsize))
    if name in FACTS:
        return trace.constant(getattr(var.fake, name))
    if name == "_version" and var.source is None:
        storages = [storage_of(given.fake) for given in tensor_state(trace).tensor_inputs]
        if storage_of(var.fake) not in storages:
            return ConstVar(var.fake._version)
    if name in VIEWS:
        made = None
        if torch_functions.in_transform():
            made = trace.call_in_transform(getattr, [var.fake, name], {}, [var])
        if made is not None:
            return made
        fake = torch_functions.run_on_fakes(tx, getattr, [var.fake, name], {})
        target = shielded(getattr) if var.acts_in_graph else getattr
        node = trace.graph.operation("call_function", target, (var.as_proxy(), name), {}, fake)
        return torch_functions.wrap_result(tx, node, fake, [var])
    if name == "grad":
        return gradient_of(tx, var)
    if name == "__class__":
        return trace.wrap(var.python_type(), None)
    raw = find_in_mro(var.cls, name)
    if raw is None:
        set_here = var.written.get(name)
        if set_here is not None:
            return set_here
        if name in var.written:
            lacks_attribute(tx, var, name)
        if var.real is not None and name in getattr(var.real, "__dict__", {}):
            assert var.source is not None
            return wrap_named(trace, var.real.__dict__[name], AttrSource(var.source, name))
        if var.real is not None:
            trace.guard("LACKS_ATTR", var.source, name)
        elif name.startswith("_") and not name.startswith("__"):  # else only of subclasses
            raise Break("attribute_unknown", f"{name} of {var!r}")
        lacks_attribute(tx, var, name)
    if isinstance(raw, METHODS):
        return MethodVar(BuiltinVar(raw), var)
    if isinstance(raw, types.FunctionType):
        return MethodVar(trace.wrap(raw, None), var)
    raise Break("attribute_unknown", f"{name} of {var!r}")


def lacks_attribute(tx: Frame, var: TensorVar, name: str) -> NoReturn:
    tx.trace.raise_exception(
        AttributeError, f"'{var.cls.__name__}' object has no attribute '{name}'"
    )


def of_program(tx: Frame, var: TensorVar, name: str) -> Var | None:
    """What a subclass, or the program's `__torch_function__`, has for it; None for others."""
    own: Var | None = None
    if var.cls not in PLAIN:
        own = var.subclass_attribute(tx, var, name)
    if own is None and (var.cls not in PLAIN or tensor_state(tx.trace).function_modes):
        own = read_attribute(tx, var, name)
    return own


def gradient_of(tx: Frame, var: TensorVar) -> Var:
    if var.source is None and var.grad is not None:
        return var.grad
    if var.source is None and var.fake.is_leaf:  # no backward pass has met it
        return ConstVar(None)
    if var.source is None or var.real is None or var.overrides:
        raise Break("attribute_unknown", f"grad of {var!r}")
    if var.grad is not None:
        tensor_state(tx.trace).new_gradients_read += 1
        return var.grad
    return tx.trace.wrap(var.real.grad, AttrSource(var.source, "grad"))


def set_attr(tx: Frame, var: TensorVar, name: str, value: Var) -> None:
    """`tensor.name = value`."""
    trace = tx.trace
    var.python_type()  # guarded: what is stored is no attribute of others
    if var.cls not in PLAIN or tensor_state(trace).function_modes:
        if write_attribute(tx, var, name, value) or write_own(tx, var, name, value):
            return
    if name == "requires_grad" and var.fake.is_leaf and value.is_constant():
        hooks.set_requires_grad(tx, var, value)
        return
    if name == "data" and value is var:  # as `module.to()` stores it that changes nothing
        return
    if name == "data" and isinstance(value, TensorVar):
        set_data(tx, var, value)
        return
    is_none = value.is_constant() and value.as_constant() is None
    is_known = var.real is not None or var.source is None and var.fake.is_leaf
    if name == "grad" and is_known and (is_none or isinstance(value, TensorVar)):
        if not is_none:  # what eager refuses
            torch_functions.run_on_fakes(tx, setattr, [var.fake, "grad", value.as_fake()], {})
            var.fake.grad = None
        var.grad = value
        trace.effects.store_attr(var, "grad", value, raw=False)
        return
    if is_of_instances(tx, var, name):
        trace.effects.store_attr(var, name, value, raw=False)
        var.written[name] = value
        return
    raise Break("attribute_store_unknown", f"{name} of {var!r}")


def is_of_instances(tx: Frame, var: TensorVar, name: str) -> bool:
    """True for what a plain tensor holds in its own dict: the program's notes on it."""
    return (
        var.cls in PLAIN and find_in_mro(var.cls, name) is None and not name.startswith("__")
        and not torch_functions.in_transform() and not tensor_state(tx.trace).function_modes
    )


def del_attr(tx: Frame, var: TensorVar, name: str) -> None:
    """`del tensor.name`."""
    var.python_type()
    if not is_of_instances(tx, var, name) or not var.has_attr(tx, name):
        raise Break("attribute_store_unknown", f"del {name} of {var!r}")
    tx.trace.effects.store_attr(var, name, None, raw=False)
    var.written[name] = None


def set_data(tx: Frame, var: TensorVar, value: TensorVar) -> None:
    """`tensor.data = value`: from here on the tensor is one in the memory of the other. So it is
    in the graph, and the tensor itself gets it behind the graph."""
    trace, state = tx.trace, tensor_state(tx.trace)
    kinds = [(fake.device, fake.dtype, fake.layout) for fake in (var.fake, value.fake)]
    once = var not in state.moved and value not in state.moved
    plain = value.cls is torch.Tensor and not torch_functions.in_transform()
    recorded = var.fake.requires_grad and (torch.is_grad_enabled() or not var.fake.is_leaf)
    if var.real is None or recorded or kinds[0] != kinds[1] or not once or (
            state.inference_mode or not plain):
        raise Break("attribute_store_unknown", f"data of {var!r}")
    made = torch_functions.put_in_graph(tx, torch.Tensor.detach, [value], {})
    assert isinstance(made, TensorVar)
    if var.fake.requires_grad:  # a parameter: see `torch_functions.break_where_moved`
        made.fake.requires_grad_()
        state.moved_leaves.add(var)
    state.note_mutation(var)
    state.moved |= {var, value}
    var.become(made)
    trace.effects.store_attr(var, "data", value, raw=False)


def call_method(
    tx: Frame, var: TensorVar, name: str, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """`tensor.name(*args, **kwargs)`."""
    raw = find_in_mro(var.cls, name)
    if isinstance(raw, METHODS) or (
        isinstance(raw, types.FunctionType) and tx.trace.is_modelled(raw)
    ):
        return tx.trace.call_real(tx, raw, [var, *args], kwargs)
    return tx.call_attribute(var, name, args, kwargs)


@rule([torch.Tensor.__bool__, torch.is_nonzero])
def read_truth(tx: Frame, var: Var) -> Var:
    return ConstVar(var.truth(tx))


@rule([torch.Tensor.__iter__])
def iterate(tx: Frame, var: Var) -> Var:
    return var.iterate(tx)


@rule([torch.Tensor.__len__])
def length(tx: Frame, var: Var) -> Var:
    return var.length(tx)


@rule([torch.Tensor.__contains__])
def contains(tx: Frame, var: Var, item: Var) -> Var:
    known = tx.trace.world.constant_of(var.as_fake())
    if known is not None and item.is_constant():
        value = item.as_constant()
        return ConstVar(tx.trace.run_real(lambda: value in known))
    raise Break("data_dependent_branch", repr(var))


def is_optimizer(filename: str) -> bool:
    """True for the optimizers' own files: compiled, they work in the precision of their counters,
    and leave out the checks of their settings."""
    return filename.startswith(OPTIMIZERS) and not filename.endswith(f"{os.sep}optimizer.py")


@rule([torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling])
def is_compiling(tx: Frame) -> Var:
    place = tx.code.co_filename, tx.code.co_firstlineno
    return ConstVar(place not in AS_IN_EAGER and not is_optimizer(tx.code.co_filename))


@rule([torch.compile])
def compile_inside(tx: Frame, *args: Var, **options: Var) -> Var | None:
    """A function that is compiled already, as part of what calls it."""
    tensor_state(tx.trace).compiled += 1
    given = args[0] if len(args) == 1 else None
    return given if isinstance(given, FunctionVar | PartialVar) else None


@rule([torch.compiler.cudagraph_mark_step_begin])
def mark_step(tx: Frame) -> Var:
    """Told to the graphs that torch's own compiler has recorded, in program order."""
    tx.trace.effects.output(torch.compiler.cudagraph_mark_step_begin)
    return ConstVar(None)


@rule([torch.compiler.is_exporting, torch.jit.is_scripting, torch.jit.is_tracing,
       torch._jit_internal.is_scripting, torch._C._is_tracing])
def answer_no(tx: Frame, *args: Var) -> Var:
    return ConstVar(False)


@rule(torch._C._get_tracing_state)
def tracing_state(tx: Frame) -> Var:
    return ConstVar(None)


@rule(torch._C._len_torch_dispatch_stack)
def dispatch_stack_length(tx: Frame) -> Var:
    """The guard of torch's global state knows it too."""
    return ConstVar(torch._C._len_torch_dispatch_stack())


@rule([torch._C._log_api_usage_once])
def log_usage(tx: Frame, *args: Var) -> Var:
    """Counts uses inside of torch; a compiled program counts none."""
    return ConstVar(None)


@rule([torch.is_tensor])
def is_tensor(tx: Frame, var: Var) -> Var:
    return ConstVar(issubclass(var.python_type(), torch.Tensor))


@rule([torch.is_grad_enabled, torch._C.is_grad_enabled])
def is_grad_enabled(tx: Frame) -> Var:
    """Guarded as part of the global state; the fakes run under the traced program's mode."""
    return ConstVar(torch.is_grad_enabled())


@rule(torch._C._set_grad_enabled)
def set_grad_enabled(tx: Frame, mode: Var) -> Var:
    """Both for the graph (a node) and for Python after it (an effect).

    Nothing for the mode that is on: inside of inference mode an effect would outlast it.
    """
    value = mode.as_constant()
    trace = tx.trace
    if value is torch.is_grad_enabled():
        return ConstVar(None)
    if value and tensor_state(trace).inference_mode:
        raise Break("call_of_unknown_function", "gradients inside of inference mode")
    trace.graph.operation("call_function", torch._C._set_grad_enabled, (value,), {}, None)
    trace.effects.call(torch._C._set_grad_enabled, value)
    torch._C._set_grad_enabled(value)
    return ConstVar(None)


@rule(torch.Tensor.new, TensorVar, SizeVar)
def new_of_size(tx: Frame, /, tensor: Var, size: Var, **kwargs: Var) -> Var:
    """A size stands in a graph as a tuple of ints, which `new` takes for values."""
    return tx.trace.call(tx, torch.Tensor.new_empty, tensor, size, **kwargs)


@rule([torch._assert])
def check_assert(tx: Frame, condition: Var, message: Var) -> Var:
    if isinstance(condition, TensorVar):  # a branch, which the graph can test
        return inline_polyfill(tx, check_assertion, [condition, message], {})
    if not condition.truth(tx):
        tx.trace.raise_exception(AssertionError, message)
    return ConstVar(None)


# What `torch._C` tells of the process, which is guarded as part of the global state.
GUARDED_STATE = """deterministic_algorithms deterministic_algorithms_warn_only
    deterministic_fill_uninitialized_memory float32_matmul_precision cublas_allow_tf32
    cudnn_enabled cudnn_deterministic cudnn_benchmark cudnn_allow_tf32 mkldnn_enabled
    nnpack_enabled flash_sdp_enabled mem_efficient_sdp_enabled math_sdp_enabled
    cudnn_sdp_enabled""".split()


def fold_torch_state() -> None:
    """Functions of torch that read what does not change while a program runs."""
    names: list[Any] = [torch.finfo, torch.iinfo, torch.get_default_dtype, torch.promote_types,
                        torch.result_type, torch.can_cast, torch.device, torch.is_autocast_enabled,
                        torch._C._is_autocast_available, torch.get_autocast_dtype,
                        torch.is_autocast_cache_enabled, torch.cuda.is_available,
                        torch.get_num_threads, torch.are_deterministic_algorithms_enabled,
                        torch.backends.cuda.is_built, torch.get_autocast_cpu_dtype,
                        torch.get_autocast_gpu_dtype, torch.is_autocast_cpu_enabled]
    table.foldable(names)
    table.foldable(getattr(torch._C, f"_get_{name}") for name in GUARDED_STATE)


fold_torch_state()


def fold_about_gpus(function: Any) -> None:
    """What a function tells of a GPU is a constant where all GPUs are of one kind: the current one
    may be another in the next call. Other machines have others: a cached trace is found only where
    the GPUs are as they were, if it was known before the trace which these are."""

    @rule([function])
    def ask(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        kinds = {torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())}
        if len(kinds) > 1:
            return None
        tx.trace.state(Unguarded).about_gpus = f"torch.cuda.{function.__name__}"
        return table.fold(tx, function, [*args], kwargs)


for about_gpus in (torch.cuda.get_device_capability, torch.cuda.get_device_name,
                   torch.cuda.is_bf16_supported):  # fmt: skip
    fold_about_gpus(about_gpus)


@rule([torch.Tensor._is_view])
def is_view(tx: Frame, var: Var) -> Var:
    """Known of what the program makes; no guard knows it of a tensor from outside."""
    if not isinstance(var, TensorVar) or var.source is not None:
        raise Break("attribute_unknown", f"_is_view of {var!r}")
    return ConstVar(var.fake._is_view())


@rule(torch.Tensor.detach_, TensorVar)
def detach_in_place(tx: Frame, var: TensorVar) -> Var | None:
    """Refused for a view; no guard knows whether a tensor from outside is one."""
    if var.source is not None:
        raise Break("attribute_unknown", f"detach_ of {var!r}, which may be a view")
    return None


TensorVar.rules = sys.modules[__name__]  # type: ignore[assignment]
