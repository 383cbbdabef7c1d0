"""Whose code is left alone: the compiler's own, torch's, the standard library's, other compilers'.

In: the code of a frame. Out: whether it runs as it is, with or without all that it calls, and why.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Mapping
from types import CodeType
from typing import Any

import torch

from dynamo.symbolic.machine.inline import OWN_FOLDER, PROGRAMS

OWN = "the compiler's own code"
TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
TRACED_TORCH = os.path.join(TORCH_FOLDER, "nn", "modules") + os.sep
# What `optimizer.step`, the results of torch.func's transforms, and a block in a wrapper that makes
# its checkpoint are: functions of the program.
WRAPPERS = frozenset(
    """Optimizer.profile_hook_step.<locals>.wrapper vmap.<locals>.wrapped grad.<locals>.wrapper
    grad_and_value.<locals>.wrapper jacrev.<locals>.wrapper_fn jacfwd.<locals>.wrapper_fn
    CheckpointWrapper.forward""".split()
)
SET_UP = frozenset(
    """__init__ __getattr__ __setattr__ __delattr__ reset_parameters _reset_parameters""".split()
)
# All else of `nn.Module` walks over modules and registers: a check of guards for each module of a
# model (`named_buffers` in each step of DistributedDataParallel) costs more than what it does.
MODULES_FILE = os.path.join(TRACED_TORCH, "module.py")
CALLS_OF_MODULES = frozenset(
    "Module._wrapped_call_impl Module._call_impl Module._call_impl.<locals>.inner".split()
)
# What autograd calls of a compiled graph compiles its backward, at the first time.
AOT_FOLDER = os.path.join(OWN_FOLDER, "aot") + os.sep
NUMPY = importlib.util.find_spec("numpy")
NUMPY_FOLDER = os.path.dirname(str(NUMPY.origin)) + os.sep if NUMPY is not None else "<no numpy>"
STDLIB = sysconfig.get_path("stdlib") + os.sep
SITE = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
# Libraries that torch's compilers are written with; their objects hold no tensors.
SYMBOLIC = tuple(
    folder + name + os.sep for folder in SITE for name in ("sympy", "mpmath", "networkx")
)
GENERATED = "<string>"  # what dataclasses write
GENERATED_FOR = ("sympy", "networkx", "torch")


def _in_torch(*names: str) -> tuple[str, ...]:
    return tuple(os.path.join(TORCH_FOLDER, *name.split("/")) for name in names)


# A checkpointed function runs again in backward, outside of any region: both runs must be alike.
# A lazy module changes its class and hooks while it makes its parameters, once. Compilers and
# exporters run programs on fake tensors. The hooks of `fully_shard` move parameters about.
WHOLE_FILES = frozenset(_in_torch(
    "utils/checkpoint.py", "nn/modules/lazy.py", "_functorch/aot_autograd.py",
    "_functorch/partitioners.py", "_dynamo/convert_frame.py",
    "_dynamo/eval_frame.py", "fx/_symbolic_trace.py",
))  # fmt: skip
WHOLE_FOLDERS = (AOT_FOLDER, "<frozen", *_in_torch(
    "_higher_order_ops/", "_export/", "export/", "_inductor/", "_functorch/_aot_autograd/",
    "fx/experimental/", "fx/passes/", "onnx/", "distributed/fsdp/_fully_shard/",
))  # fmt: skip


def is_whole(code: CodeType) -> bool:
    """True where a frame and all that it calls run as they are."""
    if code.co_filename in WHOLE_FILES or code.co_filename.startswith(WHOLE_FOLDERS):
        return True
    return code.co_name == "__torch_dispatch__"  # below autograd: the graphs are above it


def library_of(code: CodeType, scope: Mapping[str, Any]) -> str | None:
    """Why a frame runs as it is; None where it is the program's. scope: its globals."""
    name = code.co_filename
    if name.startswith(OWN_FOLDER) and name not in PROGRAMS:
        return OWN
    of_torch = name.startswith(TORCH_FOLDER) and not name.startswith(TRACED_TORCH)
    if of_torch and code.co_qualname not in WRAPPERS:
        return "torch's own code"
    if name.startswith(TRACED_TORCH) and code.co_name in SET_UP:
        return "torch's own code, which sets modules up"
    if name == MODULES_FILE and code.co_qualname not in CALLS_OF_MODULES:
        return "torch's own code, which walks over modules"
    if name.startswith(NUMPY_FOLDER):
        return "numpy's own code"
    if name.startswith(SYMBOLIC):
        return "the code of a library without tensors"
    if name == GENERATED and str(scope.get("__name__")).partition(".")[0] in GENERATED_FOR:
        return "generated for a library"
    if name.startswith(STDLIB) and not name.startswith(SITE):
        return "the standard library"
    return None
