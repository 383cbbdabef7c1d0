"""`DYNAMO_REPRO=crash|accuracy`: the smallest graph that shows a defect, as a script.

In: a captured graph that a backend fails with, or computes wrongly. Out: a folder with `repro.py`.
Delta debugging: cut the end by bisection, turn the beginning into inputs by bisection, then drop
operations one by one, as long as the rest still shows it.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dynamo.backends.registry import is_installed, lookup_backend
from dynamo.base import logs
from dynamo.base.config import config
from dynamo.base.graph_copies import copy_graph, copy_module
from dynamo.diagnose.compare import Difference
from dynamo.diagnose.copies import Copier
from dynamo.diagnose.definitions import NoText, text_of
from dynamo.diagnose.graphs import (
    Backend,
    Check,
    Graph,
    first_wrong,
    name_of,
    operations,
    prefix,
    user_line,
)
from dynamo.diagnose.scripts import CHECK, script_of

KINDS = ("crash", "accuracy")
CRASHES = ("the call", "the backward")
FOLDER = "dynamo_repro"
BACKEND = "backend_of_the_program"
ROUNDS = 8


def is_crash(differences: tuple[Difference, ...]) -> bool:
    return any(difference.path in CRASHES for difference in differences)


@dataclass
class Minifier:
    """Shrinks graphs. crash: errors count, else wrong results do."""

    check: Check
    crash: bool

    def fails(self, graph: Graph) -> tuple[Difference, ...]:
        differences = self.check(graph, graph.module)
        return differences if differences and is_crash(differences) is self.crash else ()

    def shrink(self, graph: Graph) -> Graph:
        """The smallest failing graph that is reached."""
        best = graph
        place = first_wrong(graph, self.check)
        if place is not None:
            cut = Graph(prefix(graph.module, place[0]), graph.inputs, graph.grad)
            best = cut if self.fails(cut) else best
        best = self._late(best)
        for _ in range(ROUNDS):
            smaller = self._without_one(best)
            if smaller is None:
                break
            best = smaller
        return best

    def _late(self, graph: Graph) -> Graph:
        """The beginning as inputs: as much of it as may be, by bisection."""
        low, high, best = 0, len(operations(graph.module)), graph
        while high - low > 1:
            middle = (low + high) // 2
            shorter = behind(graph, middle)
            if shorter is not None and self.fails(shorter):
                low, best = middle, shorter
            else:
                high = middle
        return best

    def _without_one(self, graph: Graph) -> Graph | None:
        """One round: each operation replaced by one of its inputs, or made an input itself."""
        changed, best = False, graph
        for number in reversed(range(len(operations(graph.module)))):
            if number >= len(operations(best.module)):
                continue
            for smaller in (passed_on(best, number), made_input(best, number)):
                if smaller is not None and self.fails(smaller):
                    changed, best = True, smaller
                    break
        return best if changed else None


# -- smaller graphs ------------------------------------------------------------------------------


def values_of(graph: Graph) -> dict[str, Any]:
    """The value of each node, as it was when the node had run."""
    values: dict[str, Any] = {}

    class Keep(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            values[n.name] = result.detach().clone().requires_grad_(
                result.requires_grad) if isinstance(result, torch.Tensor) else result
            return result

    with torch.set_grad_enabled(graph.grad):
        Keep(graph.module).run(*Copier(lambda tensor: False).tree(graph.inputs))
    return values


def behind(graph: Graph, count: int) -> Graph | None:
    """The graph without its first operations, whose results are inputs."""
    return _with_inputs(graph, {node.name for node in operations(graph.module)[:count]})


def made_input(graph: Graph, number: int) -> Graph | None:
    """The graph with the result of one operation as an input."""
    nodes = operations(graph.module)
    if len(nodes) == 1:
        return None
    return _with_inputs(graph, {nodes[number].name})


def _with_inputs(graph: Graph, names: set[str]) -> Graph | None:
    values = values_of(graph)
    new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs: list[Any] = []
    placeholders = iter(graph.inputs)
    for node in graph.module.graph.nodes:
        if node.op == "placeholder" or node.name in names and node.users:
            value = next(placeholders) if node.op == "placeholder" else values[node.name]
            if node.op != "placeholder" and not isinstance(value, torch.Tensor):
                return None
            copies[node] = new.placeholder(node.name)
            copies[node].meta.update(node.meta)
            inputs.append(value)
    for node in graph.module.graph.nodes:
        if node.name not in names and node.op != "placeholder":
            copies[node] = new.node_copy(node, copies.__getitem__)
    return _finished(graph, new, inputs)


def passed_on(graph: Graph, number: int) -> Graph | None:
    """The graph without an operation, in whose place stands one of its inputs."""
    new = copy_graph(graph.module.graph)
    node = [n for n in new.nodes if n.op.startswith("call_")][number]
    wanted = node.meta.get("example_value")
    for given in node.all_input_nodes:
        value = given.meta.get("example_value")
        if (isinstance(value, torch.Tensor) and isinstance(wanted, torch.Tensor)
                and value.dtype is wanted.dtype and value.shape == wanted.shape):
            node.replace_all_uses_with(given)
            new.erase_node(node)
            return _finished(graph, new, graph.inputs)
    return None


def _finished(graph: Graph, new: fx.Graph, inputs: list[Any]) -> Graph | None:
    """Without what nothing uses; None where no operation is left."""
    used = []
    output = next(node for node in new.nodes if node.op == "output")
    for node in reversed(list(new.nodes)):
        if node.op.startswith("call_") and not node.users and not name_of(node).endswith("_"):
            new.erase_node(node)
    results = [node for node in output.all_input_nodes if node.op != "placeholder"]
    output.args = (tuple(results),)
    places = [node for node in new.nodes if node.op == "placeholder"]
    for node, value in zip(places, inputs, strict=True):
        if node.users:
            used.append(value)
        else:
            new.erase_node(node)
    if not any(node.op.startswith("call_") for node in new.nodes):
        return None
    module = fx.GraphModule(graph.module, new)
    module.meta.update(graph.module.meta)
    return Graph(module, used, graph.grad)


# -- what users meet -----------------------------------------------------------------------------


def compile_and_minify(
    module: fx.GraphModule, inputs: list[Any], backend: Backend, name: str,
    extra: dict[str, Any], kind: str,
) -> Callable[..., Any]:
    """Compiles a graph; where that fails, or the first call is wrong, writes a repro script."""
    if kind not in KINDS:
        raise ValueError(f"DYNAMO_REPRO={kind!r}: it takes {' or '.join(KINDS)}")
    copy = copy_module(module)
    minifier = Minifier(Check(backend, extra), kind == "crash")
    written: list[bool] = []

    def look(given: tuple[Any, ...]) -> None:
        if not written:
            written.append(True)
            copies = Copier(lambda tensor: False).tree(list(given))
            minify_to_folder(Graph(copy, copies, torch.is_grad_enabled()), minifier, name)

    if kind == "crash":
        look(tuple(inputs))
    compiled = backend(module, inputs, **extra)

    def call(*given: Any) -> Any:
        look(given)
        return compiled(*given)

    return call if kind == "accuracy" else compiled


def minify_to_folder(graph: Graph, minifier: Minifier, backend: str) -> Path | None:
    """The folder with the script, None where nothing fails."""
    differences = minifier.fails(graph)
    if not differences:
        return None
    small = minifier.shrink(graph)
    root = Path(config.debug_dir or FOLDER).absolute()
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="repro_", dir=root))
    nodes = operations(small.module)
    shown = minifier.fails(small)
    title = f"{shown[0]}\n\nThe smallest graph that shows it with the backend {backend!r}.\n"
    defined, named = backend_in_script(backend, minifier.check.backend)
    extra, lost = options_in_script(minifier.check.extra)
    tail = defined + CHECK.format(backend=named, extra=extra, grad=small.grad, lost=lost)
    text = script_of(small.module, small.inputs, folder, title.replace('"""', "'''"), tail)
    (folder / "repro.py").write_text(text)
    lines = list(dict.fromkeys(filter(None, map(user_line, nodes))))
    place = lines[0] if lines else "a graph"
    logs.tell(
        f"{place}\n  The backend {backend!r} {'fails' if minifier.crash else 'is wrong'}: "
        f"{shown[0]}.\n"
        f"  What to do: python {folder / 'repro.py'} shows it with {len(nodes)} of "
        f"{len(operations(graph.module))} operations, for a report.")
    return folder


