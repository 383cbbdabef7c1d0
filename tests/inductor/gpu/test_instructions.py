"""How many instructions kernels have for each element, as ptxas makes them without a GPU.

An H200 can begin 27 for each four bytes that it moves, and an eighth as many exponentials, reciprocals, conversions or
roundings of single values ("slow" ones). The limits are a tenth above what was counted when they were written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from moved_bytes import compiled, kernels_of

from inductor.lowering import pointwise

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)
DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
BF16, F32 = torch.bfloat16, torch.float32
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+)", re.MULTILINE)
SLOW = ("MUFU", "F2F", "F2I", "I2F", "FRND")


def scaled(x):
    """A row in float8, and its scale."""
    scale = (x.abs().amax(1, keepdim=True) / 448).float()
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def quantized(x):
    """A row in int8, and its scale."""
    scale = (x.abs().amax(1, keepdim=True).float() / 127).clamp(min=1e-5)
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8), scale


def gate_gradient(g, a, b):
    s = torch.sigmoid(a.float())
    return g * b * (s * (1 + a.float() * (1 - s))).to(g.dtype), g * F.silu(a)


PROGRAMS = {  # the most instructions of an element, and the most slow ones
    "number": (lambda x: x / 3.3, F32, 1, 5.5, 0.0),
    "silu": (F.silu, BF16, 1, 11.0, 2.0),
    "gelu": (F.gelu, BF16, 1, 19.0, 1.0),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), BF16, 1, 19.0, 2.0),
    "gelu cast": (lambda x: F.gelu(x).float() * 2, BF16, 1, 24.5, 2.0),
    "gate": (lambda a, b: F.silu(a) * b, BF16, 2, 14.5, 2.0),
    "gate gradient": (gate_gradient, BF16, 3, 27.5, 3.3),
    "softplus": (F.softplus, BF16, 1, 17.5, 2.6),
    "mish": (F.mish, BF16, 1, 15.5, 2.0),
    "row in float8": (scaled, BF16, 1, 24.5, 1.3),
    "row in int8": (quantized, BF16, 1, 50.5, 1.4),
    "silu in float8": (lambda x: scaled(F.silu(x)), BF16, 1, 32.0, 3.7),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_instructions_of_an_element(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pointwise, "converts_small_floats", lambda device: True)
    program, dtype, count, most, most_slow = PROGRAMS[name]
    inputs = [torch.empty(2048, 4096, dtype=dtype, device="meta") for _ in range(count)]
    ((source, buffers),) = kernels_of(program, inputs, capture)
    (tmp_path / "cubin").write_bytes(compiled(source, {n: b[0] for n, b in buffers.items()}, tmp_path).asm["cubin"])
    text = subprocess.run([DISASSEMBLER, "-c", tmp_path / "cubin"], capture_output=True, text=True, check=True).stdout
    counts, chosen = Counter(LINE.findall(text)), source.choices.classes[0].configs[0]
    elements = chosen.rows * chosen.columns / (chosen.warps * 32)  # of a thread
    assert counts["LDG"] and counts["STG"] and counts["EXIT"], "nothing was read"
    assert counts.total() / elements <= most, counts
    assert sum(counts[each] for each in SLOW) / elements <= most_slow, counts
