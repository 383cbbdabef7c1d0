"""Device functions that generated Triton kernels call.

Imported by generated files only: importing it imports triton. `libdevice` is CUDA's math library,
which has the same bits as eager's kernels; under TRITON_INTERPRET=1, which cannot call it,
functions over torch stand in. Operands of a function have one dtype; shapes broadcast. A dtype is
compared with `==`: what `libdevice` returns has an equal one, not the same object. What is imported
here the processes that compile kernels import, too (`inductor.runtime.compile_worker`): no torch.
"""
# Triton reads these functions, Python never runs them.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

from inductor.codegen.triton.conversions import e4m3_saturates

if knobs.runtime.interpret:
    from inductor.codegen.triton.interpreted import libdevice
else:
    from triton.language.extra import libdevice  # type: ignore[no-redef]


@triton.jit
def k_truediv(a, b):
    """a / b, rounded correctly."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def k_truediv_of_small(a, b):
    """a / b where a may be zero or very small, as masks and exponentials make it: of such a
    numerator the instruction is a call of a hundred others, which a warp does one after the other
    (8 quotients of 2^26 zeros took 924 us on an H200, of ones 313). So another number is divided,
    and the quotient multiplied; below 2^-100 the last bit may differ."""
    if a.dtype == tl.float32:
        is_small = tl.abs(a) < 2.0**-100
        found = tl.div_rn(tl.where(is_small, 2.0**-60, a), b)
        return found * tl.where(is_small, a * 2.0**60, 1.0)
    else:
        return a / b


@triton.jit
def k_sqrt(a):
    """Square root, rounded correctly."""
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    else:
        return libdevice.sqrt(a)


@triton.jit
def k_swapped(a):
    """The tile with neighbours along its last axis in each other's place, two by two."""
    if len(a.shape) == 1:
        first, second = tl.split(tl.reshape(a, [a.shape[0] // 2, 2]))
        return tl.reshape(tl.join(second, first), [a.shape[0]])
    else:
        first, second = tl.split(tl.reshape(a, [a.shape[0], a.shape[1] // 2, 2]))
        return tl.reshape(tl.join(second, first), [a.shape[0], a.shape[1]])


@triton.jit
def k_side(a, side: tl.constexpr):
    """Of each two neighbours along the last axis the first (0) or the second one (1)."""
    if len(a.shape) == 1:
        first, second = tl.split(tl.reshape(a, [a.shape[0] // 2, 2]))
    else:
        first, second = tl.split(tl.reshape(a, [a.shape[0], a.shape[1] // 2, 2]))
    if side == 0:
        return first
    else:
        return second


@triton.jit
def k_joined(first, second):
    """A tile in which the elements of both alternate along the last axis."""
    if len(first.shape) == 1:
        return tl.reshape(tl.join(first, second), [2 * first.shape[0]])
    else:
        return tl.reshape(tl.join(first, second), [first.shape[0], 2 * first.shape[1]])


@triton.jit
def k_neg(a):
    """-a; `0 - a`, which Triton makes of a minus, loses the sign of zero."""
    if a.dtype.is_floating():
        return a * -1.0
    else:
        return 0 - a


@triton.jit
def k_fmod(a, b):
    """Remainder with the sign of the dividend."""
    if a.dtype.is_floating():
        return libdevice.fmod(a, b)
    else:
        return a % b


@triton.jit
def k_remainder(a, b):
    """Remainder with the sign of the divisor."""
    rest = k_fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def k_floordiv(a, b):
    """Quotient rounded to minus infinity, in eager's steps."""
    if a.dtype.is_floating():
        rest = libdevice.fmod(a, b)
        quotient = k_truediv(a - rest, b)
        quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
        floored = libdevice.floor(quotient)
        floored = tl.where(quotient - floored > 0.5, floored + 1.0, floored)
        zero = libdevice.copysign(quotient * 0.0, k_truediv(a, b))
        floored = tl.where(quotient != 0, floored, zero)
        return tl.where(b == 0, k_truediv(a, b), floored)
    else:
        rest = a % b
        return a // b - ((rest != 0) & ((rest < 0) != (b < 0))).to(a.dtype)


@triton.jit
def k_pow(a, b):
    """a ** b; integers wrap around, and 1 / a ** -b is rounded towards zero."""
    if a.dtype.is_floating():
        return libdevice.pow(a, b)
    else:
        result = a * 0 + b * 0 + 1
        base = a + b * 0
        rest = b + a * 0
        for _ in range(a.dtype.primitive_bitwidth):
            result = tl.where((rest & 1) != 0, result * base, result)
            base = base * base
            rest = rest >> 1
        if a.dtype.is_int_signed():
            odd = (b & 1) != 0
            fraction = tl.where(a == 1, 1, tl.where(a == -1, tl.where(odd, -1, 1), 0)).to(a.dtype)
            result = tl.where(b < 0, fraction, result)
        return result


@triton.jit
def k_maximum(a, b):
    """The greater one; NaN wins; bool: or."""
    if a.dtype == tl.float32:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where((a > b) | (a != a), a, b)
    elif a.dtype == tl.int1:
        return a | b
    else:
        return tl.where(a > b, a, b)


@triton.jit
def k_minimum(a, b):
    """The lesser one; NaN wins; bool: and."""
    if a.dtype.is_floating():
        return tl.where((a < b) | (a != a), a, b)
    elif a.dtype == tl.int1:
        return a & b
    else:
        return tl.where(a < b, a, b)


@triton.jit
def k_or(a, b):
    """Combines the values of an `any` reduction."""
    return a | b


@triton.jit
def k_add(a, b):
    """Combines the values of a `sum` reduction."""
    return a + b


@triton.jit
def k_logaddexp(a, b):
    """Combines the values of a `logaddexp` scan, as ATen's kernel does."""
    low, high = k_minimum(a, b), k_maximum(a, b)
    found = libdevice.log1p(libdevice.exp(low - high)) + high
    return tl.where((low != high) | (tl.abs(low) < float("inf")), found, a)


@triton.constexpr_function
def k_log2(number):
    """Of a power of two."""
    return number.bit_length() - 1


@triton.jit
def _partner(h, axis: tl.constexpr):
    """Of integers on a hypercube, the neighbour along an axis."""
    return tl.sum(h, axis, keep_dims=True) - h


@triton.jit
def _second(rank: tl.constexpr, axis: tl.constexpr):
    """Whether it is the second one along an axis of a hypercube."""
    shape: tl.constexpr = [1] * axis + [2] + [1] * (rank - 1 - axis)
    return tl.reshape(tl.arange(0, 2), shape) != 0


@triton.jit
def k_sorted(key):
    """The rows of a tile of int64 in order, by a bitonic network."""
    count: tl.constexpr = k_log2(key.numel)
    steps: tl.constexpr = k_log2(key.shape[1])
    h = tl.reshape(key, [2] * count)
    for step in tl.static_range(1, steps + 1):
        for back in tl.static_range(0, step):
            other = _partner(h, count - step + back)
            turned = _second(count, count - step + back)
            if step < steps:
                turned = turned ^ _second(count, count - 1 - step)
            h = tl.where((h > other) != turned, other, h)
    return tl.reshape(h, key.shape)


@triton.jit
def k_sorted_places(key, place):
    """The places (int32) of the rows' keys (int64) in order, of equal ones the least first."""
    count: tl.constexpr = k_log2(key.numel)
    steps: tl.constexpr = k_log2(key.shape[1])
    h, at = tl.reshape(key, [2] * count), tl.reshape(place, [2] * count)
    for step in tl.static_range(1, steps + 1):
        for back in tl.static_range(0, step):
            other = _partner(h, count - step + back)
            elsewhere = _partner(at, count - step + back).to(tl.int32)
            turned = _second(count, count - step + back)
            if step < steps:
                turned = turned ^ _second(count, count - 1 - step)
            is_after = (h > other) | ((h == other) & (at > elsewhere))
            h = tl.where(is_after != turned, other, h)
            at = tl.where(is_after != turned, elsewhere, at)
    return tl.reshape(at, place.shape)


@triton.jit
def k_mul(a, b):
    """Combines the values of a `prod` reduction."""
    return a * b


@triton.jit
def k_argmax(a, at_a, b, at_b):
    """Combines (value, position): the greater value, NaN first; of equals the first position."""
    better = a > b
    equal = a == b
    if a.dtype.is_floating():
        better = better | ((a != a) & (b == b))
        equal = equal | ((a != a) & (b != b))
    take = better | (equal & (at_a < at_b))
    return tl.where(take, a, b), tl.where(take, at_a, at_b)


@triton.jit
def k_argmin(a, at_a, b, at_b):
    """Combines (value, position): the lesser value, NaN first; of equals the first position."""
    better = a < b
    equal = a == b
    if a.dtype.is_floating():
        better = better | ((a != a) & (b == b))
        equal = equal | ((a != a) & (b != b))
    take = better | (equal & (at_a < at_b))
    return tl.where(take, a, b), tl.where(take, at_a, at_b)


@triton.jit
def k_sum_of_exp(best, total, a):
    """(maximum, sum of exp(value - maximum)) of the values so far, and of `a` as well."""
    best_now = k_maximum(best, a)
    distance = tl.abs(best - a)
    if a.dtype == tl.float32:  # the farther away, the less its rounding counts in the sum
        lesser = tl.exp2(distance * -1.4426950408889634)
    else:
        lesser = libdevice.exp(distance * -1.0)
    lesser = tl.where(a == best, 1.0, lesser).to(a.dtype)  # of infinities, too
    return best_now, tl.where(a > best, total * lesser + 1.0, total + lesser)


@triton.jit
def k_sum_of_four_exp(best, total, a, b, c, d):
    """The same with four values at a time, for which what was summed is scaled once."""
    most = k_maximum(k_maximum(a, b), k_maximum(c, d))
    best_now = k_maximum(best, most)
    at = tl.where(best_now == float("-inf"), 0.0, best_now).to(a.dtype)
    if a.dtype == tl.float32:
        scale = 1.4426950408889634
        total = total * tl.exp2((best - at) * scale)
        total += tl.exp2((a - at) * scale) + tl.exp2((b - at) * scale)
        total += tl.exp2((c - at) * scale) + tl.exp2((d - at) * scale)
    else:
        total = total * libdevice.exp(best - at)
        total += libdevice.exp(a - at) + libdevice.exp(b - at)
        total += libdevice.exp(c - at) + libdevice.exp(d - at)
    return best_now, total


@triton.jit
def k_normal_cdf(a):
    """(1 + erf(a / sqrt(2))) / 2 with a relative error of 5e-6, for negative ones, too: two to the
    power of a polynomial is the probability to be farther away than |a|."""
    distance = tl.abs(a)
    power = tl.fma(distance, 1.75778340e-06, -5.99367504e-05)
    power = tl.fma(distance, power, 9.16364631e-04)
    power = tl.fma(distance, power, -8.44739413e-03)
    power = tl.fma(distance, power, 5.38245256e-02)
    power = tl.fma(distance, power, 4.58615673e-01)
    power = tl.fma(distance, power, 1.15118019)
    power = tl.fma(distance, power, 1.00000387)
    tail = tl.exp2(0.0 - power)
    return tl.where(a < 0.0, tail, 1.0 - tail)


@triton.jit
def k_sign(a):
    """-1, 0 or 1; 0 for NaN."""
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def k_isinf(a):
    """Whether a is infinite."""
    return tl.abs(a) == float("inf")


@triton.jit
def k_signbit(a):
    """Whether the sign bit is set, of zeros and NaN too."""
    if a.dtype == tl.float64:
        return a.to(tl.int64, bitcast=True) < 0
    else:
        return a.to(tl.int32, bitcast=True) < 0


@triton.jit
def k_sigmoid(a):
    """1 / (1 + exp(-a)), as eager computes it."""
    below = 1.0 + libdevice.exp(a * -1.0)
    if a.dtype == tl.float32:
        return tl.div_rn(1.0, below)
    else:
        return 1.0 / below


@triton.jit
def k_quick_silu(a):
    """a / (1 + exp(-a)) with the device's approximations: a few places of float32 off."""
    return libdevice.fast_dividef(a, 1.0 + tl.exp2(a * -1.4426950408889634))


@triton.jit
def k_quick_fraction(a, b):
    """a / b by the device's approximation; 0 where b is 2 ** 126 or more."""
    a, b = tl.broadcast(a, b)
    return libdevice.fast_dividef(a, b)


@triton.jit
def k_quick_sigmoid(a):
    """1 / (1 + exp(-a)) with the device's approximations."""
    below = 1.0 + tl.exp2(a * -1.4426950408889634)
    return libdevice.fast_dividef(tl.full(below.shape, 1.0, tl.float32), below)


@triton.jit
def k_one_plus_tanh(a):
    """1 + tanh(a) with the device's approximations, exact relative to itself."""
    below = 1.0 + tl.exp2(a * -2.885390081777927)
    return libdevice.fast_dividef(tl.full(below.shape, 2.0, tl.float32), below)


@triton.jit
def k_tanh_slope(a):
    """1 - tanh(a) ** 2 with the device's approximations: some 2 ** -23 off."""
    half = k_one_plus_tanh(a)
    return half * (2.0 - half)


@triton.jit
def k_quick_softplus(a):
    """log(1 + exp(a)) with the device's approximations, some 2 ** -16 off relative to itself: where
    the power is below 2 ** -7, one plus it has too few of its places."""
    power = tl.exp2(a * 1.4426950408889634)
    return tl.where(
        power < 0.0078125, power - 0.5 * power * power,
        libdevice.fast_log2f(1.0 + power) * 0.6931471805599453)


@triton.jit
def k_tanh_of_softplus(a):
    """tanh(log(1 + exp(a))) with the device's approximations: w / (w + 2) of w = p * (p + 2) for
    p = exp(a). Beyond 20 it is 1, and the square stays finite."""
    power = tl.exp2(tl.where(a > 20.0, 20.0, a) * 1.4426950408889634)
    above = power * (power + 2.0)
    return libdevice.fast_dividef(above, above + 2.0)


@triton.jit
def k_rounded_within(a, low, high):
    """An int32: a, rounded to even, between whole numbers within 2 ** 22; 0 for NaN. A sum with
    1.5 * 2 ** 23 has no places for fractions."""
    within = tl.minimum(tl.maximum(a, low), high)
    whole = (within + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    return tl.where(a == a, whole, 0)


@triton.jit
def k_shift_left(a, b):
    """a << b; 0 where b is no possible distance."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    bad = (b < 0) | (b >= bits)
    return tl.where(bad, 0, a << tl.where(bad, 0, b)).to(a.dtype)


@triton.jit
def k_shift_right(a, b):
    """a >> b; the greatest distance where b is no possible one."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    bad = (b < 0) | (b >= bits)
    if a.dtype.is_int_signed():
        return a >> tl.where(bad, bits - 1, b).to(a.dtype)
    else:
        return tl.where(bad, 0, a >> tl.where(bad, 0, b)).to(a.dtype)


@triton.jit
def k_from_byte(a):
    """An integer of 8 bits as float32: in the last bits of 2 ** 23, as a device converts a quarter
    as many integers as it adds floats, and weights wait for that."""
    bits = a.to(tl.int32) & 255
    if a.dtype.is_int_signed():
        return (bits ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0
    else:
        return (bits ^ 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


# Four integers of 8 bits, which lie in one register: as above, with one instruction for each.
_FROM_FOUR = """{{ .reg .b32 a; xor.b32 a, $4, {flip}; prmt.b32 $0, a, 0x4B000000, 0x7650;
prmt.b32 $1, a, 0x4B000000, 0x7651; prmt.b32 $2, a, 0x4B000000, 0x7652;
prmt.b32 $3, a, 0x4B000000, 0x7653; add.f32 $0, $0, {less}; add.f32 $1, $1, {less};
add.f32 $2, $2, {less}; add.f32 $3, $3, {less}; }}"""
FROM_SIGNED = tl.constexpr(_FROM_FOUR.format(flip="0x80808080", less="0fCB000080"))
FROM_UNSIGNED = tl.constexpr(_FROM_FOUR.format(flip="0", less="0fCB000000"))


@triton.jit
def _k_from_bytes(a):
    """The same of integers as they were loaded, a few side by side; a column of one row is one."""
    if a.numel % 4 != 0:
        return k_from_byte(a)
    elif a.dtype.is_int_signed():
        return tl.inline_asm_elementwise(
            FROM_SIGNED, "=f,=f,=f,=f,r", [a], dtype=tl.float32, is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise(
            FROM_UNSIGNED, "=f,=f,=f,=f,r", [a], dtype=tl.float32, is_pure=True, pack=4)


k_from_bytes = k_from_byte if knobs.runtime.interpret else _k_from_bytes


@triton.jit
def _k_above_one(a, mask):
    """1.0 whose mantissa has these bits of an integer; the compiler makes two instructions of what
    is one."""
    return tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, 0x3F800000, 0xEA;", "=f,r,r", [a, mask], dtype=tl.float32,
        is_pure=True, pack=1)


@triton.jit
def _k_above_one_plainly(a, mask):
    return ((a & mask) | 0x3F800000).to(tl.float32, bitcast=True)


k_above_one = _k_above_one_plainly if knobs.runtime.interpret else _k_above_one


@triton.jit
def k_nibbles_dot(w, a, b, c, d, e, f, g, h):
    """The sum of eight numbers, each times four bits of an int32."""
    low = k_nibble(w, 0) * a + k_nibble(w, 4) * b + k_nibble(w, 8) * c + k_nibble(w, 12) * d
    high = k_nibble(w, 16) * e + k_nibble(w, 20) * f + k_nibble(w, 24) * g + k_nibble(w, 28) * h
    return low + high


@triton.jit
def k_nibble(w, AT: tl.constexpr):
    return ((w >> AT) & 15).to(tl.float32)


SATURATES = tl.constexpr(e4m3_saturates())


@triton.jit
def k_to_e4m3(a):
    """float32 as 8 bits, as ATen converts it; the device takes the greatest for what is larger."""
    if SATURATES:
        return a.to(tl.float8e4nv)
    else:
        return tl.where(tl.abs(a) <= 464.0, a, float("nan")).to(tl.float8e4nv)


@triton.jit
def k_to_e5m2(a):
    """The same with infinities."""
    bits = a.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinity = tl.where(a < 0, 0xFC, 0x7C).to(tl.uint8)
    return tl.where(tl.abs(a) >= 61440.0, infinity, bits).to(tl.float8e5, bitcast=True)


@triton.jit
def k_numbers(seed, offset, counter, subsequence, skip):
    """Philox's four numbers of a counter, which is counted from the offset on."""
    at = (offset >> 2) + skip + counter.to(tl.int64)
    low, high = at.to(tl.uint32), (at >> 32).to(tl.uint32)
    nothing = tl.zeros_like(low)
    return tl.philox(seed, low, high, subsequence.to(tl.uint32), nothing)


@triton.jit
def k_keep(
    seed, offset, at, skip, VECTOR: tl.constexpr, THREADS: tl.constexpr, LIMIT: tl.constexpr,
    WRAPS: tl.constexpr,
):
    """Whether dropout keeps the elements at these places of memory; see `inductor.ir.philox`."""
    unsigned: tl.constexpr = tl.uint64 if at.dtype == tl.int64 else tl.uint32
    at = at.to(unsigned)
    thread = at // VECTOR
    turn = thread // THREADS if WRAPS else thread * 0
    subsequence = thread - turn * THREADS
    if VECTOR == 1:
        counter, lane = turn // 4, turn % 4
    elif VECTOR == 2:
        counter, lane = turn, at % 2
    else:
        counter, lane = turn * (VECTOR // 4) + at % VECTOR // 4, at % 4
    a, b, c, d = k_numbers(seed, offset, counter, subsequence, skip)
    chosen = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return chosen < tl.full([1], LIMIT, tl.uint32)


@triton.jit
def k_keep_four(
    seed, offset, at, skip, VECTOR: tl.constexpr, THREADS: tl.constexpr, LIMIT: tl.constexpr,
    WRAPS: tl.constexpr,
):
    """The same for four neighbours from each of these places on, multiples of four, as int8 with
    two more axes of two places each."""
    unsigned: tl.constexpr = tl.uint64 if at.dtype == tl.int64 else tl.uint32
    at = at.to(unsigned)
    thread = at // VECTOR
    turn = thread // THREADS if WRAPS else thread * 0
    counter = turn * (VECTOR // 4) + at % VECTOR // 4
    a, b, c, d = k_numbers(seed, offset, counter, thread - turn * THREADS, skip)
    limit = tl.full([1], LIMIT, tl.uint32)
    even = tl.join((a < limit).to(tl.int8), (c < limit).to(tl.int8))
    odd = tl.join((b < limit).to(tl.int8), (d < limit).to(tl.int8))
    return tl.join(even, odd)


@triton.jit
def k_floordiv_index(a, b):
    """Quotient rounded to minus infinity, b > 0."""
    rest = a % b
    return (a - tl.where(rest < 0, rest + b, rest)) // b


@triton.jit
def k_mod_index(a, b):
    """Remainder that is never negative, b > 0."""
    rest = a % b
    return tl.where(rest < 0, rest + b, rest)