def backend_in_script(name: str, backend: Backend) -> tuple[str, str]:
    """Text that defines a backend of the program, and the expression for it; a backend that each
    process knows needs no text."""
    if is_installed(name, backend):
        return "", repr(name)
    try:
        return f"\n# The backend of the program.\n{text_of({BACKEND: backend})}\n", BACKEND
    except NoText as error:
        what = f"The backend {name!r} can't be written down: {error}. Define {BACKEND} here."
        return f"\n# {what}\n{BACKEND} = None\n", f"{BACKEND} or sys.exit({what!r})"


def options_in_script(extra: dict[str, Any]) -> tuple[str, str]:
    """What a backend gets besides, as an expression, and a comment about what has none."""
    try:
        ast.literal_eval(repr(extra))
    except (SyntaxError, ValueError):
        return "{}", f"  # without what has no text: {' '.join(repr(extra).split())}"
    return repr(extra), ""


def recheck(
    module: torch.nn.Module, inputs: list[Any], backend: str | Backend, extra: dict[str, Any],
    grad: bool,
) -> None:
    """What a repro script runs: prints the differences and exits with 1, or 0 where it is right; 2
    where the graph itself raises, so that nothing is compared."""
    graph = Graph(fx.symbolic_trace(module), inputs, grad)
    check = Check(lookup_backend(backend), extra)
    differences = check(graph, graph.module)
    if check.graph_error is not None:
        error = check.graph_error
        print(f"nothing was compared: the graph itself raises {type(error).__name__}: {error}")
        sys.exit(2)
    for difference in differences:
        print(difference)
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    print("differs" if differences else f"the backend {name!r} does what the graph does")
    sys.exit(1 if differences else 0)


def crash_backend(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """`backend="dynamo_minifier_backend"`: the default backend, with scripts of its failures."""
    return compile_and_minify(module, inputs, lookup_backend("inductor"), "inductor", {}, "crash")


def accuracy_backend(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """`backend="dynamo_accuracy_minifier_backend"`: the same for wrong results."""
    return compile_and_minify(
        module, inputs, lookup_backend("inductor"), "inductor", {}, "accuracy")
