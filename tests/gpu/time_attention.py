"""Milliseconds of our attention kernels on a GPU, forward and backward.

    python -m tests.gpu.time_attention
"""

from __future__ import annotations

import torch

import inductor.operators.attention_ops  # noqa: F401  (defines the operator)
from tests.gpu.time_flex import HEAD, HEADS, milliseconds


def main() -> None:
    facts = True, HEAD**-0.5, 0, 0.0, False
    for length in (1024, 4096):
        q, k, v = (torch.randn(2, HEADS, length, HEAD, device="cuda", dtype=torch.bfloat16)
                   for _ in range(3))
        op, back = torch.ops.dynamo_jit.attention, torch.ops.dynamo_jit.attention_backward
        out, lse = op(q, k, v, None, None, *facts, True)
        forward = milliseconds(lambda: op(q, k, v, None, None, *facts, True))  # noqa: B023
        given = torch.randn_like(out), q, k, v, None, None, out, lse, *facts, False, (False,) * 3
        backward = milliseconds(lambda: back(*given))  # noqa: B023
        print(f"causal {length} {forward:.4f} {backward:.4f}", flush=True)


if __name__ == "__main__":
    main()
