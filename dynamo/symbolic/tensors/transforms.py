"""torch.func's transforms (`vmap`, `grad`, `jvp`, ...) inside of a trace.

torch's own Python code of a transform is traced; its levels are entered for real while tracing, and
operations run on fakes that are wrapped by them. What the operations come down to below all levels
(ATen operations on plain tensors) is what goes into the graph: at run time nothing of torch.func is
left. A break inside of a transform ends the graph before its call.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.autograd.forward_ad
from torch import fx
from torch._C import _functorch
from torch._functorch import eager_transforms, vmap

from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.base.errors import Break
from dynamo.graph_operators.operator_effects import acts
from dynamo.shapes.fake import Fake
from dynamo.shapes.observable import observable_effects
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.shapes.numbers import is_symbolic
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.failing import note_failing
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

# Calls that change the state of this thread: made while tracing, with constants.
STATE: list[Any] = [
    _functorch._vmap_increment_nesting, _functorch._vmap_decrement_nesting,
    _functorch._grad_increment_nesting, _functorch._grad_decrement_nesting,
    _functorch._jvp_increment_nesting, _functorch._jvp_decrement_nesting,
    _functorch.set_inplace_requires_grad_allowed, _functorch.get_inplace_requires_grad_allowed,
    _functorch.maybe_current_level, _functorch.current_level,
    _functorch.get_dynamic_layer_stack_depth,
    torch._C._autograd._saved_tensors_hooks_get_disabled_error_message,
    torch._C._autograd._saved_tensors_hooks_disable, torch._C._autograd._saved_tensors_hooks_enable,
    torch._C._set_fwd_grad_enabled, torch._C._is_fwd_grad_enabled,
]  # fmt: skip
# Functions of tensors and constants.
ON_TENSORS: list[Any] = [
    _functorch._add_batch_dim, _functorch._wrap_for_grad,
    _functorch._unwrap_for_grad, _functorch.get_unwrapped, _functorch.is_batchedtensor,
    _functorch.is_gradtrackingtensor, _functorch.is_functorch_wrapped_tensor,
    _functorch.maybe_get_level, _functorch.maybe_get_bdim, _functorch.unwrap_if_dead,
]  # fmt: skip


# An operation, its arguments, its result, and whether gradients were enabled for it.
Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any, bool]


class Recorder(OwnDispatchMode):
    """Keeps the ATen operations that run below all levels."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if takes_number(func, args):
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result, torch.is_grad_enabled()))
        return result


def is_fake(value: Any) -> bool:
    """True for a fake below all levels, of either kind of world."""
    return type(value) is Fake or type(value).__module__ == "torch._subclasses.fake_tensor"


def is_number(value: Any) -> bool:
    """True for the tensor that torch makes of a Python number."""
    return isinstance(value, torch.Tensor) and not is_fake(value) and value.dim() == 0


def takes_number(func: Any, args: tuple[Any, ...]) -> bool:
    """True where a number, or the tensor that torch has made of one, stands for the only tensor."""
    if not args or str(func._schema.arguments[0].type) != "Tensor":
        return False
    first = is_number(args[0]) or isinstance(args[0], int | float | complex)
    return first and not any(map(is_fake, args))


def spell_out(call: Call) -> Call:
    """Gives the numbers of a tensor that torch.tensor has just made; other calls stay."""
    func, args, _, result, grad = call
    if func is not torch.ops.aten.lift_fresh.default or type(args[0]) is not torch.Tensor:
        return call
    if not args[0].numel():
        raise Break("not_a_graph_argument", "an empty tensor that is made in a transform")
    kinds = {"dtype": args[0].dtype, "device": args[0].device}
    return torch.tensor, (args[0].tolist(),), kinds, result, grad


