"""Running a captured program (a torch.fx graph of torch-level calls) node by node.

In: the module and values for its placeholders. Out: the values of its output node. The observer
sees each node before it runs and its value afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.nn import functional
from torch.nn.utils.stateless import _reparametrize_module

from dynamo.aot.lists import one_by_one, unscale, writes_a_list
from dynamo.aot.masked_writes import put
from dynamo.aot.products import cumprod
from dynamo.aot.records import Unsupported
from dynamo.aot.resizing import weighted_sum
from dynamo.base.fallbacks import AT, line_of
from dynamo.shapes.cells import CELLS
from dynamo.shapes.creation import CREATIONS, new_tensor
from dynamo.shapes.interpolate import OPERATORS, interpolate
from dynamo.shapes.row_norm import rms_norm

Leaf = Callable[[torch.Tensor], torch.Tensor]
Around = Callable[[fx.Node], contextlib.AbstractContextManager[None]] | None
NOTHING = contextlib.nullcontext()
OF_PROGRAM = "of_program"
PROGRAMS = (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)


class Observer:
    """Sees a program run. Methods do nothing unless overridden.

    inference: the program is in an inference mode of its own.
    """

    inference = False

    def before(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """`node` is about to run with these arguments."""

    def after(self, node: fx.Node, value: Any) -> None:
        """`node` has run."""


class _NoGrad:
    """What stands for an inference mode that the program enters: fakes can't do more."""

    def __init__(self, mode: bool, observer: Observer) -> None:
        self._observer = observer
        self._before = observer.inference, torch.is_grad_enabled()
        observer.inference = mode
        torch._C._set_grad_enabled(not mode)

    def leave(self) -> None:
        self._observer.inference, grad = self._before
        torch._C._set_grad_enabled(grad)


def run_program(
    gm: fx.GraphModule, inputs: list[Any], leaf: Leaf, observer: Observer, around: Around = None
) -> Any:
    """Runs the program; `leaf` stands in for each tensor attribute of the module, `around` gives
    what each call of the program runs in.

    Modes that the program sets (grad, autocast) are as before afterwards.
    """
    env: dict[fx.Node, Any] = {}
    values = iter(inputs)
    here: list[fx.Node] = []
    with keep_modes(), _errors_marked(here), _left_on_error(env):
        for node in gm.graph.nodes:
            here[:] = (node,)
            if node.op == "placeholder":
                env[node] = next(values)
                continue
            if node.op == "get_attr":
                value = _attribute(gm, str(node.target))
                env[node] = leaf(value) if isinstance(value, torch.Tensor) else value
                continue
            args = map_arg(node.args, env.__getitem__)
            if node.op == "output":
                return args[0]
            kwargs = map_arg(node.kwargs, env.__getitem__) if node.kwargs else {}
            if args[:1] == ("inference_mode",):
                env[node] = _NoGrad(args[1], observer)
                continue
            if args and isinstance(args[0], _NoGrad):
                args[0].leave()
                continue
            observer.before(node, args, kwargs)
            with NOTHING if around is None else around(node):
                env[node] = value = _run_node(gm, node, args, kwargs, leaf)
            observer.after(node, value)
    raise AssertionError("a graph without an output node")


@contextlib.contextmanager
def _left_on_error(env: dict[fx.Node, Any]) -> Iterator[None]:
    """An error inside leaves the contexts that the program has entered and not left."""
    try:
        yield
    except BaseException:
        for node, value in reversed(list(env.items())):
            if getattr(node.target, "__name__", "") == "enter" and not isinstance(value, _NoGrad):
                for user in node.users:
                    if user not in env:
                        user.target(value)  # type: ignore[operator]
        raise


@contextlib.contextmanager
def _errors_marked(here: list[fx.Node]) -> Iterator[None]:
    """Marks the errors inside for `is_of_program`, and with the line of the node that is `here`."""
    try:
        yield
    except Exception as error:
        error.__dict__.setdefault(AT, line_of(here))
        if isinstance(error, PROGRAMS):
            error.__dict__[OF_PROGRAM] = True
        raise


def is_of_program(error: Exception) -> bool:
    """True for an error of the program's own operations in `run_program`: what eager raises, if
    no shape rule is wrong."""
    return OF_PROGRAM in error.__dict__


def _run_node(gm: fx.GraphModule, node: fx.Node, args: Any, kwargs: Any, leaf: Leaf) -> Any:
    if node.op == "call_function":
        function: Any = OWN_STEPS.get(node.target, node.target)
        if writes_a_list(function):
            return one_by_one(function, *args, **kwargs)
        return function(*args, **kwargs)
    if node.op == "call_method":
        method = getattr(args[0], str(node.target))
        if node.target in OWN_METHODS and isinstance(args[0], torch.Tensor):
            method = functools.partial(OWN_METHODS[str(node.target)], args[0])
        return method(*args[1:], **kwargs)
    module = gm.get_submodule(str(node.target))
    tensors = {
        name: leaf(tensor)
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    }
    with _reparametrize_module(module, tensors):
        return module(*args, **kwargs)


def dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """`F.dropout` in the steps that ATen takes on the CPU, without its in-place division, whose
    check imports SymPy."""
    drops = training and 0.0 < p < 1.0 and input.numel()
    if inplace or not drops or input.device.type != "cpu":
        return functional.dropout(input, p, training, inplace)
    noise = torch.empty_like(input).bernoulli_(1 - p)
    return input * (noise / (1 - p))


def resize(input: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """`F.interpolate`, in operators that take symbolic sizes, backward too."""
    operators = WITH_BACKWARD if input.requires_grad else OPERATORS
    result = interpolate(input, *args, operators=operators, **options)
    if result is NotImplemented:
        raise Unsupported("interpolation of nothing")
    return result


def shuffle_natively(*args: Any, **options: Any) -> torch.Tensor:
    """`torch.native_channel_shuffle`: a copy or a view, as the kernel that the device has."""
    raise Unsupported("native_channel_shuffle is a kernel of the device")


WITH_BACKWARD: Mapping[tuple[str, int], Any] = {
    key: weighted_sum if "linear" in key[0] else operator for key, operator in OPERATORS.items()
}

# What runs in steps of our own, which come to the same.
OWN_STEPS: Mapping[Any, Callable[..., Any]] = {
    functional.dropout: dropout, functional.interpolate: resize, functional.upsample: resize,
    functional.rms_norm: rms_norm, torch.rms_norm: rms_norm, math.sqrt: torch.sym_sqrt, **CREATIONS,
    **CELLS, torch.cumprod: cumprod,
    torch._amp_foreach_non_finite_check_and_unscale_: unscale,
    torch.native_channel_shuffle: shuffle_natively,
    torch.ops.aten.native_channel_shuffle: shuffle_natively,
    torch.ops.aten.native_channel_shuffle.default: shuffle_natively,
}  # fmt: skip
OWN_METHODS: Mapping[str, Callable[..., Any]] = {
    "new_tensor": new_tensor, "__setitem__": put, "cumprod": cumprod,
}  # fmt: skip


def _attribute(gm: fx.GraphModule, target: str) -> Any:
    value: Any = gm
    for name in target.split("."):
        value = getattr(value, name)
    return value


@contextlib.contextmanager
def keep_modes() -> Iterator[None]:
    """Restores grad mode and autocast, which a program may set."""
    grad = torch.is_grad_enabled()
    cache = torch.is_autocast_cache_enabled()
    casts = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    ]
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        torch.set_autocast_cache_enabled(cache)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
