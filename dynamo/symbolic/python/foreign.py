"""Functions that torch's own compiler has put into the program, in a process that uses it too."""

from __future__ import annotations

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import late_rule
from dynamo.symbolic.core.var import Var


@late_rule("mutation_guard", "GenerationTracker.tag")
def tag_module(tx: Frame, tracker: Var, module: Var) -> Var:
    """Marks a module that is made, for that compiler alone: `torch.nn.Module.__init__` calls it
    once that compiler (or `torch.cond` in eager) has run."""
    return ConstVar(None)
