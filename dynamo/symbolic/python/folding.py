"""Pure built-in functions and methods of constants: with constant arguments they are called."""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

from dynamo.symbolic.core import table
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar

# Of `operator`: classes, and functions that change their argument or call it.
NOT_PURE = frozenset("""attrgetter itemgetter methodcaller setitem delitem iconcat call
                        length_hint countOf indexOf""".split())

# Methods of constants that are no plain computation.
NOT_PURE_METHODS = frozenset("""__class__ __new__ __init__ __init_subclass__ __subclasshook__
                                __getattribute__ __setattr__ __delattr__ __dir__ __reduce__
                                __reduce_ex__ __hash__""".split())

# Pure functions that have rules too, for what is no constant.
ALSO_RULES = (str, int, float, complex, repr, format, hash, len, round, divmod, pow,
              operator.index, str.join, bytes.join)


def is_math(function: Any) -> bool:
    return getattr(function, "__module__", None) == "math"


def register_class_method(cls: type, name: str) -> None:
    """`float.fromhex` and the like, of the class itself."""

    @table.rule(vars(cls)[name])
    def handle(tx: Frame, owner: Var, /, *args: Var, **kwargs: Var) -> Var | None:
        if not isinstance(owner, ClassVar) or owner.cls is not cls:
            return None
        return table.fold(tx, getattr(cls, name), list(args), kwargs)


def register_folds() -> None:
    """Pure functions and methods of constants."""
    found: list[Any] = [abs, divmod, pow, round, chr, ord, bin, hex, oct, ascii, repr, str, int,
                        float, complex, bytes, format, hash, max, min, len,
                        slice.indices]
    for name in dir(math):
        if callable(getattr(math, name)) and not name.startswith("_"):
            found.append(getattr(math, name))
    for cls in (str, int, float, bool, complex, bytes, tuple, range, type(None)):
        for name in dir(cls):
            method = getattr(builtins.getattr(cls, name), "__func__", getattr(cls, name))
            if callable(method) and name not in NOT_PURE_METHODS:
                found.append(method)
    for name in dir(operator):
        if not name.startswith("_") and name not in NOT_PURE:
            found.append(getattr(operator, name))
    table.foldable(f for f in found if f not in table.RULES or f in ALSO_RULES or is_math(f))


register_folds()
for _cls, _name in ((int, "from_bytes"), (float, "fromhex"), (bytes, "fromhex")):
    register_class_method(_cls, _name)
