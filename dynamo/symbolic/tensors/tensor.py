"""Tensors: a node of the graph, and a fake tensor that knows everything but the data.

A tensor from a source becomes a graph input, and is guarded, when it is first used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar, Protocol

import torch
from torch import fx
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from dynamo.base.errors import Break
from dynamo.base.subclasses import PLAIN, acts_as_plain, is_wrapper_class, overrides_functions
from dynamo.guards.sources import AsPlain, Source
from dynamo.shapes.fake import NoFakeKernel
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.draws import known_outcome
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps, wraps_if
from dynamo.symbolic.tensors.input_fakes import make_fake
from dynamo.symbolic.tensors.state import tensor_state


class TensorRules(Protocol):
    """Attributes and methods of tensors. special: where a special method is the program's own.
    restart_for_branch: see `tables.py`."""

    def get_attr(self, tx: Frame, var: TensorVar, name: str) -> Var: ...
    def set_attr(self, tx: Frame, var: TensorVar, name: str, value: Var) -> None: ...
    def del_attr(self, tx: Frame, var: TensorVar, name: str) -> None: ...
    def call_method(
        self, tx: Frame, var: TensorVar, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var: ...
    def special(self, tx: Frame, var: TensorVar, name: str, args: list[Var]) -> Var | None: ...
    def restart_for_branch(self, trace: Evaluation, var: TensorVar) -> None: ...


class TensorVar(Var):
    """A tensor of the program.

    real: the existing tensor while it is unread; then node and fake are made on demand.
    cls: torch.Tensor, torch.nn.Parameter or another subclass. grad: what the program has stored
    as its gradient. parts: inner tensors of a wrapper, those that the program has read. written:
    other attributes that the program has set (None: deleted).
    """

    is_tensor = True
    rules: ClassVar[TensorRules]  # those of `attributes`, which needs this class
    subclass_attribute: ClassVar[Any]  # of `plain_subclasses`; these are of `wrappers`:
    wrapper_fake: ClassVar[Any]
    wrapper_node: ClassVar[Any]

    def __init__(
        self,
        node: fx.Node | None,
        fake: Any,
        source: Source | None = None,
        *,
        real: torch.Tensor | None = None,
        trace: Evaluation | None = None,
        cls: type = torch.Tensor,
    ) -> None:
        super().__init__(source)
        self._node = node
        self._fake = fake
        self.real = real
        self._trace = trace
        self.cls = cls
        self.grad: Var | None = None
        self.parts: dict[str, TensorVar] = {}
        self.written: dict[str, Var | None] = {}

    # -- facts ------------------------------------------------------------------------------

    @property
    def fake(self) -> Any:
        """The fake tensor; reading it guards the real one's metadata."""
        if self._fake is None:
            trace = self._trace
            assert trace is not None and self.real is not None and self.source is not None
            try:
                with temporarily_clear_interpreter_stack():  # no level of torch.func is its own
                    self._fake = make_fake(trace, self)
            except NoFakeKernel as error:
                raise Break("tensor_not_modelled", error.why) from error
            tensor_state(trace).note_look(self)
        return self._fake

    @property
    def node(self) -> fx.Node:
        """The graph node; the first use of a tensor from outside makes a graph input."""
        if self._node is None or (self._node._erased and is_wrapper_class(self.cls)):
            if self._trace is None or self.source is None:
                raise Break("not_a_graph_argument", f"{self!r} of a transform")
            if is_wrapper_class(self.cls):
                self._node = self.wrapper_node(self._trace, self)
            else:
                place = self.source if acts_as_plain(self.cls) else AsPlain(self.source)
                self._node = self._trace.graph.placeholder(place, self.fake)
            tensor_state(self._trace).add_input(self)
        return self._node

    def move_to(self, node: fx.Node) -> None:
        """The same tensor as the result of another node."""
        self._node = node

    def become(self, other: TensorVar) -> None:
        """The same object, in the memory of another tensor."""
        self._node, self._fake = other.node, other.fake

    @property
    def overrides(self) -> bool:
        """Whether its class has a `__torch_function__` of its own."""
        return self.cls not in PLAIN and overrides_functions(self.cls)

    @property
    def loses_class(self) -> bool:
        """Whether code of the program that runs in a graph would see another class: a graph has a
        plain tensor in its place."""
        return self.cls not in PLAIN and not acts_as_plain(self.cls) and (
            not is_wrapper_class(self.cls))

    @property
    def acts_in_graph(self) -> bool:
        """Whether its class would do something else in the graph: that of a wrapper."""
        return is_wrapper_class(self.cls) and not acts_as_plain(self.cls)

    @property
    def is_unread(self) -> bool:
        """True while nothing of the real tensor has been looked at."""
        return self._fake is None

    def describe(self) -> str:
        kind = "a tensor"
        if is_wrapper_class(self.cls):
            kind += f" of class {self.cls.__qualname__}"
        return kind if self._fake is None else f"{kind} ({self.facts()})"

    def facts(self) -> str:
        """Type of the elements and shape, for messages."""
        dtype = str(self.fake.dtype).removeprefix("torch.")
        return f"{dtype}, shape {tuple(self.fake.shape)}"

    def python_type(self) -> type:
        if self._fake is None:
            assert self._trace is not None
            self._trace.guard("TYPE", self.source, self.cls)
        return self.cls

    def children(self) -> Iterable[Var]:
        return [value for value in self.written.values() if value is not None]

    def as_proxy(self) -> Any:
        return self.node

    def as_fake(self) -> Any:
        return self.fake

    # -- protocol ---------------------------------------------------------------------------

    def truth(self, tx: Frame) -> bool:
        own = self.rules.special(tx, self, "__bool__", [])
        if own is not None:
            return own.truth(tx)
        constant = tx.trace.world.constant_of(self.fake)
        if constant is not None:
            return bool(tx.trace.run_real(lambda: bool(constant)))
        if self.fake.numel() == 0:
            return bool(tx.trace.run_real(lambda: bool(torch.empty(self.fake.shape))))
        is_one = self.fake.numel() == 1 and self.fake.device.type != "meta"
        if is_one and (known := known_outcome(self.node)) is not None:
            return known
        if is_one:
            self.rules.restart_for_branch(tx.trace, self)
        raise Break("data_dependent_branch", repr(self))

    def length(self, tx: Frame) -> Var:
        own = self.rules.special(tx, self, "__len__", [])
        if own is not None:
            return own
        if self.fake.dim() == 0:
            tx.trace.raise_exception(TypeError, "len() of a 0-d tensor")
        return tx.trace.constant(self.fake.shape[0])

    def iterate(self, tx: Frame) -> Var:
        own = self.rules.special(tx, self, "__iter__", [])
        if own is not None:
            return own
        if self.fake.dim() == 0:
            tx.trace.raise_exception(TypeError, "iteration over a 0-d tensor")
        rows = tx.trace.call(tx, torch.Tensor.unbind, self, ConstVar(0))
        return tx.trace.make.sequence_iterator(tx, rows)

    def unpack(self, tx: Frame) -> list[Var]:
        return self.iterate(tx).unpack(tx)

    def get_item(self, tx: Frame, key: Var) -> Var:
        own = self.rules.special(tx, self, "__getitem__", [key])
        return own if own is not None else tx.trace.call(tx, torch.Tensor.__getitem__, self, key)

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        if self.rules.special(tx, self, "__setitem__", [key, value]) is None:
            tx.trace.call(tx, torch.Tensor.__setitem__, self, key, value)

    def get_attr(self, tx: Frame, name: str) -> Var:
        try:
            return self.rules.get_attr(tx, self, name)
        finally:
            if self._fake is None:  # nothing else says that it is a tensor
                self.python_type()

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        self.rules.set_attr(tx, self, name, value)

    def del_attr(self, tx: Frame, name: str) -> None:
        self.rules.del_attr(tx, self, name)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        return self.rules.call_method(tx, self, name, args, kwargs)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        name = self.python_type().__name__
        tx.trace.raise_exception(TypeError, f"'{name}' object is not callable")

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other:
            return True
        if isinstance(other, TensorVar) and self.source is not None and other.source is not None:
            tx.trace.guard("NOT_SAME", self.source, other.source)
        return False


