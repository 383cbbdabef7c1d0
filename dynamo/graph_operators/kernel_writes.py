"""Which arguments a Triton kernel of the program writes: read from its Python source.

In: the Python function behind `triton.jit`. Out: the names of the parameters through which it may
write, None where that is unknown.

A value stands for the parameters that it was computed from; what `tl.load` gives stands for none. A
store or an atomic operation writes what its pointer stands for; a call of another kernel function
writes what that one writes; a call that is not known writes all that it is given.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

LANGUAGE = "triton.language"
STORES = frozenset(
    "store store_gather store_scatter scatter".split()
    + [f"atomic_{name}" for name in "add and cas max min or xchg xor".split()]
)
# Of these nothing comes back through which one could write.
LOADS = frozenset("load gather load_gather".split())
UNKNOWN = frozenset("inline_asm_elementwise map_elementwise to_tensor_descriptor".split())
DEEPEST = 8  # calls of kernel functions in each other
CASTS = "pointer_type"  # makes a pointer of a number


def written_names(function: Callable[..., Any], depth: int = 0) -> frozenset[str] | None:
    """The parameters that a kernel may write through."""
    try:
        lines = inspect.getsource(function)
        tree = ast.parse(textwrap.dedent(lines))
    except (OSError, SyntaxError, TypeError):
        return None
    found = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    if found is None or depth > DEEPEST or CASTS in lines:
        return None
    reading = _Reading(found, namespace_of(function), depth)
    return None if reading.lost else frozenset(reading.written)


def namespace_of(function: Any) -> dict[str, Any]:
    """What the names in a function mean outside of it."""
    try:
        cells = inspect.getclosurevars(function).nonlocals
    except (TypeError, ValueError):
        cells = {}
    return {**getattr(function, "__globals__", {}), **cells}


class _Reading:
    """One function. of: parameters that a local name stands for; written: those written through;
    lost: something was met that can't be followed."""

    def __init__(
        self, function: ast.FunctionDef, names: dict[str, Any], depth: int
    ) -> None:
        self.names, self.depth = names, depth
        given = function.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        self.of: dict[str, set[str]] = {a.arg: {a.arg} for a in parameters}
        self.written: set[str] = set()
        self.lost = given.vararg is not None or given.kwarg is not None
        before = -1
        while before != self._size():  # names of loops are set below where they are read
            before = self._size()
            for statement in function.body:
                self._statement(statement)

    def _size(self) -> int:
        return len(self.written) + sum(map(len, self.of.values()))

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Try | ast.Delete | ast.Global):
            self.lost = True
            return
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        value = getattr(node, "value", None) or getattr(node, "iter", None)
        taken = self._value(value) if value is not None else set()
        for name in (n for t in targets if t is not None for n in names_in(t)):
            self.of.setdefault(name, set()).update(taken)
        for field, child in ast.iter_fields(node):
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.stmt):
                    self._statement(part)
                elif isinstance(part, ast.withitem):
                    self.lost = True
                elif isinstance(part, ast.expr) and field in ("test",):
                    self._value(part)

    def _value(self, node: ast.AST) -> set[str]:
        """The parameters that an expression stands for."""
        if isinstance(node, ast.Name):
            return set(self.of.get(node.id, ()))
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.NamedExpr):
            taken = self._value(node.value)
            self.of.setdefault(node.target.id, set()).update(taken)
            return taken
        return set().union(*map(self._value, ast.iter_child_nodes(node)))

    def _call(self, node: ast.Call) -> set[str]:
        name, called = self._callee(node.func)
        if called is not None and of_language(called):  # perhaps by another name
            name = getattr(called, "__name__", name)
        owner = set[str]()
        if isinstance(node.func, ast.Attribute) and called is None:
            owner = self._value(node.func.value)  # a method of a value of the kernel
        given = [self._value(part) for part in node.args]
        named = {part.arg: self._value(part.value) for part in node.keywords}
        everything = owner.union(*given, *named.values())
        if name in STORES and (called is None or of_language(called)):
            pointers = owner or named.get("pointer", set()) | (given[0] if given else set())
            self.written |= pointers
            return set()
        if name in LOADS and (called is None or of_language(called)):
            return set()
        if called is None and isinstance(node.func, ast.Attribute):
            return everything  # `x.to(...)`, `x.sum()`
        function = getattr(called, "fn", None)
        if isinstance(function, types.FunctionType) and not of_language(called):
            self._inner(node, function, given, named)
        elif name in UNKNOWN or not (of_language(called) or is_plain(called)):
            self.written |= everything
        return everything

    def _inner(
        self, node: ast.Call, function: Any, given: list[set[str]], named: dict[Any, set[str]]
    ) -> None:
        """A call of another kernel function."""
        written = written_names(function, self.depth + 1)
        parameters = list(inspect.signature(function).parameters)
        starred = any(isinstance(part, ast.Starred) for part in node.args) or None in named
        if written is None or starred or len(given) > len(parameters):
            self.written |= set().union(*given, *named.values())
            return
        for name, taken in (*zip(parameters, given, strict=False), *named.items()):
            if name in written:
                self.written |= taken

    def _callee(self, node: ast.AST) -> tuple[str, Any]:
        """The last name of what is called, and what it is outside of the kernel (else None)."""
        if isinstance(node, ast.Name):
            return node.id, None if node.id in self.of else self.names.get(
                node.id, __builtins__.get(node.id) if isinstance(__builtins__, dict) else None)
        if isinstance(node, ast.Attribute):
            _, owner = self._callee(node.value)
            return node.attr, getattr(owner, node.attr, None)
        return "", None


def names_in(target: ast.AST) -> Iterator[str]:
    """The names that an assignment sets."""
    yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def of_language(called: Any) -> bool:
    """True for functions of Triton's language, which write only by the names of `STORES`."""
    module = str(getattr(called, "__module__", "") or getattr(called, "module", ""))
    inner = str(getattr(getattr(called, "fn", None), "__module__", ""))
    return module.startswith(LANGUAGE) or inner.startswith(LANGUAGE)


def is_plain(called: Any) -> bool:
    """True for Python's own functions (`range`, `min`, `isinstance`) and classes of Triton."""
    module = str(getattr(called, "__module__", ""))
    return module == "builtins" or module.split(".")[0] == "triton"
