"""Imports point one way: a module imports from its own layer and from the layers above it in the list."""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dynamo.backends.services import SERVICES

ROOT = Path(__file__).parent.parent
LAYERS = [
    ("dynamo.base",),
    ("dynamo.store",),
    ("dynamo._C",),
    ("dynamo.graph_operators",),
    ("dynamo.background",),
    ("dynamo.shapes",),
    ("dynamo.bytecode",),
    ("dynamo.guards",),
    ("dynamo.hook",),
    ("dynamo.symbolic.core",),
    ("dynamo.symbolic.shapes",),
    ("dynamo.symbolic.python",),
    ("dynamo.symbolic.tensors",),
    ("dynamo.symbolic.numpy",),
    ("dynamo.symbolic.machine",),
    ("dynamo.codegen",),
    ("dynamo.backends",),
    ("dynamo.options", "dynamo.frames"),
    ("dynamo.reporting.break_reports", "dynamo.frames.attempts"),
    ("dynamo.frames.graph_functions", "dynamo.frames.entries"),
    ("dynamo.captures",),
    ("dynamo.frames.convert", "dynamo.frames.policy", "dynamo.frames.sharing"),
    ("dynamo.diagnose",),
    ("dynamo.api", "dynamo.cache", "dynamo.exc", "dynamo.testing", "dynamo.utils", "dynamo.reporting.explanation", "dynamo.exporting.whole_graph", "dynamo.exporting.isolation", "dynamo.exporting.shipped", "dynamo.exporting.shipping", "dynamo.exporting.packaged", "dynamo.exporting.packaging", "dynamo.exporting.package_files",
     "dynamo.user_decisions", "dynamo.errors", "dynamo.diagnose.checked_calls",
     "dynamo.reporting.summary_text", "dynamo.reporting", "dynamo.reporting.profiling", "dynamo.doctor", "dynamo.bench"),
    ("dynamo", "dynamo.backends.check", "dynamo.backends.programs", "dynamo.integrations"),
]
AOT = ("dynamo.base", "dynamo.store", "dynamo.graph_operators", "dynamo._C", "dynamo.background", "dynamo.shapes", "dynamo.aot")
INDUCTOR = (*AOT, "dynamo.backends.registry", "inductor")
ENGINES = (*AOT, "dynamo.backends", "inductor")
LAZY = (*AOT, "dynamo.backends.registry", "dynamo.lazy")
GRAPHS = (*AOT, "dynamo.backends.registry", "dynamo.graphs")
# The most files that may import each other in a circle, annotations counted. A circle within one
# package is a class and what it is described by.
LONGEST_CIRCLE = 3
COMPETITION = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")


def modules() -> list[Path]:
    return sorted([*ROOT.glob("dynamo/**/*.py"), *ROOT.glob("inductor/**/*.py")])


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Facts(NamedTuple):
    """Of one file. imports: (module, name in it or "", line, inside of a function, for type checkers only). functions:
    (name, first line, last line)."""

    imports: list[tuple[str, str, int, bool, bool]]
    functions: list[tuple[str, int, int]]