@wraps(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
def wrap_tensor(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing tensor, unread."""
    if value.is_nested:  # it has no sizes to speak of
        raise Break("tensor_not_modelled", "a nested tensor")
    cls = type(value)
    return TensorVar(None, None, source, real=value, trace=trace, cls=cls)


@wraps_if(10, lambda value: issubclass(type(value), torch.Tensor))
def wrap_tensor_subclass(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """Subclasses of Tensor are not modelled but for traceable wrappers (`wrappers.py`)."""
    raise Break("tensor_subclass", type(value).__qualname__)


DEVICE_OBJECTS = (torch.Generator, torch.Stream, torch.Event)


@wraps_if(11, lambda value: issubclass(type(value), DEVICE_OBJECTS))
def wrap_device_object(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """Generators, streams and events are only passed on."""
    return OpaqueVar(value, source, trace)


class OpaqueVar(Var):
    """A value that may be stored and passed on but not looked into."""

    def __init__(self, value: Any, source: Source | None, trace: Evaluation) -> None:
        super().__init__(source)
        self.value = value
        self._trace = trace

    def describe(self) -> str:
        return f"an object of class {type(self.value).__qualname__}"

    def python_type(self) -> type:
        self._trace.guard("TYPE", self.source, type(self.value))
        return type(self.value)

    def truth(self, tx: Frame) -> bool:
        raise Break("truth_unknown", repr(self))

    def get_attr(self, tx: Frame, name: str) -> Var:
        raise Break("attribute_unknown", f"{name} of {self!r}")

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)
