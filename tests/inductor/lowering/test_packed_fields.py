"""Which bits of a word an integer is made of: chains of shifts, masks and conversions, drawn at random."""

from __future__ import annotations

import random

import torch

from inductor.ir.body import trace_body
from inductor.lowering.packed import _field_of

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
STEPS = ("left", "right", "mask", "to")


def drawn(rng, dtype):
    """A step, what it does to a tensor, and to a value of a body."""
    step, bits = rng.choice(STEPS), torch.iinfo(dtype).bits
    if step == "to":
        goal = rng.choice(DTYPES)
        return goal, lambda x: x.to(goal), lambda ops, v: ops.to_dtype(v, goal)
    if step == "mask":
        number = rng.choice((15, 7, 240, 3, 255, 1 << 4, 0xF00, 5, 0x7FFF)) & torch.iinfo(dtype).max
        return dtype, lambda x: x & number, lambda ops, v: ops.bitwise_and(v, ops.constant(number, dtype))
    distance, name = rng.choice((0, 1, 4, 4, 4, 8, 12, 24, 28)) % bits, f"shift_{step}"
    there = torch.bitwise_left_shift if step == "left" else torch.bitwise_right_shift
    return dtype, lambda x: there(x, distance), lambda ops, v: ops.call(name, v, ops.constant(distance, dtype))


def value_of(field, words):
    """What such bits of these words count."""
    low = (words.long() & 0xFFFFFFFF) >> field.low
    low = low & ((1 << field.count) - 1)
    if field.signed:
        low = torch.where(low >> (field.count - 1) != 0, low - (1 << field.count), low)
    return low << field.at


def test_fields_are_what_is_computed() -> None:
    rng, known, nibbles = random.Random(0), 0, 0
    words = torch.randint(-(2**31), 2**31, (64,)).int()
    for _ in range(3000):
        steps, dtype = [], torch.int32
        for _ in range(rng.randint(1, 5)):
            dtype, *both = drawn(rng, dtype)
            steps.append(both)
        found = []

        def body(ops, i, r, steps=steps, found=found):
            value = ops.load("words", i[0], torch.int32)
            start = value.position
            for _, make in steps:
                value = make(ops, value)
            found.append((_field_of(ops, value.position), start))
            ops.store("", i[0], value)

        trace_body((64,), (), body)
        field, start = found[-1]
        if field is None or field.word != start:
            continue
        known += 1
        expected = words
        for make, _ in steps:
            expected = make(expected)
        assert torch.equal(value_of(field, words), expected.long()), (field, steps)
        nibbles += field.count == 4
    assert known > 1000 and nibbles > 100