class KnownFakes:
    """Which graph node a fake below all levels is the value of, in one trace."""

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self._nodes: dict[int, tuple[Fake, fx.Node]] = {}
        self._vars: dict[int, TensorVar] = {}
        self.dual_levels: list[int] = []

    def leave(self) -> None:
        """Leaves the forward-mode levels that the trace has entered and not left."""
        while self.dual_levels:
            torch._C._exit_dual_level(self.dual_levels.pop())

    def learn(self, var: TensorVar) -> None:
        """A tensor of the program that may turn up below."""
        if is_fake(var.fake):
            self._vars[id(var.fake)] = var

    def var_of(self, fake: Any) -> TensorVar | None:
        return self._vars.get(id(fake))

    def node_of(self, value: Any, takes_numbers: bool = True) -> Any:
        """The node of a fake; other values are themselves. takes_numbers: a number may stand for
        the tensor that torch has made of it."""
        if isinstance(value, torch.SymInt):
            return self.trace.symbols.wrap_symbolic(value).as_proxy()
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in self._nodes:
            return self._nodes[id(value)][1]
        if id(value) in self._vars:
            return self._vars[id(value)].node
        if is_number(value) and value.device.type == "cpu":
            if takes_numbers:
                return value.item()
            call, kind = self.trace.graph.operation, {"dtype": value.dtype}
            return call("call_function", torch.tensor, (value.item(),), kind, value)
        raise Break("not_a_graph_argument", "a tensor that was made outside of a transform")

    def record(self, calls: list[Call]) -> None:
        """Puts recorded operations into the graph.

        A transform enables gradients for its own level, those below stay as they were around it.
        """
        around = torch.is_grad_enabled()
        for func, args, kwargs, result, grad in map(spell_out, calls):
            mutable = func is not torch.tensor and func._schema.is_mutable
            if torch_functions.is_plain_result(result) and not mutable and not acts(func):
                continue
            node_of = functools.partial(self.node_of, takes_numbers=takes_numbers(func))
            nodes = _map(node_of, args), _map(node_of, kwargs)
            self._set_grad_enabled(grad, around)
            node = self.trace.graph.operation("call_function", func, *nodes, result)
            if func is not torch.tensor:
                found = observable_effects(func, args, kwargs)
                node.meta["checks"] = False
                note_failing(self.trace.frames[-1], node, func, found)
            self._set_grad_enabled(around, grad)
            self._name(node, result, [*args, *kwargs.values()])
            if mutable:
                self._note_mutations(args)

    def _set_grad_enabled(self, wanted: bool, now: bool) -> None:
        if wanted != now:
            setter = torch._C._set_grad_enabled
            self.trace.graph.operation("call_function", setter, (wanted,), {}, None)

    def _name(self, node: fx.Node, result: Any, args: list[Any]) -> None:
        if isinstance(result, torch.Tensor):
            if not any(result is arg for arg in args):
                self._nodes[id(result)] = (result, node)  # type: ignore[assignment]
        elif isinstance(result, tuple | list):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    part = self.trace.graph.operation(
                        "call_function", GETITEM, (node, index), {}, item
                    )
                    self._name(part, item, args)

    def _note_mutations(self, args: tuple[Any, ...]) -> None:
        for arg in args:
            var = self.var_of(arg)
            if var is not None:
                tensor_state(self.trace).note_mutation(var)


def takes_numbers(func: Any) -> bool:
    """True for operators that torch lets be called with numbers for tensors."""
    name = func.__name__.partition(".")[0]
    return func is torch.tensor or bool(torch._C._should_allow_numbers_as_tensors(name))


GETITEM = torch_functions.operator.getitem


