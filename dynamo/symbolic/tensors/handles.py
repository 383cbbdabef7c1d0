"""What registering a hook gives, and the nodes of autograd's graph that hooks are registered on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from torch.utils.hooks import RemovableHandle

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import NamedMethodVar

if TYPE_CHECKING:
    from dynamo.symbolic.tensors.tensor import TensorVar


class HandleVar(Var):
    """The handle of a hook that was registered in the trace.

    function: registers `hook` on `target` after the graph; place: that effect.
    """

    def __init__(self, function: Callable[..., Any], target: Var, hook: Var) -> None:
        super().__init__()
        self.function, self.target, self.hook = function, target, hook
        self.place: Hashable = None
        self.removed = False

    def describe(self) -> str:
        return f"the handle of a hook of {self.target!r}"

    def python_type(self) -> type:
        return RemovableHandle

    def truth(self, tx: Frame) -> bool:
        return True

    def children(self) -> Iterable[Var]:
        return (self.target, self.hook)

    def remove(self, tx: Frame) -> None:
        """The hook is not registered at all: nothing has seen it."""
        tx.trace.effects.forget(self.place)
        self.removed = True

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name == "__enter__":
            return self
        if name in HANDLE_METHODS:
            self.remove(tx)
            return ConstVar(None)
        return super().call_method(tx, name, args, kwargs)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in HANDLE_METHODS:
            return NamedMethodVar(self, name)
        raise Break("attribute_unknown", f"{name} of {self!r}")

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


class HistoryVar(Var):
    """`tensor.grad_fn` of a tensor that the trace has computed: it is there, and has hooks.

    node: the one that the tensor had when it was asked, a write gives it another.
    register: announces a hook, by the name of the method.
    """

    def __init__(self, tensor: TensorVar, register: Callable[[str, Var], Var]) -> None:
        super().__init__()
        self.tensor, self.register = tensor, register
        self.node = tensor.fake.grad_fn

    def describe(self) -> str:
        return f"the grad_fn of {self.tensor!r}"

    def python_type(self) -> type:
        self.check_stays()
        return type(self.tensor.fake.grad_fn)

    def truth(self, tx: Frame) -> bool:
        return True

    def is_same(self, tx: Frame, other: Var) -> bool:
        return isinstance(other, HistoryVar) and self.node is other.node

    def children(self) -> Iterable[Var]:
        return (self.tensor,)

    def check_stays(self) -> None:
        """Break where a backend may put another node in the place of this one."""
        if self.node is not self.tensor.fake.grad_fn or self.node.name() != HOOK_NODE:
            raise Break("attribute_unknown", f"grad_fn of {self.tensor!r}")

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        self.check_stays()
        if name == "name":
            return ConstVar(HOOK_NODE)
        if name in NODE_METHODS and len(args) == 1 and not kwargs:
            return self.register(name, args[0])
        raise Break("attribute_unknown", f"{name} of {self!r}")

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name not in NODE_METHODS:
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return NamedMethodVar(self, name)


HANDLE_METHODS = frozenset({"remove", "__enter__", "__exit__"})
NODE_METHODS = frozenset({"name", "register_hook", "register_prehook"})
# What stands before and behind modules with backward hooks; a graph has it as it is.
HOOK_NODE = "BackwardHookFunctionBackward"
