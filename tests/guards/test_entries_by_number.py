"""Entries of dicts with keys that are no constants are found by their number."""

from __future__ import annotations

import torch

import dynamo


def test_behind_deleted_entries_and_in_two_dicts() -> None:
    def total(scales: dict[torch.Tensor, float], shifts: dict[torch.Tensor, list[float]]) -> torch.Tensor:
        found = torch.zeros(3)
        for key, scale in scales.items():
            found = found + key * scale + shifts[key][0]
        return found

    keys = [torch.randn(3) for _ in range(20)]
    scales = {key: float(n) for n, key in enumerate(keys)}
    shifts = {key: [float(n)] for n, key in enumerate(keys)}
    for n in (0, 7, 8):
        del scales[keys[n]]
    compiled = dynamo.compile(total, fullgraph=True)
    for n in (None, 1, 12, 19):
        if n is not None:
            scales[keys[n]] += 0.5
            torch.testing.assert_close(compiled(scales, shifts), total(scales, shifts))
            shifts[keys[n]][0] -= 2.0
        torch.testing.assert_close(compiled(scales, shifts), total(scales, shifts))
