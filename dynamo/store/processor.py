"""What the processor is taken for: one record, by which kernels are built and libraries chosen.

`processor()` describes this machine, or what `DYNAMO_PROCESSOR` says: a kind, for which the
compiler builds (as `-march` takes it; what is built here runs here only if this machine can run
it), and the library that is said to be the fastest, so that nothing is measured.
`DYNAMO_PROCESSOR="x86-64-v3 mkl"` says both. It holds for a whole process, in which each of our own
functions is loaded once. Keys of caches hold the record's text.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import torch

LIBRARIES = MKL, ONEDNN, OURS = "mkl", "onednn", "ours"
# Operators that say whether oneDNN has GEMMs of a dtype for this processor.
HALF_SUPPORT = {
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}
# Kinds (`-march`) whose instructions make GEMMs of half precision: what oneDNN has for those.
HALF_KINDS = {
    "cooperlake": frozenset([torch.bfloat16]),
    "sapphirerapids": frozenset([torch.bfloat16, torch.float16]),
}


@dataclass(frozen=True, slots=True)
class Processor:
    """text: the same for processors with the same instructions. flag: the compiler's for its kind.
    half: dtypes of half precision that oneDNN has fast GEMMs of. fastest: of `MKL`, `ONEDNN` and
    `OURS`, for GEMMs, convolutions and attention; "" where that is measured."""

    text: str
    flag: str
    half: frozenset[torch.dtype]
    fastest: str = ""


@functools.cache
def processor() -> Processor:
    """The record of this process. Errors: ValueError for what is no description."""
    return describe(os.environ.get("DYNAMO_PROCESSOR", ""))


def kind_in(text: str) -> str:
    """The kind that a description names, or "".

    >>> kind_in("x86-64-v3 mkl"), kind_in("onednn")
    ('x86-64-v3', '')
    """
    return " ".join(word for word in text.split() if word not in LIBRARIES)


def describe(text: str) -> Processor:
    """The record of this machine as a text changes it. Errors: ValueError.

    >>> describe("x86-64-v3 mkl").flag, describe("x86-64-v3 mkl").fastest
    ('-march=x86-64-v3', 'mkl')
    """
    record, kind = _this_one(), kind_in(text)
    fastest = " ".join(word for word in text.split() if word in LIBRARIES)
    if " " in kind or " " in fastest:
        raise ValueError(f"a processor is a kind and one of {', '.join(LIBRARIES)}, not {text!r}")
    if kind:
        half = HALF_KINDS.get(kind, frozenset())
        record = Processor(f"{record.text} as {kind}", f"-march={kind}", half)
    if fastest:
        record = replace(record, text=f"{record.text}, {fastest} is fastest", fastest=fastest)
    return record


def _this_one() -> Processor:
    flag = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    return Processor(_instructions(), flag, frozenset(filter(_has_gemms, HALF_SUPPORT)))


def _has_gemms(dtype: torch.dtype) -> bool:
    """Whether oneDNN, where torch has it, says so."""
    ask = getattr(torch.ops.mkldnn, HALF_SUPPORT[dtype], None)
    return ask is not None and bool(ask())


def _instructions() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                flags = " ".join(sorted(value.split()))
                return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()}"
