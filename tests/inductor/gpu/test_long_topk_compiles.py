"""Triton and ptxas compile the kernels of `topk` along long rows without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

import torch  # noqa: E402

from inductor.kernels.gpu import long_topk  # noqa: E402
from inductor.kernels.gpu.text_launches import load_text  # noqa: E402

TENSORS = {"SPACE": "*i64", "PLACES": "*i64"}
KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int32: "*i32"}


@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)])
@pytest.mark.parametrize("shape, k, largest, dtype", [
    ((1, 128256), 200, True, torch.bfloat16), ((64, 4096), 8, False, torch.float32), ((4, 1 << 20), 1024, True, torch.int32),
    ((1, 9000), 50, False, torch.uint8),
])  # fmt: skip
def test_kernels(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], k: int, largest: bool, dtype: torch.dtype, target: Any
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made: list[Any] = []
    monkeypatch.setattr(long_topk.TextLaunch, "of", lambda *args: made.append(args))
    long_topk.prepare(torch.empty(shape, dtype=dtype, device="meta"), k, largest)
    assert len(made) == 3
    for name, _, constants, blocks, _ in made:
        function = getattr(load_text(name.text), name.name)
        known = constants | {"ROWS": blocks.rows, "COLUMNS": blocks.columns}
        signature = {
            each: TENSORS.get(each, KINDS[dtype]) if each in ("X", "SPACE", "VALUES", "PLACES") else "constexpr"
            for each in function.arg_names
        }
        what = ASTSource(fn=function, signature=signature, constexprs={each: known[each] for each in known if each in signature})
        built = triton.compile(what, target=GPUTarget(*target), options={"num_warps": blocks.warps})
        if target[0] == "cuda":
            assert ".local .align" not in built.asm["ptx"], "registers suffice"
