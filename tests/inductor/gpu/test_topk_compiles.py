"""Triton and ptxas compile the kernel of `topk` without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

import torch  # noqa: E402

from inductor.kernels.gpu import topk  # noqa: E402
from inductor.kernels.gpu.text_launches import load_text  # noqa: E402


@pytest.mark.parametrize("size, k, largest", [(64, 8, True), (8, 2, True), (1000, 6, False)])
def test_kernel(monkeypatch: pytest.MonkeyPatch, size: int, k: int, largest: bool) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made: list[Any] = []
    monkeypatch.setattr(topk.TextLaunch, "of", lambda *args: made.append(args))
    topk.prepare(torch.empty(4096, size, dtype=torch.bfloat16, device="meta"), k, largest, True)
    (name, grid, constants, blocks, _), = made
    assert grid[0] * blocks.rows == 4096 and blocks.columns >= size and blocks.rows >= blocks.warps
    signature = {"X": "*bf16", "VALUES": "*bf16", "PLACES": "*i64", "COUNT": "constexpr", "ROWS": "constexpr", "COLUMNS": "constexpr"}
    what = ASTSource(fn=getattr(load_text(name.text), name.name), signature=signature,
                     constexprs=constants | {"ROWS": blocks.rows, "COLUMNS": blocks.columns})
    built = triton.compile(what, target=GPUTarget("cuda", 90, 32), options={"num_warps": blocks.warps})
    assert built.asm["cubin"] and len(built.asm["ptx"].splitlines()) < 12000
    assert ".local .align" not in built.asm["ptx"], "registers suffice"
