"""Imports point one way: a module imports from its own layer and from the layers above it in the list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    ("dynamo.base",),
    ("dynamo._C",),
    ("dynamo.background",),
    ("dynamo.shapes",),
    ("dynamo.bytecode",),
    ("dynamo.guards",),
    ("dynamo.hook",),
    ("dynamo.symbolic",),
    ("dynamo.codegen",),
    ("dynamo.backends",),
    ("dynamo.options", "dynamo.libraries", "dynamo.callers", "dynamo.worth"),
    ("dynamo.break_reports",),
    ("dynamo.graph_functions",),
    ("dynamo.convert", "dynamo.cache"),
    ("dynamo.diagnose",),
    ("dynamo.api", "dynamo.exc", "dynamo.testing", "dynamo.explanation", "dynamo.whole_graph",
     "dynamo.decide", "dynamo.errors", "dynamo.checked_calls",
     "dynamo.summary_text", "dynamo.doctor", "dynamo.bench"),
    ("dynamo", "dynamo.backends.check", "dynamo.backends.programs"),
]
AOT = ("dynamo.base", "dynamo._C", "dynamo.background", "dynamo.shapes", "dynamo.aot")
INDUCTOR = (*AOT, "dynamo.backends.registry", "inductor")
ENGINES = (*AOT, "dynamo.backends", "inductor")
LAZY = (*AOT, "dynamo.backends.registry", "lazy")
TOOLS = (*AOT, "dynamo.backends.registry", "tools")
COMPETITION = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")


def modules() -> list[Path]:
    return sorted([*ROOT.glob("dynamo/**/*.py"), *ROOT.glob("inductor/**/*.py"),
                   *ROOT.glob("lazy/**/*.py"), *ROOT.glob("tools/**/*.py")])


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(module, line, whether inside of a function); imports for type checkers only are left out."""
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        inside, up = False, parents.get(node)
        typing_only = False
        while up is not None:
            inside |= isinstance(up, ast.FunctionDef)
            typing_only |= isinstance(up, ast.If) and "TYPE_CHECKING" in ast.dump(up.test)
            up = parents.get(up)
        if not typing_only:
            yield from ((name, node.lineno, inside) for name in names)


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def layer(name: str) -> int:
    """The layer of the longest prefix."""
    fitting = [(len(prefix), number) for number, prefixes in enumerate(LAYERS)
               for prefix in prefixes if within(name, (prefix,))]
    return max(fitting)[1]


def allowed(importer: str, imported: str) -> bool:
    if within(importer, ("lazy",)):
        return within(imported, LAZY)
    if within(importer, ("tools",)):
        return within(imported, TOOLS)
    if within(importer, ("inductor",)):
        return within(imported, INDUCTOR)
    if within(importer, ("dynamo.backends.engines",)):
        return within(imported, ENGINES)
    if within(importer, ("dynamo.aot",)):
        return within(imported, AOT)
    if within(imported, ("inductor", "dynamo.aot", "lazy", "tools")):
        return False
    return layer(imported) <= layer(importer)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_up(path: Path) -> None:
    wrong = []
    for name, line, inside in imports(path):
        if within(name, COMPETITION):
            wrong.append(f"{line}: imports the competition: {name}")
        if within(name, ("dynamo", "inductor", "lazy", "tools")):
            if inside:
                wrong.append(f"{line}: imports {name} inside of a function")
            if not allowed(name_of(path), name):
                wrong.append(f"{line}: {name_of(path)} imports {name}")
    assert not wrong, wrong
