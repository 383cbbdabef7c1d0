"""Operands of matrix units out of narrow weights, in registers: part of the kernel prelude.

128 in bfloat16 and 1024 in float16 have a last bit of 1, so that a number or-ed to one of them is
added to it, two at a time; differences of such numbers are exact. The instructions for NVIDIA's
GPUs (compute capability 8.0 and later) have a plain twin for Triton's interpreter.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

ABOVE_BF16, ABOVE_FP16 = 128.0, 1024.0
_NIBBLES = "{{ .reg .b32 t; shr.u32 t, $1, {at}; lop3.b32 $0, t, 0x000F000F, {above}, 0xEA; }}"
_OF_BF16, _OF_FP16 = "0x43004300", "0x64006400"
BF16_AT_0 = tl.constexpr(_NIBBLES.format(at=0, above=_OF_BF16))
BF16_AT_4 = tl.constexpr(_NIBBLES.format(at=4, above=_OF_BF16))
BF16_AT_8 = tl.constexpr(_NIBBLES.format(at=8, above=_OF_BF16))
BF16_AT_12 = tl.constexpr(_NIBBLES.format(at=12, above=_OF_BF16))
FP16_AT_0 = tl.constexpr(_NIBBLES.format(at=0, above=_OF_FP16))
FP16_AT_4 = tl.constexpr(_NIBBLES.format(at=4, above=_OF_FP16))
FP16_AT_8 = tl.constexpr(_NIBBLES.format(at=8, above=_OF_FP16))
FP16_AT_12 = tl.constexpr(_NIBBLES.format(at=12, above=_OF_FP16))
_PAIR = "{{ .reg .b32 t; shr.u32 t, $1, {at}; lop3.b32 $0, t, 0x000F000F, $2, 0xEA; }}"
PAIR_AT_0 = tl.constexpr(_PAIR.format(at=0))
PAIR_AT_4 = tl.constexpr(_PAIR.format(at=4))
PAIR_AT_8 = tl.constexpr(_PAIR.format(at=8))
PAIR_AT_12 = tl.constexpr(_PAIR.format(at=12))
# A byte b is (128 + its low seven bits) - (128, or 256 where the sign bit is set).
BYTES_BF16 = tl.constexpr("""{
    .reg .b32 a, b, c, d, e, less;
    mov.b32 less, 0xBF80BF80;
    prmt.b32 a, $2, 0, 0x4140; prmt.b32 b, $2, 0, 0x4342;
    lop3.b32 c, a, 0x007F007F, 0x43004300, 0xEA; lop3.b32 a, a, 0x00800080, 0x43004300, 0xEA;
    lop3.b32 d, b, 0x007F007F, 0x43004300, 0xEA; lop3.b32 b, b, 0x00800080, 0x43004300, 0xEA;
    fma.rn.bf16x2 $0, a, less, c; fma.rn.bf16x2 $1, b, less, d;
}""")
BYTES_FP16 = tl.constexpr("""{
    .reg .b32 a, b, c, above;
    mov.b32 above, 0x64806480; xor.b32 a, $2, 0x80808080;
    prmt.b32 b, a, 0x64646464, 0x4140; prmt.b32 c, a, 0x64646464, 0x4342;
    sub.rn.f16x2 $0, b, above; sub.rn.f16x2 $1, c, above;
}""")


@triton.jit
def _nibbles_bf16(w, AT: tl.constexpr):
    """Of an int16 that holds four numbers, 128 and the one at bit AT, in bfloat16."""
    TEXT: tl.constexpr = (
        BF16_AT_0 if AT == 0 else BF16_AT_4 if AT == 4 else BF16_AT_8 if AT == 8 else BF16_AT_12)
    return tl.inline_asm_elementwise(
        TEXT, "=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=2)


@triton.jit
def _nibbles_fp16(w, AT: tl.constexpr):
    """Of an int16 that holds four numbers, 1024 and the one at bit AT, in float16."""
    TEXT: tl.constexpr = (
        FP16_AT_0 if AT == 0 else FP16_AT_4 if AT == 4 else FP16_AT_8 if AT == 8 else FP16_AT_12)
    return tl.inline_asm_elementwise(
        TEXT, "=r,r", [w], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def _bytes_bf16(w):
    """int8 in bfloat16."""
    return tl.inline_asm_elementwise(
        BYTES_BF16, "=r,=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=4)


@triton.jit
def _bytes_fp16(w):
    """int8 in float16."""
    return tl.inline_asm_elementwise(
        BYTES_FP16, "=r,=r,r", [w], dtype=tl.float16, is_pure=True, pack=4)


@triton.jit
def _pairs(w, ABOVE: tl.constexpr, AT: tl.constexpr):
    """Numbers of int32 words at bits AT and AT + 16, in the halves of what they are added to. The
    compiler sees halves of one value, not two values to be put together again."""
    TEXT: tl.constexpr = (
        PAIR_AT_0 if AT == 0 else PAIR_AT_4 if AT == 4 else PAIR_AT_8 if AT == 8 else PAIR_AT_12)
    above = tl.full([1, 1, 1], ABOVE * 65537, tl.int32)
    return tl.inline_asm_elementwise(
        TEXT, "=r,r,r", [w, above], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _plain_pairs(w, ABOVE: tl.constexpr, AT: tl.constexpr):
    return ((w >> AT) & 0x000F000F) | (ABOVE * 65537)


if knobs.runtime.interpret:
    k_pairs = _plain_pairs
else:
    k_pairs = _pairs


@triton.jit
def _one(w, ABOVE: tl.constexpr, AT: tl.constexpr):
    return (k_pairs(w, ABOVE, AT % 16) >> (AT // 16 * 16)).to(tl.int16)


@triton.jit
def _eight(w, ABOVE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
           D: tl.constexpr, E: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr):
    """The numbers of int32 words at eight bits as int16, the bits of what they are added to; along
    a new last axis of three: numbers of one thread, side by side."""
    low = tl.join(tl.join(_one(w, ABOVE, A), _one(w, ABOVE, E)),
                  tl.join(_one(w, ABOVE, C), _one(w, ABOVE, G)))
    high = tl.join(tl.join(_one(w, ABOVE, B), _one(w, ABOVE, F)),
                   tl.join(_one(w, ABOVE, D), _one(w, ABOVE, H)))
    return tl.join(low, high)


@triton.jit
def k_eight_bf16(w, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
                 E: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr):
    """128 and each number of int32 words at these bits, in bfloat16, along three new axes."""
    return _eight(w, 0x4300, A, B, C, D, E, F, G, H).to(tl.bfloat16, bitcast=True)


@triton.jit
def k_eight_fp16(w, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
                 E: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr):
    """1024 and each number of int32 words at these bits, in float16, along three new axes."""
    return _eight(w, 0x6400, A, B, C, D, E, F, G, H).to(tl.float16, bitcast=True)


@triton.jit
def _plain_nibbles_bf16(w, AT: tl.constexpr):
    return (((w >> AT) & 15).to(tl.float32) + 128.0).to(tl.bfloat16)


@triton.jit
def _plain_nibbles_fp16(w, AT: tl.constexpr):
    return (((w >> AT) & 15).to(tl.float32) + 1024.0).to(tl.float16)


@triton.jit
def _plain_bytes_bf16(w):
    return w.to(tl.float32).to(tl.bfloat16)


@triton.jit
def _plain_bytes_fp16(w):
    return w.to(tl.float16)


if knobs.runtime.interpret:
    k_nibbles_bf16, k_nibbles_fp16 = _plain_nibbles_bf16, _plain_nibbles_fp16
    k_bytes_bf16, k_bytes_fp16 = _plain_bytes_bf16, _plain_bytes_fp16
else:
    k_nibbles_bf16, k_nibbles_fp16 = _nibbles_bf16, _nibbles_fp16
    k_bytes_bf16, k_bytes_fp16 = _bytes_bf16, _bytes_fp16
