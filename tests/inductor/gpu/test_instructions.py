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


SCANS = {
    "across memory": (lambda x: (x.view(64, 64, -1) * 2).cumsum(1), F32, 1, 9.5, 0.0),
    "backwards": (lambda x: x.view(64, 64, -1).flip(1).cumsum(1), F32, 1, 9.5, 0.0),
    "of few neighbours": (lambda x: x.view(-1, 1024, 32).cumsum(1), F32, 1, 26.5, 0.0),
    "in half precision": (lambda x: x.view(64, 64, -1).cumsum(1), BF16, 1, 12.0, 0.0),
    "dense": (lambda x: x.view(-1, 512).cumsum(1), F32, 1, 13.5, 0.0),
    "of exponentials": (lambda x: x.view(-1, 512).logcumsumexp(1), F32, 1, 200.0, 12.0),
}
PROGRAMS |= SCANS


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
    assert not counts["LDL"], "registers in memory"
    assert ("tl.associative_scan" in source.text) == (name in SCANS)
    assert counts.total() / elements <= most, counts
    assert sum(counts[each] for each in SLOW) / elements <= most_slow, counts


def awq(x, w, z, s):
    """Words of eight columns each, whose numbers lie in the order 0, 4, 1, 5 .. ."""
    n, by = s.shape[1], torch.arange(0, 32, 4, device=x.device)
    order = torch.arange(n, device=x.device).view(-1, 2, 4).transpose(1, 2).flatten()
    w, z = (((v[:, :, None] >> by) & 15).to(torch.int8).flatten(1)[:, order] for v in (w, z))
    return x @ ((w - z.repeat_interleave(128, 0)) * s.repeat_interleave(128, 0))


def gptq(x, w, z, s):
    by = torch.arange(0, 32, 4, device=x.device, dtype=torch.int32)
    w = ((w[:, None] >> by[None, :, None]) & 15).view(s.shape[0], -1, s.shape[1])
    z = ((z[:, :, None] >> by) & 15).view(s.shape[0], 1, -1) + 1
    return x @ (s[:, None] * (w - z)).flatten(0, 1)


def signed(x, w, s):
    n = torch.stack([(w << 4).view(torch.int8) >> 4, w.view(torch.int8) >> 4], -1)
    return F.linear(x, (n.view(len(w), -1, 128).to(x.dtype) * s).flatten(1))


I32 = torch.int32


def packed(k: int, n: int):
    """Inputs behind the rows, and the most instructions of a number, in the loop."""
    zeros = ((k // 128, n // 8), I32), ((k // 128, n), BF16)
    return {
        "awq": (awq, (((k, n // 8), I32), *zeros), 4.5),
        "gptq": (gptq, (((k // 8, n), I32), *zeros), 3.4),
        "signed": (signed, (((n, k // 2), torch.uint8), ((n, k // 128, 1), BF16)), 3.2),
    }


PLACE, JUMP = re.compile(r"^\s*(\.L_x_\d+):"), re.compile(r"BRA\s+`\((\.L_x_\d+)\)")


def loop_of_units(text: str) -> Counter[str]:
    """The instructions of the loop with most products of matrix units."""
    lines, places, loops = text.splitlines(), {}, [Counter()]
    for at, line in enumerate(lines):
        if found := PLACE.match(line):
            places[found[1]] = at
        if (found := JUMP.search(line)) and found[1] in places:
            loops.append(Counter(LINE.findall("\n".join(lines[places[found[1]] : at + 1]))))
    return max(loops, key=lambda counts: (counts["HMMA"], -counts.total()))


@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize("name", ["awq", "gptq", "signed"])
@pytest.mark.parametrize(("k", "n", "masks"), [(4096, 4096, 0), (2944, 4000, 1)])
def test_instructions_of_a_packed_number(name, rows, k, n, masks, tmp_path) -> None:
    """masks: a few more where the last tiles are not full."""
    program, given, most = packed(k, n)[name]
    most += masks
    inputs = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in (((rows, k), BF16), *given)]
    *_, (source, buffers) = kernels_of(program, inputs, capture)
    assert "k_nibbles_bf16(" in source.text or "k_eight_bf16(" in source.text
    (tmp_path / "cubin").write_bytes(compiled(source, {n: b[0] for n, b in buffers.items()}, tmp_path).asm["cubin"])
    text = subprocess.run([DISASSEMBLER, "-c", tmp_path / "cubin"], capture_output=True, text=True, check=True).stdout
    shape = source.choices.classes[0].configs[0]
    counts, numbers = loop_of_units(text), shape.rows * shape.columns * (1 if name == "awq" else 8) / 32
    assert counts["HMMA"] and counts.total() / numbers <= most, counts
