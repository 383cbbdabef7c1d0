"""Programs out of a few snippets, with breaks at places that chance picks.

A snippet's places are written `_(e)`: some become breaks of one kind or another around `e`, all others are `e` itself. Each snippet stands in the
function as it is, in a loop, in a function of its own, behind a handler, or in a generator.
"""

from __future__ import annotations

import ast
import random
import textwrap
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz_snippets import classes, containers, library, objects, statements, tensors

PARAMETERS = "x, y, items, table, box, n, s, out"
BREAKS = (
    "(graph_break(), {e})[1]",
    "({e}, graph_break())[0]",
    "(time.time(), {e})[1]",
    "disabled({e})",
    "ctypes.py_object({e}).value",
    "({e} if TENSOR.sum() < 1e9 else None)",
)
NO_BREAKS = ("(TENSOR.add(1), {e})[1]", "(LOG.append('place'), {e})[1]", "(print('place'), {e})[1]")
NUMBERS = ("n", "n + 1", "0", "1", "2", "3", "-1", "True", "len(items)", "x.shape[0]")
VALUES = (*NUMBERS, "2.5", "'v'", "None", "x", "x + 1", "items", "[1, x]", "(1, 2)", "{'k': 1}", "s", "box", "y.shape", "float(n)", "-0.0")
TENSORS = ("x", "x + 1", "y", "x.sum()", "x[0]", "torch.ones(2)", "TENSOR")
FRAMES = ("{b}", "{b}", "for _round in range(2):\n{i}", "def inner():\n    nonlocal x, y, items, n\n    k = v = w = None\n{i}\ninner()",
          "try:\n{i}\nexcept Exception as failure:\n    out.append(failure)", "try:\n{i}\nfinally:\n    out.append('behind')",
          "with Shown('frame'):\n{i}", "def talking():\n    nonlocal n\n    yield 1\n{i}\n    yield 2\nout.append(list(talking()))",
          "if x.sum() < 1e9:\n{i}", "@apply\ndef called():\n    nonlocal n\n{i}")

PRELUDE = """
import time, ctypes, torch

LOG = []
TENSOR = torch.ones(2)


def apply(f):
    return f()


class Shown:
    def __init__(self, name): self.name = name
    def __enter__(self): LOG.append("enter")
    def __exit__(self, kind, value, trace): LOG.append(("exit", kind and kind.__name__))
"""


def blocks() -> dict[str, tuple[str, str]]:
    """By name: the definitions and the statements of each snippet."""
    found = {}
    for module in (objects, classes, statements, containers, library, tensors):
        for block in module.BLOCKS.strip("\n").split("\n# "):
            name, _, rest = block.removeprefix("# ").partition("\n")
            head, _, body = ("\n" + rest).partition("\n---\n")
            found[name.strip()] = (head, body)
    return found


SNIPPETS = blocks()


@dataclass(frozen=True)
class Program:
    """Snippets by name with the frame of each; `places` tells which place gets which text."""

    parts: tuple[tuple[str, int], ...]
    seed: int
    dropped: frozenset[Any] = field(default_factory=frozenset)

    def source(self) -> str:
        return ast.unparse(Composer(self).program()) + "\n"

    def smaller(self) -> list[Program]:
        """Programs with one snippet, frame, statement or break less."""
        found = [Program(self.parts[:i] + self.parts[i + 1:], self.seed, self.dropped) for i in range(len(self.parts)) if len(self.parts) > 1]
        found += [Program((*self.parts[:i], (self.parts[i][0], 0), *self.parts[i + 1:]), self.seed, self.dropped)
                  for i in range(len(self.parts)) if self.parts[i][1]]
        composer = Composer(self)
        composer.program()
        return found + [Program(self.parts, self.seed, self.dropped | {key}) for key in composer.keys]

    def size(self) -> int:
        return self.source().count("\n")


class Composer(ast.NodeTransformer):
    """Each place and each statement has a key of its own and its choices from that: dropping one leaves the others."""

    def __init__(self, program: Program) -> None:
        self.of, self.keys, self.name, self.count, self.top = program, [], "", 0, False

    def program(self) -> ast.Module:
        heads: dict[str, str] = {}
        body = ""
        seen: dict[str, int] = {}
        for name, frame in self.of.parts:
            head, text = SNIPPETS[name]
            seen[name] = seen.get(name, 0) + 1
            if name not in heads:
                heads[name] = ast.unparse(self.filled(name, head))
            text = ast.unparse(self.filled(f"{name}/{seen[name]}", text)) or "pass"
            body += FRAMES[frame].format(b=text, i=textwrap.indent(text, "    ")) + "\n"
        text = "\n".join(heads.values()) + f"\ndef f({PARAMETERS}):\n" + textwrap.indent(body, "    ") + "    return out\n"
        return ast.parse(text)

    def filled(self, name: str, text: str) -> ast.Module:
        self.name, self.count = name, 0
        tree = ast.parse(text)
        kept = []
        for i, statement in enumerate(tree.body):
            key = (name, "statement", i)
            definition = isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom))
            if "/" in name and not definition:
                self.keys += [key] if key not in self.of.dropped else []
            changed = self.visit(statement)  # also one that is dropped counts its places
            if key not in self.of.dropped:
                kept.append(changed)
        tree.body = kept
        return ast.fix_missing_locations(tree)

    def chance(self) -> tuple[random.Random, Any]:
        self.count += 1
        key = (self.name, "place", self.count)
        return random.Random(f"{self.of.seed} {key}"), key

    def visit_Name(self, node: ast.Name) -> ast.AST:
        options = {"_N": NUMBERS, "_V": VALUES, "_T": TENSORS}.get(node.id)
        if options is None:
            return node
        chance, _key = self.chance()
        if "/" not in self.name:  # a definition of the module has no arguments
            options = tuple(o for o in options if not {"n", "s", "x", "y", "items", "box"} & {p.id for p in ast.walk(ast.parse(o)) if isinstance(p, ast.Name)})
        return ast.parse(f"({chance.choice(options)})", mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not (isinstance(node.func, ast.Name) and node.func.id == "_"):
            return self.generic_visit(node)
        chance, key = self.chance()
        self.generic_visit(node)
        inner = ast.unparse(node.args[0]) if node.args else "None"
        pick = chance.random()
        if pick < 0.65 or key in self.of.dropped:
            form = "{e}"
        else:
            self.keys.append(key)
            form = chance.choice(BREAKS if pick < 0.92 else NO_BREAKS)
        return ast.parse("(" + form.replace("{e}", f"({inner})") + ")", mode="eval").body


def generate(seed: int, only: str | None = None) -> Program:
    chance = random.Random(seed)
    names = [name for name in SNIPPETS if only is None or only in name]
    count = chance.choice((1, 2, 3, 3, 4, 5))
    return Program(tuple((chance.choice(names), chance.randrange(len(FRAMES))) for _i in range(count)), seed)
