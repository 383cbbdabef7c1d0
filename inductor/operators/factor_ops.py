"""An operand of products that are written out, as an operator, so that it can be put into memory.

`dynamo_jit::factor(x, uses)` has the elements of x. uses: how often each of them would be computed
if it were computed where it is used: by several results, or once for each term of one. Lowering
decides by that and by what an element takes (`inductor.lowering.factors`).
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("factor(Tensor x, int uses) -> Tensor", tags=(torch.Tag.pointwise,))


def _same(x: torch.Tensor, uses: int) -> torch.Tensor:
    """What it gives where no kernel computes it: no view, as of any operator."""
    return x.clone()


LIBRARY.impl("factor", _same, "CompositeExplicitAutograd")

FACTOR = torch.ops.dynamo_jit.factor.default
