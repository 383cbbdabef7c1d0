"""The recorder: functional ATen calls over fake tensors become nodes of a graph.

In: calls that reach torch's dispatch below C++ functionalization, so that no call mutates (it
rewrites in-place operations and keeps views up to date). Out: an `fx.Graph` whose nodes carry
`meta["val"]`.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake, is_symbolic_number, storage_key
from dynamo.aot.graphs import LITERAL
from dynamo.aot.numbers import NumberNodes
from dynamo.aot.recording_rules import RECORD_RULES
from dynamo.aot.records import FAILS, RECOMPUTED, Unsupported, WrapperMet
from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.base.recomputing import is_recomputing
from dynamo.base.subclasses import is_elsewhere, is_foreign
from dynamo.graph_operators import traced_collectives
from dynamo.shapes.fake import DataDependent, Fake
from dynamo.shapes.observable import may_fail

FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
# A fake's node, as a weak reference: what autograd saves lives outside of what Python collects, and
# would keep a graph with all its values.
NODE = "aot_node"
_SHARED_CONSTANT = 64


class Recorder(OwnDispatchMode):
    """Records every ATen call that runs while it is active.

    graph: grows. stack_trace: what new nodes get as the user's stack. histories: the same by
    autograd's node, for what backward does. constants: attributes for the module, by name.
    wrappers: the functional tensors of the inputs, by the id of the fake inside. arguments: those
    of a call that writes without saying so, likewise. true_counts: of masks, how many elements are
    true, where a write tells. bernoulli: whether each draw to come is in place. in_program: False
    for what the program does not do itself. zeros: the storages of what eager knows to be zero.
    answers: says what a truth value is that only data could tell. arrived: the gradients
    (functional tensors) that the node of autograd's graph has which runs.
    """

    in_program = False
    answers: Any = None
    arrived: tuple[Any, ...] = ()

    def __init__(self, world: Any, bernoulli: Iterable[bool] = ()) -> None:
        super().__init__()
        self.bernoulli = iter(bernoulli)
        self.world = world
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.stack_trace: str | None = None
        self.histories: dict[Any, str | None] = {}
        self.wrappers: dict[int, tuple[Fake, torch.Tensor]] = {}
        self.arguments: dict[int, tuple[Fake, torch.Tensor]] = {}
        self._replaced: list[tuple[torch.Tensor, Fake]] = []
        self.true_counts: dict[fx.Node, int] = {}
        self.zeros: set[int] = set()
        self.numbers: NumberNodes | None = None
        self._constant_nodes: dict[Any, fx.Node] = {}
        self._makers: dict[int, fx.Node] = {}
        self._last_leaf: fx.Node = self.graph._root

    def __enter__(self) -> Any:
        traced_collectives.enter()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        traced_collectives.leave()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):
            raise WrapperMet
        if self.world.meets_wrappers and is_elsewhere():
            return func(*args, **(kwargs or {}))
        with torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
            special = RECORD_RULES.get(func)
            if special is not None:
                result = special(self, func, args, kwargs or {})
                if result is not NotImplemented:
                    return result
            return self.call(func, args, kwargs or {})

    # -- recording -----------------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operation on fakes and records it, unless its result is no tensor."""
        try:
            result = self.world.dispatch(func, args, kwargs)
        except DataDependent:
            answer = None if self.answers is None else self.answers.answer(func, args)
            if answer is None:
                raise
            return answer
        if func._schema.is_mutable:
            raise Unsupported(f"{func} has no functional form")
        if not _holds_fake(result):
            if result is None or _is_empty(result):
                self.record(func, args, kwargs)
            return result
        node = self.record(func, args, kwargs)
        self.bind(result, node)
        return result

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        node = self.graph.create_node(
            "call_function",
            func,
            tuple([self._argument(arg) for arg in args]),
            {name: self._argument(arg) for name, arg in kwargs.items()} if kwargs else {},
        )
        node.meta["val"] = None
        trace = self.stack_trace
        if trace is None and self.histories:
            trace = self.histories.get(torch._C._current_autograd_node())  # type: ignore
        if trace is not None:
            node.meta["stack_trace"] = trace
        if is_recomputing():
            node.meta[RECOMPUTED] = True
        if self.in_program and may_fail(func, args, kwargs):
            node.meta[FAILS] = True
        return node

    def note_history(self, value: Any, trace: str | None) -> None:
        """Autograd's nodes that stand behind a result, and are new, belong to that stack. (A view
        is not asked for its own, which may make one anew: that belongs to who reads it.)"""
        values = value if isinstance(value, (list, tuple)) else (value,)
        tensors = [item for item in values if isinstance(item, torch.Tensor)]
        waiting = [(item._base if item._is_view() else item).grad_fn  # type: ignore[union-attr]
                   for item in tensors]
        while waiting:
            history = waiting.pop()
            if history is not None and history not in self.histories:
                self.histories[history] = trace
                waiting += [before for before, _ in history.next_functions]

    def _argument(self, arg: Any) -> Any:
        kind = type(arg)
        if is_fake(arg):
            return self.node_of(arg)
        if kind is list or kind is tuple or kind is torch.Size:
            return [self._argument(item) for item in arg]
        if isinstance(arg, torch.Tensor):
            return self.constant(arg)
        if isinstance(arg, torch.Generator):
            raise Unsupported("an operation takes a generator of its own")
        return self.number(arg) if is_symbolic_number(arg) else arg

    def node_of(self, fake: Fake) -> fx.Node:
        """The node whose value this fake is."""
        reference = fake.__dict__.get(NODE)
        node: fx.Node | None = None if reference is None else reference()
        if node is None:
            raise Unsupported("a value comes from outside of the graph")
        return node

    def bind(self, result: Any, node: fx.Node) -> None:
        """Makes `node` the source of these fakes, with `getitem` nodes for the items of several."""
        node.meta["val"] = result
        if is_fake(result):
            if NODE in result.__dict__:
                raise Unsupported(f"{node.target} gives back its argument")
            result.__dict__[NODE] = weakref.ref(node)
            self._makers.setdefault(storage_key(result), node)
            return
        for index, item in enumerate(result):
            if is_fake(item):
                self.bind(item, self._item(node, index))
            elif isinstance(item, (list, tuple)) and _holds_fake(item):
                self.bind(item, self._item(node, index))

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        item = self.graph.create_node("call_function", operator.getitem, (node, index))
        if "stack_trace" in node.meta:
            item.meta["stack_trace"] = node.meta["stack_trace"]
        if RECOMPUTED in node.meta:
            item.meta[RECOMPUTED] = True
        return item

    # -- leaves ----------------------------------------------------------------------------------

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """A new input; a Fake becomes its value."""
        node = self._last_leaf = self.graph.create_node("placeholder", name, (), {}, name)
        node.meta["val"] = value
        if is_fake(value):
            value.__dict__[NODE] = weakref.ref(node)
        return node

    def constant(self, tensor: torch.Tensor) -> fx.Node:
        """The `get_attr` node of a real tensor that exists apart from the graph."""
        return self._attribute(id(tensor), tensor, "_constant_")

    def literal(self, tensor: torch.Tensor) -> fx.Node:
        """The `get_attr` node of a tensor that the program writes down; equal ones share it."""
        if tensor.numel() > _SHARED_CONSTANT or tensor.device.type != "cpu":
            return self._attribute(id(tensor), tensor, LITERAL)
        # repr tells 0.0 from -0.0 and makes nan equal to itself
        key = (tensor.dtype, tensor.shape, tensor.stride(), repr(tensor.tolist()))
        return self._attribute(key, tensor, LITERAL)

    def _attribute(self, key: Any, tensor: torch.Tensor, prefix: str) -> fx.Node:
        node = self._constant_nodes.get(key)
        if node is None:
            name = f"{prefix}{len(self.constants)}"
            self.constants[name] = tensor
            with self.graph.inserting_after(self._last_leaf):
                node = self._last_leaf = self.graph.create_node("get_attr", name)
            facts = self.world.cache.facts_of(tensor, tensor.device)
            node.meta["val"] = self.world.make(facts)
            self._constant_nodes[key] = node
        return node

    def number(self, value: Any) -> Any:
        """The node of a symbolic number; an int where it is one."""
        if self.numbers is None:
            self.numbers = NumberNodes(self.graph, self.world.places)
        return self.numbers.node(value)

    def alias(self, result: Fake, node: fx.Node) -> None:
        """One more fake of a node's value."""
        result.__dict__[NODE] = weakref.ref(node)

    def base_of(self, fake: Fake) -> fx.Node:
        """The node that made the storage which this fake is a view of."""
        maker = self._makers.get(storage_key(fake))
        if maker is None:
            raise Unsupported("outputs share a storage that comes from outside of the graph")
        return maker

    def call_on_node(self, func: Any, node: fx.Node, *args: Any) -> Any:
        """Records `func(value of node, *args)`, functionalization aside."""
        fake = self.world.make(facts_of(node.meta["val"]))
        self.alias(fake, node)
        return self.call(func, (fake, *args), {})

    # -- operations that write although their schema does not say so ----------------------------

    def watch(self, wrapper: torch.Tensor, inside: Fake) -> None:
        """Lets `replace` find the functional tensor of an input."""
        self.wrappers[id(inside)] = (inside, wrapper)

    def watch_argument(self, wrapper: torch.Tensor, inside: Fake) -> None:
        """Lets `replace` find another functional tensor, an argument of what runs next."""
        self.arguments[id(inside)] = (inside, wrapper)

    def replace(self, inside: Fake, value: Fake) -> None:
        """The tensor whose present value is `inside` has the value `value` from here on: an input
        now, another one when `take_replaced` is called."""
        known = self.wrappers.get(id(inside))
        if known is not None:
            self.replace_inside(known[1], value)
            self.watch(known[1], value)
        elif id(inside) in self.arguments:
            self._replaced.append((self.arguments[id(inside)][1], value))
        else:
            raise Unsupported("running statistics that are no argument of the program's call")

    def take_replaced(self) -> list[tuple[torch.Tensor, Fake]]:
        """The functional tensors that have new values, with these: once."""
        replaced, self._replaced = self._replaced, []
        self.arguments.clear()
        return replaced

    def replace_inside(self, wrapper: torch.Tensor, value: Fake) -> None:
        """A functional tensor has this value from here on."""
        torch._functionalize_replace(wrapper, value)  # type: ignore[attr-defined]
        torch._functionalize_commit_update(wrapper)  # type: ignore[attr-defined]
        torch._sync(wrapper)  # type: ignore[attr-defined]


def _holds_fake(result: Any) -> bool:
    if is_fake(result):
        return True
    return isinstance(result, (list, tuple)) and any(_holds_fake(item) for item in result)


def _is_empty(result: Any) -> bool:
    return isinstance(result, (list, tuple)) and not result
