"""What a compiler of ATen graphs reads of an operator that is not torch's own, as a text.

In: an operator of the program or of a library. Out: a text, equal in another process where the
operator is called, reordered and left out as here. What it computes is no part of it: compiled code
calls it by its name, and what its results look like stands in the graph.
"""

from __future__ import annotations

import torch

from dynamo.graph_operators.operator_effects import acts, draws
from dynamo.graph_operators.written_operators import operator_of


def text_of_operator(operator: torch._ops.OpOverload) -> str:
    """The name, the schema, the tags, and whether calls may be left out.

    >>> text_of_operator(torch.ops.aten.relu.default)
    'aten::relu(Tensor self) -> Tensor [core, pointwise, pt2_compliant_tag] False False'
    """
    of = operator_of(operator)
    written = "" if of is None else f" for {text_of_operator(of)}"
    tags = ", ".join(sorted(tag.name for tag in operator.tags))
    return f"{operator._schema} [{tags}] {acts(operator)} {draws(operator)}{written}"
