"""Torch's global state: each switch is in the guard, by name, and a change compiles again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dynamo
from dynamo import _C
from dynamo.testing import CompileCounter


def setting(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """A context in which owner.name is another value."""

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        old = getattr(owner, name)
        assert old != value
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, old)

    return change


def called(function: Callable[[Any], Any], value: Any, old: Any) -> Callable[[], Any]:
    """A context in which function(value) was called."""

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        function(value)
        try:
            yield
        finally:
            function(old)

    return change


def turned(enable: Callable[[bool], Any], enabled: Callable[[], bool]) -> Callable[[], Any]:
    """A context in which a switch is turned."""

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        old = enabled()
        enable(not old)
        try:
            yield
        finally:
            enable(old)

    return change


backends, cuda = torch.backends, torch.backends.cuda


def warn_only(on: bool) -> None:
    torch.use_deterministic_algorithms(on, warn_only=on)


# What changes -> (how, the words of the state that name it).
SWITCHES: dict[str, tuple[Callable[[], Any], str]] = {
    "no_grad": (torch.no_grad, "grad mode"),
    "inference_mode": (torch.inference_mode, "inference mode"),
    "forward mode off": (
        called(torch._C._set_fwd_grad_enabled, False, True), "forward grad mode"),
    "default dtype": (called(torch.set_default_dtype, torch.float64, torch.float32), "default dtype"),
    "default device": (called(torch.set_default_device, "meta", None), "function modes"),
    "autocast on CPU": (lambda: torch.autocast("cpu", torch.bfloat16), "autocast on CPU"),
    "autocast without cache": (
        lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False), "autocast on CPU"),
    "threads": (called(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()), "threads"),
    "matmul precision": (
        called(torch.set_float32_matmul_precision, "medium", "highest"),
        "float32 precision (TF32)"),
    "TF32 products": (setting(cuda.matmul, "allow_tf32", True), "float32 precision (TF32)"),
    "TF32 convolutions": (
        setting(backends.cudnn, "allow_tf32", not backends.cudnn.allow_tf32),
        "float32 precision (TF32)"),
    "precision by name": (
        setting(cuda.matmul, "fp32_precision", "tf32"), "float32 precision (TF32)"),
    "oneDNN precision": (
        setting(backends.mkldnn.matmul, "fp32_precision", "bf16"), "float32 precision (TF32)"),
    "cudnn.enabled": (setting(backends.cudnn, "enabled", False), "cuDNN"),
    "cudnn.benchmark": (setting(backends.cudnn, "benchmark", True), "cuDNN"),
    "cudnn.deterministic": (setting(backends.cudnn, "deterministic", True), "cuDNN"),
    "mkldnn off": (called(torch._C._set_mkldnn_enabled, False, True), "oneDNN and NNPACK"),
    "nnpack off": (called(backends.nnpack.set_flags, False, True), "oneDNN and NNPACK"),
    "deterministic": (
        called(torch.use_deterministic_algorithms, True, False), "deterministic algorithms"),
    "deterministic, only a warning": (called(warn_only, True, False), "deterministic algorithms"),
    "fill uninitialized memory": (
        setting(torch.utils.deterministic, "fill_uninitialized_memory", False),
        "deterministic algorithms"),
    "flash attention": (
        turned(cuda.enable_flash_sdp, cuda.flash_sdp_enabled), "attention kernels"),
    "efficient attention": (
        turned(cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled),
        "attention kernels"),
    "plain attention": (turned(cuda.enable_math_sdp, cuda.math_sdp_enabled), "attention kernels"),
    "cuDNN's attention": (
        turned(cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled), "attention kernels"),
    "fp16 reductions": (
        setting(cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        "reduced precision of products"),
    "bf16 reductions": (
        setting(cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        "reduced precision of products"),
}


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_guarded(name: str) -> None:
    change, word = SWITCHES[name]
    counter = CompileCounter("eager")
    compiled = dynamo.compile(plus_one, backend=counter)
    x = torch.randn(3)
    before = _C.global_state()
    compiled(x), compiled(x)
    assert counter.frame_count == 1
    with change():
        state = zip(_C.STATE_NAMES, before, _C.global_state(), strict=True)
        assert word in [text for text, old, new in state if old != new]
        for _ in range(3):
            assert torch.equal(compiled(x), plus_one(x))
        assert counter.frame_count == 2
    if _C.global_state() == before:  # some setters leave another name for the same behind
        compiled(x)
        assert counter.frame_count == 2


def test_switching_back_and_forth_finds_both_entries() -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(plus_one, backend=counter)
    for number in range(6):
        torch.use_deterministic_algorithms(bool(number % 2))
        compiled(torch.ones(2))
    torch.use_deterministic_algorithms(False)
    assert counter.frame_count == 2


class Adds(TorchFunctionMode):
    def __init__(self, amount: int) -> None:
        super().__init__()
        self.amount = amount

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result + self.amount if function is torch.Tensor.add else result


class AddsBelow(TorchDispatchMode):
    def __init__(self, amount: int) -> None:
        super().__init__()
        self.amount = amount

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result + self.amount if function is torch.ops.aten.add.Tensor else result


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("mode", [Adds, AddsBelow])
def test_modes_of_the_user_act_as_in_eager(mode: Any, backend: str) -> None:
    compiled = dynamo.compile(plus_one, backend=backend)
    x = torch.randn(3)
    compiled(x)
    for amount in (1, 10, 1, 100):
        with mode(amount):
            want, got = plus_one(x), compiled(x)
        assert torch.equal(want, got), amount
    same = mode(5)
    for amount in (5, 7):
        same.amount = amount
        with same:
            want, got = plus_one(x), compiled(x)
        assert torch.equal(want, got), amount


def zeros_like_default(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(3), x + 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_default_devices_are_told_apart(backend: str) -> None:
    compiled = dynamo.compile(zeros_like_default, backend=backend)
    try:
        for device in ("meta", "cpu", "meta", "cpu", None):
            torch.set_default_device(device)
            made, _ = compiled(torch.ones(2, device="cpu"))
            assert made.device.type == (device or "cpu")
    finally:
        torch.set_default_device(None)
