"""Triton and ptxas compile the kernel of large windows without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

import torch  # noqa: E402

from inductor.kernels.gpu import windows  # noqa: E402
from inductor.kernels.gpu.text_launches import load_text  # noqa: E402


@pytest.mark.parametrize("window, dtype, last", [
    ((11, 11), torch.float32, False), ((31, 31), torch.float16, True), ((9, 9), torch.bfloat16, False),
])  # fmt: skip
def test_kernel(monkeypatch: pytest.MonkeyPatch, window: tuple[int, int], dtype: torch.dtype, last: bool) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made: list[Any] = []
    monkeypatch.setattr(windows.TextLaunch, "of", lambda *args: made.append(args))
    x, weight = torch.empty(2, 64, 100, 100, dtype=dtype), torch.empty(64, 1, *window, dtype=dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    windows.prepare(x, weight, (window[0] // 2, window[1] // 2), True)
    (name, _, constants, blocks, _), = made
    kind = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}[dtype]
    function = getattr(load_text(name.text), name.name)
    signature = {each: kind if each in ("X", "W", "OUT") else "constexpr" for each in function.arg_names}
    what = ASTSource(fn=function, signature=signature,
                     constexprs=constants | {"ROWS": blocks.rows, "COLUMNS": blocks.columns})
    built = triton.compile(what, target=GPUTarget("cuda", 90, 32), options={"num_warps": blocks.warps})
    assert built.asm["cubin"] and len(built.asm["ptx"].splitlines()) < 12000
    assert ".local .align" not in built.asm["ptx"], "registers suffice"
