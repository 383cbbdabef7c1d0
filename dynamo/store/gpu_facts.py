"""What a compile for a GPU depends on beside the program: parts of keys, and what a file is made
for.

Nothing is known of GPUs before the program uses one: to ask would start CUDA, which no process that
is forked later could use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import re
from pathlib import Path
from typing import Any

import torch

DRIVER = Path("/proc/driver/nvidia/version")
NO_MATTER = frozenset(("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR"))


def parts_of_gpus() -> dict[str, str]:
    """Parts of a key, empty as long as no GPU is in use.

    >>> parts_of_gpus().get("triton", "3") > ""
    True
    """
    if not torch.cuda.is_initialized():
        return {}
    return {
        "gpus": kinds_of_gpus(), "current gpu": str(torch.cuda.current_device()),
        "driver": driver(), "triton": triton_version(),
        "triton's settings": repr(sorted(
            (name, value) for name, value in os.environ.items()
            if name.startswith("TRITON_") and name not in NO_MATTER)),
    }  # fmt: skip


def settings_of_libraries() -> str:
    """How the program has set the libraries on a GPU, where a compile asks for it."""
    cudnn: Any = torch.backends.cudnn
    attention = [getattr(torch._C, name)() for name in ("_get_cudnn_sdp_enabled",
                 "_get_sdp_priority_order") if hasattr(torch._C, name)]  # fmt: skip
    return repr((
        torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.enabled,
        cudnn.benchmark, cudnn.deterministic, attention))  # fmt: skip


@functools.cache
def kinds_of_gpus() -> str:
    """All GPUs of this process in their order, those that are alike and neighbours counted."""
    kinds = map(kind_of_gpu, range(torch.cuda.device_count()))
    return ", ".join([f"{len([*group])} {kind}" for kind, group in itertools.groupby(kinds)])


@functools.cache
def kind_of_gpu(number: int) -> str:
    """Name, capability and processors of a GPU."""
    facts = torch.cuda.get_device_properties(number)
    return f"{facts.name} {facts.major}.{facts.minor} x{facts.multi_processor_count}"


@functools.cache
def driver() -> str:
    """The versions of CUDA that the driver is for, and of the driver itself where it tells it."""
    version = int(torch._C._cuda_getDriverVersion()) if hasattr(
        torch._C, "_cuda_getDriverVersion") else 0
    text = ""
    with contextlib.suppress(OSError):
        text = DRIVER.read_text()
    match = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return f"CUDA {version}, {match[0] if match else 'unknown'}"


@functools.cache
def triton_version() -> str:
    """As its source says it: importing Triton takes longer than all else of a warm start."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    text = Path(spec.origin).read_text()
    version = re.search(r"""^__version__ = ['"](.+?)['"]""", text, re.M)
    return version[1] if version else spec.origin
