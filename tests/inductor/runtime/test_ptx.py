"""Packed additions in 16 bits are taken apart before PTX is assembled."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from inductor.runtime.ptx import install_unpacking, unpacked

LINES = """
\tmov.b32 \t%r15, {%rs15, %rs14};
\tadd.s16x2 \t%r17, %r15, %r16;
\tadd.u16x2 %r18, %r17, 16843073;
\tmax.s16x2 \t%r19, %r18, %r17;
\tadd.s32 \t%r20, %r19, %r1;
"""


def test_additions_alone_are_taken_apart() -> None:
    text = unpacked(LINES)
    assert not re.search(r"add\.[su]16x2", text)
    assert text.count("add.s16 ") == 4
    for kept in (0, 1, 4, 5):
        assert LINES.split("\n")[kept] in text
    assert "mov.b32 b, 16843073;" in text and "mov.b32 %r18, {c0, c1};" in text


def test_a_kernel_that_ptxas_gets_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(r + 1 - r) != 1: LLVM packs it, and the assembled code has no packed addition."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if not hasattr(triton.knobs.runtime, "add_stages_inspection_hook"):
        pytest.skip("this Triton has no hook for stages")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", None)
    path = tmp_path / "differences.py"
    path.write_text(KERNEL)
    names: dict[str, object] = {}
    exec(compile(KERNEL, str(path), "exec"), names)
    texts = []
    for installs in (False, True):
        if installs:
            install_unpacking()
        source = ASTSource(
            fn=triton.jit(names["differences"]), signature={"out": "*i1", "N": "constexpr"}, constexprs={"N": 447 - installs})
        texts.append(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 2}))
    assert "add.s16x2" in texts[0].asm["ptx"] and "add.s16x2" not in texts[1].asm["ptx"]
    tool = shutil.which("cuobjdump") or str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
    if Path(tool).exists():
        binary = tmp_path / "kernel.cubin"
        binary.write_bytes(texts[1].asm["cubin"])
        assert "16x2" not in subprocess.run([tool, "-sass", str(binary)], capture_output=True, text=True, check=True).stdout


KERNEL = """
import triton.language as tl

def differences(out, N: tl.constexpr):
    x = tl.program_id(0)
    r = tl.arange(0, 512)
    values = (r + 1).to(tl.int64) - r.to(tl.int64)
    tl.store(out + r + 448 * x + 1, values != 1, r < N)
"""
