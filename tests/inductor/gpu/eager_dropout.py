"""Dropout on a GPU as ATen's kernels do it, thread by thread, and what makes our path run on a CPU.

Written from the kernels, not from `inductor.ir.philox`: each thread has a counter of its own and asks for four
numbers at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from inductor.fx_passes import dropout as dropout_pass
from inductor.runtime import dropout_state

BLOCKS = 3
M32 = 0xFFFFFFFF


def four_numbers(seed: int, counter: int, thread: int) -> list[int]:
    """Philox 4x32-10."""
    c = [counter & M32, counter >> 32, thread & M32, thread >> 32]
    low, high = seed & M32, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ low, b & M32, (a >> 32) ^ c[3] ^ high, a & M32]
        low, high = (low + 0x9E3779B9) & M32, (high + 0xBB67AE85) & M32
    return c


def uniform(number: int) -> np.float32:
    return np.float32(np.float32(number) * np.float32(2.0**-32)) + np.float32(2.0**-33)


@dataclass
class Generator:
    seed: int = 0x9E3779B97F4A7C15
    offset: int = 8
    drawn: list[int] = field(default_factory=list)

    def advance(self, elements: int, blocks: int) -> int:
        """The offset before a dropout."""
        threads = 256 * min(math.ceil(elements / 256), blocks)
        before = self.offset
        self.offset += ((elements - 1) // (threads * 4) + 1) * 4
        self.drawn.append(elements)
        return before


def mask_of(elements: int, itemsize: int, p: float, seed: int, offset: int, blocks: int = BLOCKS) -> torch.Tensor:
    """What ATen keeps of a dense tensor, in the order of memory."""
    kept, vector = np.float32(1.0 - p), 16 // itemsize
    while elements % vector:
        vector //= 2
    threads = 256 * min(math.ceil(elements / 256), blocks)
    mask = torch.zeros(elements, dtype=torch.bool)
    for thread in range(threads):
        counter, first = offset // 4, thread * vector
        while first < elements if vector > 1 else first < math.ceil(elements / (threads * 4)) * threads * 4:
            numbers = []
            for _ in range(max(vector // 4, 1)):
                numbers += four_numbers(seed, counter, thread)
                counter += 1
            if vector > 1:
                for n in range(vector):
                    mask[first + n] = bool(uniform(numbers[n]) < kept)
                first += threads * vector
            else:
                for n, number in enumerate(numbers):
                    if first + n * threads < elements:
                        mask[first + n * threads] = bool(uniform(number) < kept)
                first += threads * 4
    return mask


def native_dropout(generator: Generator, x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """ATen's results for a dense tensor, and the generator moves on."""
    offset = generator.advance(x.numel(), BLOCKS)
    flat = mask_of(x.numel(), x.element_size(), p, generator.seed, offset)
    mask = flat.as_strided(x.shape, x.stride())
    scale = float(np.float32(1.0 / float(np.float32(1.0 - p))))
    return (x.float() * mask.float() * scale).to(x.dtype), mask


def on_cpu(monkeypatch: Any, generator: Generator) -> None:
    """Until the end of a test: CPU tensors take the way of a GPU's, and draw from this generator."""

    def draw(elements: list[int], device: torch.device) -> torch.Tensor:
        first = generator.offset
        for each in elements:
            generator.advance(each, BLOCKS)
        return torch.tensor([generator.seed - (1 << 64), first])

    monkeypatch.setattr(dropout_pass, "DEVICE", "cpu")
    monkeypatch.setattr(dropout_pass, "why_not", lambda device: "")
    monkeypatch.setattr(dropout_state, "blocks_at_once", lambda device: BLOCKS)
    monkeypatch.setattr(dropout_state, "draw", draw)