@functools.cache
def facts_of(path: Path) -> Facts:
    """Files are parsed once for all tests."""
    facts = Facts([], [])

    def visit(node: ast.AST, inside: bool, typing_only: bool) -> None:
        if isinstance(node, ast.expr):
            return
        if isinstance(node, ast.Import):
            facts.imports.extend((alias.name, "", node.lineno, inside, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            facts.imports.extend((str(node.module), alias.name, node.lineno, inside, typing_only) for alias in node.names)
        elif isinstance(node, ast.FunctionDef):
            facts.functions.append((node.name, node.lineno, node.end_lineno or node.lineno))
        inside |= isinstance(node, ast.FunctionDef)
        typing_only |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, inside, typing_only)

    visit(ast.parse(path.read_text()), False, False)
    return facts


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(module, line, whether inside of a function); those for type checkers only are left out, but
    in `dynamo.symbolic`, where annotations follow the same order."""
    annotations_count = within(name_of(path), ("dynamo.symbolic",))
    for module, name, line, inside, typing_only in facts_of(path).imports:
        if annotations_count or not typing_only:
            yield f"{module}.{name}" if name else module, line, inside


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def layer(name: str) -> int:
    """The layer of the longest prefix."""
    fitting = [(len(prefix), number) for number, prefixes in enumerate(LAYERS)
               for prefix in prefixes if within(name, (prefix,))]
    return max(fitting)[1]


def allowed(importer: str, imported: str) -> bool:
    if within(importer, ("dynamo.lazy",)):
        return within(imported, LAZY)
    if within(importer, ("dynamo.graphs",)):
        return within(imported, GRAPHS)
    if within(importer, ("inductor",)):
        return within(imported, INDUCTOR)
    if within(importer, ("dynamo.backends.engines",)):
        return within(imported, ENGINES)
    if within(importer, ("dynamo.aot",)):
        return within(imported, AOT)
    if within(imported, ("inductor", "dynamo.aot", "dynamo.lazy", "dynamo.graphs")):
        return False
    return layer(imported) <= layer(importer)


def test_imports_point_up() -> None:
    wrong = []
    for path in modules():
        for name, line, inside in imports(path):
            place = f"{path.relative_to(ROOT)}:{line}"
            if within(name, COMPETITION):
                wrong.append(f"{place}: imports the competition: {name}")
            if within(name, ("dynamo", "inductor")):
                if inside:
                    wrong.append(f"{place}: imports {name} inside of a function")
                if not allowed(name_of(path), name):
                    wrong.append(f"{place}: {name_of(path)} imports {name}")
    assert not wrong, wrong


TABLES = {"dynamo/backends/registry.py", "dynamo/backends/services.py"}
# These load modules by names that they are given: of packages, of the program, of one's own package.
LOADERS = {*TABLES, "dynamo/__init__.py", "dynamo/backends/check.py", "dynamo/backends/engines/cached_parts.py",
           "dynamo/base/extension.py", "dynamo/base/loading.py", "dynamo/base/process_leader.py", "dynamo/base/terminal.py",
           "dynamo/exporting/packaged.py"}


def loads(path: Path) -> Iterator[tuple[ast.expr, int, bool]]:
    """What a file gives to `import_module` (True) or looks up in `sys.modules`, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and call in ("importlib.import_module", "sys.modules.get"):
            yield node.args[0], node.lineno, call.startswith("importlib")


@pytest.mark.parametrize("text", ["importlib.import_module('inductor.metrics')", "importlib.import_module(name)",
                                  "sys.modules.get('inductor.metrics')"])
def test_loads_are_seen(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(f"x = {text}")
    assert len(list(loads(tmp_path / "file.py"))) == 1


def test_modules_of_later_layers_are_loaded_by_tables() -> None:
    wrong = []
    for path in modules():
        file = str(path.relative_to(ROOT))
        for given, line, imported in loads(path):
            name = given.value if isinstance(given, ast.Constant) else None
            later = isinstance(name, str) and within(name, ("dynamo", "inductor")) and not allowed(name_of(path), name)
            if later or name is None and imported and file not in LOADERS:
                wrong.append(f"{file}:{line}: {ast.unparse(given)}")
    assert not wrong, wrong


def test_services_exist() -> None:
    assert all(importlib.util.find_spec(name) is not None for name in SERVICES.values())


def import_graph() -> dict[str, set[str]]:
    """Which modules of `dynamo` each of them names, in annotations and inside of functions, too."""
    names = {name_of(path): path for path in modules() if path.is_relative_to(ROOT / "dynamo")}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for module, imported, *_ in facts_of(path).imports:
            if imported == "_C":
                continue
            full = f"{module}.{imported}"
            graph[name].add(full if full in names else module)
        graph[name] &= names.keys() - {"dynamo"}  # `from dynamo import _C` is no use of the package
    return graph


def namesakes() -> Iterator[tuple[str, str]]:
    """Files of one name whose packages import each other, or of which one imports the other."""
    files = {name_of(path): path for path in modules() if path.stem != "__init__"}
    package = {name: name.rpartition(".")[0] for name in files}
    arrows = {(name, f"{module}.{part}" if f"{module}.{part}" in files else module)
              for name, path in files.items() for module, part, *_ in facts_of(path).imports}
    rooms = {(package[one], package[other]) for one, other in arrows if other in files}
    for one, other in itertools.permutations(files, 2):
        if files[one].stem == files[other].stem:
            here, there = package[one], package[other]
            if (one, other) in arrows or (here, there) in rooms and (there, here) in rooms:
                yield one, other


def test_no_file_meets_its_namesake() -> None:
    assert list(namesakes()) == [("inductor.config", "dynamo.base.config")]  # what users know them by


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that reach each other (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        path.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            at = path.index(name)
            found.append(set(path[at:]))
            del path[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return [circle for circle in found if len(circle) > 1]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"a"}}
    assert circles(graph) == [{"a", "b", "c"}]


def test_no_large_import_circle() -> None:
    for circle in circles(import_graph()):
        packages = {name.rpartition(".")[0] for name in circle}
        assert len(circle) <= LONGEST_CIRCLE and len(packages) == 1, sorted(circle)


LONGEST_FUNCTION = 60
MOST_METHODS = 24
MOST_IMPORTS = 29


def test_functions_are_short() -> None:
    long = [f"{path.relative_to(ROOT)}:{first} {name}" for path in modules()
            for name, first, last in facts_of(path).functions if last - first >= LONGEST_FUNCTION]
    assert not long, long


def test_the_story_of_a_frame_is_one_page() -> None:
    page = ROOT / "dynamo/frames/convert.py"
    names = [name for name, *_ in imports(page) if within(name, ("dynamo",))]
    assert len(names) <= MOST_IMPORTS, names


def test_the_trace_is_no_place_for_everything() -> None:
    """What a package keeps of its own things for a trace is a record, see `Evaluation.state`."""
    tree = ast.parse((ROOT / "dynamo/symbolic/machine/trace.py").read_text())
    (trace,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert trace.name == "Trace" and not trace.bases
    methods = [node.name for node in trace.body if isinstance(node, ast.FunctionDef)]
    assert len(methods) <= MOST_METHODS, methods
