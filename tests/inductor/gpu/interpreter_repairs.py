"""Where Triton's interpreter differs from a GPU: assertions, atomics, bfloat16."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def repair(monkeypatch) -> None:
    """Until the end of a test."""
    builder = interpreter.interpreter_builder
    options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)
    monkeypatch.setattr(builder, "options", options)
    atomic, trunc = builder.create_atomic_rmw, builder.create_fp_trunc
    dot, convert = builder.create_dot, builder.create_fp_to_fp

    def contiguous(op, pointer, value, mask, *rest):
        """It reads broadcast arrays as if they lay in memory."""
        tiles = [dataclasses.replace(t, data=np.ascontiguousarray(t.data)) for t in (pointer, value, mask)]
        return atomic(op, *tiles, *rest)

    def narrowed(source, goal, mode):
        """It cuts bits off of 8-bit floats, too."""
        small = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
        if goal.scalar not in small:
            return convert(source, goal, mode)
        data = torch.from_numpy(np.ascontiguousarray(source.data)).to(small[goal.scalar])
        return interpreter.TensorHandle(data.view(torch.uint8).numpy(), goal.scalar)

    def rounded(source, goal):
        """It cuts bits off."""
        if goal.scalar is not tl.bfloat16:
            return trunc(source, goal)
        data = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.int16)
        return interpreter.TensorHandle(data.numpy().view(np.uint16), goal.scalar)

    def widened(tile):
        """It multiplies the bits of bfloat16 as integers."""
        if tile.dtype.scalar is not tl.bfloat16:
            return tile
        data = (tile.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(data, tl.float32)

    monkeypatch.setattr(builder, "create_dot", lambda a, b, *rest: dot(widened(a), widened(b), *rest))
    monkeypatch.setattr(builder, "create_atomic_rmw", contiguous)
    monkeypatch.setattr(builder, "create_fp_trunc", rounded)
    monkeypatch.setattr(builder, "create_fp_to_fp", narrowed)
