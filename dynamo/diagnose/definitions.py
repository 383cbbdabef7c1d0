"""Functions and classes of the program as text, for a script that runs without the program.

In: values that the script uses by a name. Out: lines that import what can be imported, and define
what the program's main file defines, with what that needs in turn.

>>> text_of({"path": __import__("os").path, "three": 3})
'import posixpath as path\\nthree = 3'
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dynamo.base.value_types import VALUES

MAIN = "__main__"


class NoText(Exception):
    """A value that no text makes again; the message names it."""


def text_of(values: Mapping[str, Any]) -> str:
    """Lines that give each name its value. Errors: NoText."""
    writer = _Writer()
    for name, value in values.items():
        writer.name(name, value)
    return "\n".join(writer.lines)


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[str, Any] = {}

    def name(self, name: str, value: Any) -> None:
        if name in self.known:
            if self.known[name] is not value:
                raise NoText(f"two values are called {name}")
            return
        self.known[name] = value
        self.lines.append(self._line(name, value))

    def _line(self, name: str, value: Any) -> str:
        if isinstance(value, types.ModuleType):
            if value.__name__ == MAIN:
                raise NoText("the program's main module")
            return f"{_path_for(value)}import {value.__name__} as {name}"
        if isinstance(value, VALUES):
            return f"{name} = {value!r}"
        home, own = _home_of(value)
        if home == "builtins":
            return f"{name} = {own}"
        module = sys.modules.get(home)
        if home != MAIN and "<" not in own and _looked_up(module, own) is value:
            first, _, rest = own.partition(".")
            later = f"\n{name} = {own}" if rest else ""
            alias = "" if rest or first == name else f" as {name}"
            return f"{_path_for(module)}from {home} import {first}{alias}{later}"
        return self._definition(name, value)

    def _definition(self, name: str, value: Any) -> str:
        """The text of a function or class of the main file, behind what it needs."""
        if not isinstance(value, type | types.FunctionType) or value.__name__ == "<lambda>":
            raise NoText(f"{name} = {value!r}")
        if getattr(value, "__closure__", None):
            raise NoText(f"{name}, which has a closure")
        try:
            text = textwrap.dedent(inspect.getsource(value)).rstrip()
            tree = ast.parse(text)
        except (OSError, TypeError, SyntaxError) as error:
            raise NoText(f"{name}, whose source is not there ({error})") from None
        scope = (value.__globals__ if isinstance(value, types.FunctionType)
                 else vars(sys.modules[value.__module__]))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for other in sorted(used - {value.__name__}):
            if other in scope and not (hasattr(builtins, other) or scope[other] is value):
                self.name(other, scope[other])
        alias = "" if name == value.__name__ else f"\n{name} = {value.__name__}"
        return f"\n\n{text}\n{alias}"


def _home_of(value: Any) -> tuple[str, str]:
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    home = getattr(value, "__module__", None)
    if home is None and getattr(torch, str(own), None) is value:
        home = "torch"  # written in C, which says no module
    if not isinstance(own, str) or not isinstance(home, str):
        raise NoText(repr(value))
    return home, own


def _looked_up(module: types.ModuleType | None, own: str) -> Any:
    value: Any = module
    for part in own.split("."):
        value = getattr(value, part, None)
    return value


def _path_for(module: types.ModuleType | None) -> str:
    """What makes a module of the program's own folder be found by a script elsewhere."""
    name = getattr(module, "__name__", "").partition(".")[0]
    top = sys.modules.get(name)
    file = getattr(top, "__file__", None)
    if not file or name in sys.stdlib_module_names or "site-packages" in file:
        return ""
    root = Path(file).absolute().parent
    root = root.parent if hasattr(top, "__path__") else root
    return f"sys.path.append({str(root)!r})\n"
