"""Kernels that differ only in what indices may be are not one kernel."""

from __future__ import annotations

import pytest
import torch

import dynamo
from inductor.codegen.sharing import Shared
from inductor.driver import cpu


@pytest.mark.parametrize("rows", [(6, 9), (9, 6)])
def test_gathers_from_tables_of_two_lengths(rows: tuple[int, int]) -> None:
    """Many kernels of one text: where each ends, how a negative index wraps, is its own table's."""
    few, many = (torch.randn(count, 16) for count in rows)
    indices = [torch.randint(-count, count, (50,)) for count in rows]
    indices[0][7], indices[1][7] = -1, -1

    def gather(a, b):
        x = torch.cat([few[a + i] for i in (0, 0)] * 5, -1)
        y = torch.cat([many[b + i] for i in (0, 0)] * 5, -1)
        return x + y

    compiled = dynamo.compile(gather, fullgraph=True)
    torch.testing.assert_close(compiled(*indices), gather(*indices), rtol=0, atol=0)

    for number, count in enumerate(rows):
        wrong = [index.clone() for index in indices]
        wrong[number][3] = count
        with pytest.raises(IndexError, match=f"index {count} is out of bounds"):
            compiled(*wrong)


def test_parts_of_one_buffer_have_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Shared] = []
    share = cpu.share_kernels

    def noted(kernels):
        shared = list(share(kernels))
        found.extend(shared)
        return shared

    monkeypatch.setattr(cpu, "share_kernels", noted)

    def program(x, kind):
        out = torch.zeros(40, 512, dtype=kind)
        for k in range(40):
            out[k] = x[39 - k] * 3
        out[:, 7] += x.flip(1)[:, 5].to(kind)
        return out, x.flip(0)[3:9] + 1

    for kind in (torch.float32, torch.float16, torch.int64, torch.bool):
        dynamo.reset()
        found.clear()
        x = torch.arange(40.0 * 512).reshape(40, 512) % 5
        torch.testing.assert_close(dynamo.compile(program)(x, kind), program(x, kind), rtol=0, atol=0)
        assert len(found) > 40
        assert len({shared.kernel.name for shared in found}) < 8
