"""The captured graph while it grows: a torch.fx graph whose placeholders appear on demand.

Values of nodes are described by fake tensors in `node.meta["example_value"]`; the user's stack is
in `node.meta["stack_trace"]`. Nothing of a Var is stored in a node.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.base.errors import RecompileLimitExceeded
from dynamo.graph_operators.regions import REGION, kind_of
from dynamo.guards.records import UserLine, source_text
from dynamo.guards.sources import DrawSource, ItemSource, Source
from dynamo.shapes.fake import Fake

StackReader = Callable[[], tuple[UserLine, ...]]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One placeholder of the captured graph, in order.

    source: where the new bytecode gets it (tensors, and numbers that became symbolic).
    example: the fake tensor (or symbolic number) that was traced with.
    """

    name: str
    source: Source
    example: Any


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """The captured graph before its outputs are chosen.

    module: GraphModule without an output node; its tensors come as placeholders.
    inputs: one per placeholder.
    """

    module: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    operations: int


class GraphBuilder:
    """Builds one graph.

    read_stack: gives the user's stack, innermost line last, whenever a node is made. read_step:
    gives the number of the instruction that makes it.
    """

    def __init__(self, read_stack: StackReader, read_step: Callable[[], int]) -> None:
        self.graph = fx.Graph()
        self.inputs: dict[fx.Node, GraphInput] = {}
        self._names: set[str] = set()
        self._read_stack = read_stack
        self._read_step = read_step
        self._first_operation: fx.Node | None = None
        self._region: tuple[str, int] | None = None
        self._regions = 0
        self._of_region: list[fx.Node] = []
        self._kinds: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def region(self, place: str, most_kinds: int) -> Iterator[None]:
        """Operations made inside belong to one call of a repeated block; place: where it is
        written. A block inside of another one is a part of that.

        Errors: RecompileLimitExceeded where its calls are of more kinds than it may have.
        """
        if self._region is not None:
            yield
            return
        self._regions += 1
        self._region, self._of_region = (place, self._regions), []
        try:
            yield
        finally:
            self._region = None
        kinds = self._kinds.setdefault(place, set())
        kinds.add(kind_of(self._of_region))
        if len(kinds) > most_kinds:
            raise RecompileLimitExceeded(
                f"{place}: the calls of this nested_compile_region are of more than {most_kinds} "
                "kinds (operations, sizes, numbers); raise max_reuse_entries, or leave out the mark"
            )

    def placeholder(self, source: Source, example: Any) -> fx.Node:
        """A new graph input that the new bytecode fetches from `source`."""
        name = self._fresh_name(source)
        before = self._first_operation or self.graph._root
        with self.graph.inserting_before(before):
            node = self.graph.create_node("placeholder", name, (), {}, name=name)
        node.meta["example_value"] = example
        node.meta["held_by_module"] = (
            isinstance(source, ItemSource) and source.registry() in ("_parameters", "_buffers")
        )
        self.inputs[node] = GraphInput(name, source, example)
        return node

    def _fresh_name(self, source: Source) -> str:
        name = re.sub(r"\W+", "_", source.text()).strip("_") or "value"
        if name[0].isdigit():
            name = f"_{name}"
        name = f"l_{name}"
        fresh, number = name, 0
        while fresh in self._names:
            number += 1
            fresh = f"{name}_{number}"
        self._names.add(fresh)
        return fresh

    def operation(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], example: Any
    ) -> fx.Node:
        """A new node of kind "call_function" or "call_method" at the end."""
        node = self.graph.create_node(kind, target, args, kwargs)
        if self._first_operation is None:
            self._first_operation = node
        node.meta["example_value"] = example
        node.meta["stack_trace"] = format_stack(self._read_stack())
        node.meta["step"] = self._read_step()
        if self._region is not None:
            node.meta[REGION] = self._region
            self._of_region.append(node)
        return node

    def read_input(self, kind: str, target: Any, args: tuple[Any, ...], example: Any) -> fx.Node:
        """A node that reads an input (or what such a node gives) before any operation of the
        program."""
        given: list[fx.Node] = []
        fx.node.map_arg(args, given.append)
        made = [node for node in given if node.op != "placeholder"]
        if made:
            with self.graph.inserting_after(max(made)):
                node = self.graph.create_node(kind, target, args)
        else:
            with self.graph.inserting_before(self._first_operation or self.graph._root):
                node = self.graph.create_node(kind, target, args)
            self._first_operation = node
        node.meta["example_value"] = example
        return node

    def mark_value(self, target: Any, node: fx.Node, storage: int) -> None:
        """A call of `target` where a tensor has got its value: behind its node, or behind the last
        that wrote into its storage."""
        last = self.graph._root.prev
        while last is not node and not any(
            storage_of(fake) == storage for fake in last.meta.get("changed", ())
        ):
            last = last.prev
        with self.graph.inserting_after(last):
            made = self.graph.call_function(target, (node,))
        made.meta["example_value"] = None
        made.meta["stack_trace"] = format_stack(self._read_stack())

    # -- undoing ----------------------------------------------------------------------------

    def mark(self) -> fx.Node:
        """The last node now; `rollback` removes the operations made after it."""
        return self.graph._root._prev  # asked at each instruction: `prev` is a property

    def rollback(self, mark: fx.Node) -> None:
        """Erases the operations after the mark, last first. Placeholders stay."""
        nodes = []
        node = self.graph._root.prev
        while node is not mark and node.op not in ("placeholder", "root"):
            nodes.append(node)
            node = node.prev
        self.erase(nodes)

    def erase(self, nodes: Iterable[fx.Node]) -> None:
        """Takes operations out, those that use others first."""
        for node in nodes:
            if node is self._first_operation:
                self._first_operation = None
            self.graph.erase_node(node)

    def operations_after(self, mark: fx.Node) -> dict[fx.Node, None]:
        """The operations made after the mark, in order."""
        nodes = []
        node = self.graph._root.prev
        while node is not mark and node.op not in ("placeholder", "root"):
            nodes.append(node)
            node = node.prev
        return dict.fromkeys(reversed(nodes))

    def cut_out(
        self, body: dict[fx.Node, None], outputs: list[fx.Node], first: list[fx.Node]
    ) -> tuple[list[fx.Node], fx.GraphModule]:
        """Moves operations into a module of their own; its inputs, and the module.

        first: nodes that come first among the inputs where they are inputs.
        """
        inner, known = fx.Graph(), dict[fx.Node, fx.Node]()
        used = dict.fromkeys(arg for node in body for arg in node.all_input_nodes)
        inputs = [node for node in dict.fromkeys([*first, *used])
                  if node in used and node not in body]
        for node in inputs:
            known[node] = inner.placeholder(node.name)
            known[node].meta.update(node.meta)
        for node in body:
            known[node] = inner.node_copy(node, known.__getitem__)
        inner.output(tuple(known[node] for node in outputs))
        self.erase(reversed(body))
        return inputs, fx.GraphModule(torch.nn.Module(), inner, class_name="InnerGraph")

    # -- finishing --------------------------------------------------------------------------

    def finish(self) -> GraphRecord | None:
        """The graph without an output node; None when no operation was made.

        Placeholders that nothing uses stay: an exit may still return them as they are.
        """
        operations = sum(node.op != "placeholder" for node in self.graph.nodes)
        if operations == 0:
            return None
        inputs = []
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node in [node for node in nodes if isinstance(self.inputs[node].source, DrawSource)]:
            nodes[-1].append(node)  # last: the new code adds them to what the guards have collected
            nodes = [*(other for other in nodes if other is not node), node]
        for node in list(self.graph.nodes):
            if node.op == "placeholder":
                if node.users:
                    inputs.append(self.inputs[node])
                else:
                    self.graph.erase_node(node)
        module = fx.GraphModule(torch.nn.Module(), self.graph, class_name="CapturedGraph")
        return GraphRecord(module, tuple(inputs), operations)


def storage_of(fake: torch.Tensor) -> int:
    """What tells the storage of a fake tensor from others."""
    return fake.storage_key if type(fake) is Fake else int(fake.untyped_storage()._cdata)


def format_stack(lines: tuple[UserLine, ...]) -> str:
    """The user's stack as Python prints it: places and their texts. `fx` prints the last one."""
    return "\n".join(
        f'  File "{line.filename}", line {line.lineno}, in {line.function}\n'
        f"    {source_text(line) or '?'}" for line in lines
    )