def _map(function: Any, value: Any) -> Any:
    """Applies a function to the leaves of tuples, lists and dicts."""
    if type(value) is dict:
        return {key: _map(function, item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_map(function, item) for item in value)
    return function(value)


def is_wrapped(value: Any) -> bool:
    """True where a tensor with a level is in the value."""
    if isinstance(value, tuple | list):
        return any(map(is_wrapped, value))
    if isinstance(value, dict):
        return any(map(is_wrapped, value.values()))
    return isinstance(value, torch.Tensor) and bool(
        _functorch.is_functorch_wrapped_tensor(value) or not is_fake(value)
    )


def call_below(
    tx: Frame, function: Any, args: list[Any], kwargs: dict[str, Any],
    tensors: list[TensorVar], always: bool = False,
) -> Var | None:
    """The result of an operation on fakes with levels, recorded; None without a level.

    always: recorded without one, too.
    """
    known = tx.trace.state(KnownFakes)
    for var in tensors:
        known.learn(var)
    recorder = Recorder()

    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder:
            return function(*args, **kwargs)

    result = torch_functions.run_on_fakes(tx, run, args, kwargs)
    if not always and not is_wrapped([args, kwargs, result]):
        return None
    known.record(recorder.calls)
    return wrap_below(tx, result, tensors)


def wrap_below(tx: Frame, value: Any, tensors: list[TensorVar]) -> Var:
    """The Var of a result; a tensor with a level has no node of its own."""
    if isinstance(value, torch.Tensor):
        for var in tensors:
            if var.fake is value:
                return var
        if is_wrapped(value):
            return TensorVar(None, value)
        fakes = tx.trace.state(KnownFakes)
        known = fakes.var_of(value)
        return known if known is not None else TensorVar(fakes.node_of(value), value)
    if isinstance(value, tuple | list):
        return torch_functions.sequence_of(value, [wrap_below(tx, v, tensors) for v in value])
    return tx.trace.constant(value)


def has_level(kind: _functorch.TransformType) -> bool:
    """True where a transform of this kind is around the call."""
    stack = _functorch.get_interpreter_stack() or ()
    return any(level.key() == kind for level in stack)


def below(
    tx: Frame, level: Any, args: tuple[Var, ...]
) -> tuple[list[int | None], tuple[Var, ...]]:
    """The batch dimensions of arguments at the innermost level, and the arguments below it."""
    dims: list[int | None] = []
    inner: list[Var] = []
    for arg in args:
        if not isinstance(arg, TensorVar) or _functorch.maybe_get_level(arg.fake) != level.level():
            dims.append(None)
            inner.append(arg)
            continue
        batched = _functorch.is_batchedtensor(arg.fake)
        dims.append(_functorch.maybe_get_bdim(arg.fake) if batched else None)
        inner.append(wrap_below(tx, _functorch.get_unwrapped(arg.fake), []))
    return dims, tuple(inner)


# -- rules -----------------------------------------------------------------------------------------


def _register_state(function: Any) -> None:
    @rule(function)
    def change(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
        if tensor_state(tx.trace).inference_mode and function is _functorch._jvp_increment_nesting:
            raise Break("call_of_unknown_function", "a transform that leaves inference mode")
        if function is _functorch._vmap_increment_nesting and is_symbolic(args[0]):
            tx.trace.symbols.want_values()
            values = [args[0].as_fake(), *[arg.as_constant() for arg in args[1:]]]
        else:
            values = [arg.as_constant() for arg in args]
        keywords = {name: arg.as_constant() for name, arg in kwargs.items()}
        return tx.trace.constant(tx.trace.run_real(lambda: function(*values, **keywords)))


def _register_on_tensors(function: Any) -> None:
    @rule(function)
    def call(tx: Frame, *args: Var) -> Var:
        return on_tensors(tx, function, args, {})


def on_tensors(
    tx: Frame, function: Any, args: tuple[Var, ...], kwargs: dict[str, Var]
) -> Var:
    """A function of tensors that needs levels."""
    tensors: list[TensorVar] = []
    for arg in (*args, *kwargs.values()):
        torch_functions.collect_tensors(arg, tensors)
    tx.trace.symbols.want_values()
    fakes = [arg.as_fake() for arg in args]
    keywords = {name: arg.as_fake() for name, arg in kwargs.items()}
    result = call_below(tx, function, fakes, keywords, tensors, always=True)
    assert result is not None
    return result


for _function in STATE:
    _register_state(_function)
for _function in ON_TENSORS:
    _register_on_tensors(_function)


@rule(_functorch._remove_batch_dim)
def remove_batch_dim(tx: Frame, tensor: Var, level: Var, size: Var, axis: Var) -> Var:
    function, args = _functorch._remove_batch_dim, (tensor, level, size, axis)
    first = axis.is_constant() and axis.as_constant() == 0  # where torch's expansion keeps the axes
    if not first or not is_symbolic(size) or not isinstance(tensor, TensorVar):
        return on_tensors(tx, function, args, {})
    fake = tensor.fake
    of = _functorch.maybe_get_level(fake) if _functorch.is_batchedtensor(fake) else -1
    if of >= level.as_constant():
        return on_tensors(tx, function, args, {})
    # a result that is the same for all of the batch: torch's own code would fix the size
    sizes = TupleVar([size, *[ConstVar(-1) for _ in range(fake.dim())]])
    return tx.trace.call(tx, torch.Tensor.expand, tensor, sizes)


@rule(torch._C._enter_dual_level)
def enter_dual_level(tx: Frame) -> Var:
    if not torch_functions.in_transform():  # its operations would have to be taken apart
        raise Break("call_of_unknown_function", "torch.autograd.forward_ad.enter_dual_level")
    level = torch._C._enter_dual_level()
    tx.trace.state(KnownFakes).dual_levels.append(level)
    return ConstVar(level)


@rule(torch._C._exit_dual_level)
def exit_dual_level(tx: Frame, *args: Var, level: Var | None = None) -> Var | None:
    levels = tx.trace.state(KnownFakes).dual_levels
    wanted = (level if level is not None else args[0]).as_constant()
    if not levels or levels[-1] != wanted:
        return None
    torch._C._exit_dual_level(levels.pop())
    return ConstVar(None)


@rule(torch.Tensor.requires_grad_)
def requires_grad(tx: Frame, var: Var, /, *args: Var, **kwargs: Var) -> Var | None:
    """Inside of a transform: on a tensor with a level, or without effect."""
    if not torch_functions.in_transform() or not isinstance(var, TensorVar):
        return None
    flag = next(iter((*args, *kwargs.values())), ConstVar(True)).truth(tx)
    if not _functorch.get_inplace_requires_grad_allowed():  # an error
        torch_functions.run_on_fakes(tx, torch.Tensor.requires_grad_, [var.fake, flag], {})
    if var.fake.requires_grad is flag:
        return var
    if not is_wrapped(var.fake):
        return None
    return on_tensors(tx, torch.Tensor.requires_grad_, (var, *args), kwargs)


@rule(eager_transforms._autograd_grad)
def derivative(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    """What torch.func calls inside of a transform."""
    return on_tensors(tx, eager_transforms._autograd_grad, args, kwargs)


@rule(vmap.lazy_load_decompositions)
def load_decompositions(tx: Frame) -> Var:
    """Done while tracing: registers rules of torch, once per process."""
    vmap.lazy_load_decompositions()
    return ConstVar(None)


@rule(torch.autograd.forward_ad._maybe_load_decompositions)
def load_forward_decompositions(tx: Frame) -> Var:
    """The same for forward mode."""
    torch.autograd.forward_ad._maybe_load_decompositions()
    return ConstVar(None)
