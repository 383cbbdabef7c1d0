"""What users have decided about functions and about compiling as a whole, for this process.

In: `allow_in_graph`, `substitute_in_graph`, `set_stance` and their relatives. Out: answers for the
evaluator and the cache policy. Functions are kept alive, so that an id names one function.

    >>> decisions = Decisions()
    >>> decisions.keep("in_graph", len)
    >>> decisions.has("in_graph", len), decisions.has("in_graph", max)
    (True, False)
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What torch.compiler.assume_constant_result sets; libraries set it without importing the compiler.
MARKED_CONSTANT = "_dynamo_marked_constant"
# Where torch.compiler.allow_in_graph keeps what it is given: looked at, never imported.
ALLOWED_BY_TORCH = ".".join(("torch", "_dynamo", "trace_rules"))
# Where torch.compiler.set_stance keeps what it is given.
STANCE_OF_TORCH = ".".join(("torch", "_dynamo", "eval_frame"))
STANCES = (
    "default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile",
    "aot_eager_then_compile",
)


@dataclass(frozen=True, slots=True)
class Substitute:
    """A Python function that is traced in the place of another one.

    fold: the original may be called while tracing where all arguments are constants.
    """

    function: Callable[..., Any]
    fold: bool


@dataclass(frozen=True, slots=True)
class Stance:
    """How compiled calls behave. backend: compiles in place of each region's own, None for none."""

    name: str = "default"
    backend: Any = None


class Decisions:
    """Kinds: in_graph, not_in_graph, constant, skipped (code objects), substitute. version: another
    one once anything is decided in another way."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[str, dict[int, tuple[Any, Any]]] = {}
        self.stance = Stance()

    def keep(self, kind: str, key: Any, value: Any = True) -> None:
        """Remembers a decision about an object."""
        rows = self._rows.setdefault(kind, {})
        self.version += rows.get(id(key), (key, None))[1] is not value
        rows[id(key)] = (key, value)

    def drop(self, kind: str, key: Any) -> None:
        """Forgets a decision."""
        self.version += self._rows.get(kind, {}).pop(id(key), None) is not None

    def get(self, kind: str, key: Any) -> Any:
        """The value that was kept, None for none."""
        rows = self._rows.get(kind)
        found = rows.get(id(key)) if rows else None
        return None if found is None else found[1]

    def any(self, kind: str) -> bool:
        """True where anything was decided."""
        return bool(self._rows.get(kind))

    def has(self, kind: str, key: Any) -> bool:
        rows = self._rows.get(kind)
        return rows is not None and id(key) in rows


decisions = Decisions()


def stance_now() -> Stance:
    """What holds for a frame that is not compiled yet: a decision for torch's compiler counts where
    there is none for ours."""
    ours = decisions.stance
    if ours.name != "default" or ours.backend is not None:
        return ours
    given = getattr(sys.modules.get(STANCE_OF_TORCH), "_stance", None)
    name = getattr(given, "stance", "default")
    return Stance(name) if name in STANCES else ours


def is_in_graph(function: Any) -> bool:
    """True where the user says, to this compiler or to torch's, that a call becomes one node."""
    if decisions.has("in_graph", function):
        return True
    rules = sys.modules.get(ALLOWED_BY_TORCH)
    allowed = getattr(getattr(rules, "_allowed_callable_ids", None), "function_ids", None)
    return id(function) in (allowed or ()) and not decisions.has("not_in_graph", function)


def is_constant(function: Any) -> bool:
    """True where the user says that the function's result never changes."""
    if type(function) is types.FunctionType and MARKED_CONSTANT in function.__dict__:
        return bool(function.__dict__[MARKED_CONSTANT])
    return decisions.has("constant", function)
