"""What one call of flex attention asks of its kernels, as plain numbers.

In: metadata of tensors. Out: a `FlexSpec`: constants, grids, choices of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynamo.graph_operators.flex_calls import result_strides
from inductor.kernels.attention_spec import (
    NO_LEAVES,
    AttentionSpec,
    Blocks,
    Four,
    Leaves,
    forward_choices,
    keys_choices,
    queries_choices,
    spec_of,
)

SMALL = (Blocks(16, 16, 4, 2), Blocks(32, 32, 4, 2))


@dataclass(frozen=True, slots=True)
class FlexSpec:
    """base: sizes and strides. tables: (sizes of the first table of counts, blocks of queries,
    blocks of keys), None without a block mask; full: it has full blocks. sparse: queries and keys
    of a block of the block mask.
    """

    base: AttentionSpec
    tables: tuple[int, int, int, int] | None
    full: bool
    sparse: tuple[int, int]

    def constants(
        self, grad: Four = (0, 0, 0, 0), leaves: Leaves = NO_LEAVES
    ) -> dict[str, Any]:
        """The constants of all kernels, without those of blocks. grad: strides of the gradient."""
        batch, heads, queries, keys = self.tables or (1, 1, 1, 1)
        return self.base.constants(grad, leaves) | {
            "PLAIN": False, "MAY_BE_EMPTY": True, "HAS_DB": False, "FULL": self.full,
            "TB": heads if batch > 1 else 0, "TH": int(heads > 1), "Q_BLOCKS": queries,
            "K_BLOCKS": keys, "SPARSE_Q": self.sparse[0], "SPARSE_K": self.sparse[1],
        }  # fmt: skip

    def fitting(self, choices: Sequence[Blocks]) -> list[Blocks]:
        """The choices whose blocks fill those of the block mask."""
        if self.tables is None:
            return list(choices)
        rows, columns = self.sparse
        found = [one for one in (*choices, *SMALL)
                 if rows % one.rows == 0 and columns % one.columns == 0]
        return list(dict.fromkeys(found))

    def forward(self) -> list[Blocks]:
        return self.fitting(forward_choices(self.base))

    def keys(self) -> list[Blocks]:
        return self.fitting(keys_choices(self.base))

    def queries(self) -> list[Blocks]:
        return self.fitting(queries_choices(self.base))


def flex_spec_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: Sequence[torch.Tensor],
    sparse: Sequence[int], scale: float,
) -> FlexSpec:
    """The spec of tensors; tables: none, four or eight (see `inductor.operators.flex_ops`)."""
    base = spec_of(q, k, v, None, None, causal=False, scale=scale, lse=True)
    size = (base.batch, base.heads, base.queries, base.value_head)
    b, h, m, d = result_strides(size, q.stride())
    base = replace(base, out=(b, h, m, d))
    rows, columns = sparse
    if not tables or rows % SMALL[0].rows or columns % SMALL[0].columns:
        return FlexSpec(base, None, False, (1, 1))
    batch, heads, queries = tables[0].shape
    sizes = batch, heads, queries, tables[1].shape[3]
    return FlexSpec(base, sizes, len(tables) == 8, (rows, columns))
