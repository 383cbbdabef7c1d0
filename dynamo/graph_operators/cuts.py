"""Operations of a captured graph that only make sense on the program's own tensors and state.

In: a node. Out: whether a backend must run it as it is, between the parts that it compiles. Values
that such a node takes and gives are real tensors then, each with its own place in autograd's graph.
A recurrent layer over symbolic sizes, over a packed sequence, or on a GPU, is one, too; so is one
whose backward is a kernel of the library, an embedding whose gradient is sparse, `torch.linspace`
and its like of symbolic numbers, and `one_hot` on a CPU; so is an operator, or an autograd
function, of the program whose backward could not be recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.base.autograd_apply import AUTOGRAD_FUNCTION


def watch_gradient(tensor: torch.Tensor) -> None:
    """In a graph: a hook will look at the gradient of this tensor, which therefore must be one.

    Errors: RuntimeError where the graph is only recorded.
    """
    if torch._C._len_torch_dispatch_stack() or type(tensor) not in PLAIN:
        raise RuntimeError("a graph with gradients that hooks look at can't be recorded as a whole")


PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
# Methods that change what autograd knows of a tensor, or raise by its values.
METHODS = frozenset({"requires_grad_", "istft"})
# They give nothing, and raise where a tensor is false.
ASSERTIONS = frozenset({
    torch._assert_async, torch.ops.aten._assert_async,
    torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg,
})
MAKES_LEAF = "requires_grad"  # true among the arguments of what makes a tensor
# Functions that ATen's own depend on: these take the default dtype when they run. Or that raise by
# the values of a tensor.
FUNCTIONS = frozenset({
    watch_gradient, torch.istft, *ASSERTIONS,
    torch._C._set_default_dtype,  # type: ignore[attr-defined]
})
# On a CPU they look at the values that they take, and raise by these.
RAISE_BY_VALUES = frozenset({
    torch.nn.functional.one_hot, torch.ops.aten.one_hot, torch.ops.aten.one_hot.default,
})
# Over symbolic sizes they are one operation: taken apart, they are a step for each place of a
# sequence. So they are on other devices than these: cuDNN reads the weights as one buffer, which no
# fake has.
TAKEN_APART = {"cpu", "meta"}
RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
# oneDNN computes LSTMs of these, whose backward has no functional form: its results lie in one
# buffer of the library.
ONEDNN = frozenset({torch.float32, torch.bfloat16, torch.float16})
# Their gradient may be sparse: place of the argument that says so.
LOOKUPS: Mapping[Any, int] = {
    torch.nn.functional.embedding: 6, torch.nn.functional.embedding_bag: 7, torch.embedding: 4,
    torch.embedding_bag: 5,
}  # fmt: skip
# ATen takes no symbol as their length: place and name of the argument.
RANGES: Mapping[Any, tuple[int, str]] = {
    torch.linspace: (2, "steps"), torch.logspace: (2, "steps"),
    torch.fft.fftfreq: (0, "n"), torch.hann_window: (0, "window_length"),
    torch.hamming_window: (0, "window_length"), torch.bartlett_window: (0, "window_length"),
    torch.blackman_window: (0, "window_length"), torch.kaiser_window: (0, "window_length"),
}  # fmt: skip


def runs_alone(function: Any) -> Any:
    """Marks a function of a graph: it is run as it is.

    >>> is_cut(fx.Graph().call_function(runs_alone(lambda: None)))
    True
    """
    function.runs_alone = True
    return function


class Unforeseen(Exception):
    """A value is not what the trace has expected: the part runs again without the compiler."""


@runs_alone
def expect(outcomes: tuple[bool, ...], *tests: torch.Tensor) -> None:
    """In a graph: the truth of each tensor is as expected.

    Errors: Unforeseen; RuntimeError where the graph is only recorded.
    """
    if torch._C._len_torch_dispatch_stack():
        raise RuntimeError("a graph that tests what it expects can't be recorded as a whole")
    if any(bool(test) is not outcome for test, outcome in zip(tests, outcomes, strict=True)):
        raise Unforeseen


# In the meta of nodes that are found to be such.
ALONE = "runs alone"


def mark_own_operators(gm: fx.GraphModule, functions: Collection[type] = ()) -> bool:
    """Marks the operators of the program that have a history, or where there are some, the calls of
    these autograd functions; True if any was not marked."""
    found = False
    for node in gm.graph.nodes:
        if functions:
            is_meant = getattr(node.target, AUTOGRAD_FUNCTION, None) in functions
        else:
            is_meant = is_own(node.target)
        if is_meant and _has_history(node) and ALONE not in node.meta:
            node.meta[ALONE] = found = True
    return found


def is_own(target: Any) -> bool:
    """True for an operator that torch does not come with."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace not in ("aten", "prims")
    if isinstance(target, torch._ops.OpOverloadPacket):
        return not target._qualified_op_name.startswith(("aten::", "prims::"))
    return False


def is_cut(node: fx.Node) -> bool:
    """True for a node that is run as it is."""
    if node.op == "call_function":
        if ALONE in node.meta or node.kwargs.get(MAKES_LEAF) is True:
            return True
    if node.op == "call_method":
        return node.target in METHODS
    if node.target in RECURRENT:
        args = fx.map_arg(node.args, lambda given: given.meta.get("example_value"))
        return is_whole(args) or node.target is torch.lstm and _is_trained(node, args[0])
    if node.target in LOOKUPS:
        place = LOOKUPS[node.target]
        sparse = node.args[place] if len(node.args) > place else node.kwargs.get("sparse")
        return bool(sparse) and _has_history(node)
    if node.target in RANGES:
        given = [other.meta.get("example_value") for other in node.all_input_nodes]
        return bool(given) and not any(isinstance(value, torch.Tensor) for value in given)
    if node.target in RAISE_BY_VALUES:
        value = node.meta.get("example_value")
        return isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return node.target in FUNCTIONS or bool(getattr(node.target, "runs_alone", False))


def _is_trained(node: fx.Node, data: Any) -> bool:
    """True for an LSTM whose backward is the library's."""
    return isinstance(data, torch.Tensor) and data.dtype in ONEDNN and _has_history(node)


def _has_history(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    results = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(item, torch.Tensor) and item.requires_grad for item in results)


def is_whole(args: Sequence[Any]) -> bool:
    """True where a recurrent layer with these arguments is one operation."""
    if len(args) < 4 or not isinstance(args[0], torch.Tensor):
        return False
    if args[0].device.type not in TAKEN_APART or any(type(n) is not int for n in args[0].shape):
        return True
    return isinstance(args[3], (list, tuple))  # packed: the lengths are data


def length_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The length of one of `RANGES`; None without."""
    place, name = RANGES[function]
    return args[place] if len(args) > place else kwargs.get(name)


def has_cuts(gm: fx.GraphModule) -> bool:
    """True where a graph has such nodes."""
    return any(map(is_cut, gm.graph.nodes))
