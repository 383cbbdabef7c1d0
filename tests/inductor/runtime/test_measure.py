"""Inputs for measurements."""

from __future__ import annotations

import torch

from inductor.autotune.measure import random_sets
from inductor.ir.graph import Layout

CPU = torch.device("cpu")


def test_layouts_are_kept_and_random_numbers_too() -> None:
    layouts = [
        Layout(CPU, torch.float16, (4, 3), (1, 8), 2), Layout(CPU, torch.int64, (5,), (1,)),
        Layout(CPU, torch.bool, (), ()),
    ]
    state = torch.get_rng_state()
    sets = random_sets(layouts)
    assert torch.equal(state, torch.get_rng_state())
    assert len(sets) > 1
    for tensors in sets:
        for tensor, layout in zip(tensors, layouts, strict=True):
            assert (tensor.shape, tensor.stride()) == (layout.size, layout.stride)
            assert (tensor.dtype, tensor.storage_offset()) == (layout.dtype, layout.offset)
        assert tensors[0].std() > 0 and not tensors[1].any()


def test_large_inputs_come_once() -> None:
    assert len(random_sets([Layout(CPU, torch.float32, (1 << 26,), (0,), 0)])) > 1
    assert len(random_sets([Layout(CPU, torch.float32, (1 << 25, 2), (1, 1 << 25), 0)])) == 1
