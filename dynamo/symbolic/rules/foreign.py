"""Functions that torch's own compiler has put into the program, in a process that uses it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.symbolic.rules.table import late_rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.constant import ConstVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


@late_rule("mutation_guard", "GenerationTracker.tag")
def tag_module(tx: SymbolicFrame, tracker: Var, module: Var) -> Var:
    """Marks a module that is made, for that compiler alone: `torch.nn.Module.__init__` calls it
    once that compiler (or `torch.cond` in eager) has run."""
    return ConstVar(None)
