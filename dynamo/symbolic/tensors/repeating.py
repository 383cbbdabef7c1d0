"""Which graphs may run twice, and what a trace expects of the values in tensors.

A part whose graph raises runs again without the compiler, for the program's own handlers. So an
operation that may raise where the program catches it, and one that can't happen twice, are no
neighbours: the second of the two runs in Python (`cut_where_caught`).

A branch on a tensor of which one side does nothing but raise (`assert mask.all()`, the checks of
`torch.distributions`) does not break the graph: a node tests what is expected, before anything has
happened that can't happen twice. Where it is not so, the part runs again without the compiler.

In: the frame at such a branch (`branch_truth`), a graph (`may_rerun`, `settle_tests`).
Out: the way that the trace takes; whether the graph may run again; the graph with its tests joined;
its function, which puts generators of random numbers back (`puts_back`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from dynamo.base.errors import Break, RestartTrace
from dynamo.bytecode.decode import Decoded, Instruction
from dynamo.graph_operators.cuts import Unforeseen, expect, watch_gradient
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.lookup import module_of
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors import contexts
from dynamo.symbolic.tensors.failing import TORCH_OPERATORS
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform

# Operations that write running statistics without a word in their schemas, or without a new version
# of the tensor.
NORMS = frozenset("""batch_norm instance_norm native_batch_norm _native_batch_norm_legit
    _batch_norm_impl_index _batch_norm_with_update quantized_batch_norm cudnn_batch_norm
    miopen_batch_norm batch_norm_update_stats batch_norm_gather_stats
    batch_norm_gather_stats_with_counts""".split())
# What changes a tensor's storage, gradients or statistics, the state of generators, or prints.
CHANGES = frozenset("""set_ set_data backward _backward seed manual_seed set_rng_state _print
    fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper""".split())
# What raises by the values in tensors, and does nothing else.
TESTS = frozenset("""_assert _assert_async _assert_scalar _assert_tensor_metadata _check_tensor_all
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _linalg_check_errors sym_constrain_range
    sym_constrain_range_for_size""".split())
STATEFUL = NORMS | CHANGES | TESTS
# Draws from torch's own generators alone: these can be put back.
UNDONE = frozenset("""rand randn rand_like randn_like normal bernoulli multinomial poisson normal_
    uniform_ exponential_ bernoulli_ cauchy_ log_normal_ geometric_ dropout _standard_gamma
    _sample_dirichlet""".split())
HARMLESS = contexts.MODE_NODES | {
    contexts.enter, contexts.leave, operator.getitem, getattr, torch._check, watch_gradient,
    expect,
}  # fmt: skip
OF_NUMBERS = frozenset(("_operator", "builtins", "math"))
READS = frozenset(("item", "size"))
LONGEST_RAISE = 400  # instructions


class Runs(NamedTuple):
    """calm: the graph may run again after an error, from what it was given. twice: another run
    gives what one run gives, but for random numbers."""

    calm: bool
    twice: bool


def runs_of(graph: fx.Graph) -> Runs:
    return Runs(may_rerun(graph), may_run_twice(graph))


def may_rerun(graph: fx.Graph) -> bool:
    """True where a graph that has raised may be run once more by eager, from what it was given."""
    outside = _outside(graph)
    return all(_is_repeatable(node, outside) for node in _operations(graph))


def can_undo(graph: fx.Graph) -> bool:
    """True where nothing but the state of generators has changed when the graph has run."""
    outside = _outside(graph)
    return all(
        _is_repeatable(node, outside) or _is_undone(node, outside) for node in _operations(graph)
    )


def may_run_twice(graph: fx.Graph) -> bool:
    """True where another run of the graph gives what one run gives, but for random numbers."""
    outside = _outside(graph)
    return not any(_is_seen(node, outside) for node in _operations(graph))


def _is_seen(node: fx.Node, outside: set[int]) -> bool:
    """True for an operation that changes, or may change, what was there before the graph."""
    target: Any = node.target
    if target in HARMLESS:
        return False
    written = node.meta.get("written")
    if written is None:
        calm = target in READS if isinstance(target, str) else module_of(target) in OF_NUMBERS
        return not calm
    name = _name(node).partition(".")[0]
    if name in CHANGES or _has_new_statistics(node, name):
        return True
    return any(storage_of(fake) in outside for fake in written)


def reruns(graph: fx.Graph) -> bool:
    """True where a graph that has raised may be run once more by eager, generators put back if need
    be: not for errors from which a GPU does not recover."""
    found = (node.meta for node in _operations(graph))
    raises = any(
        meta.get("caught") or (meta.get("fails") and not is_on_gpu(meta["example_value"]))
        for meta in found
    )
    return may_rerun(graph) or (raises and can_undo(graph))


def is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def cut_where_caught(graph: fx.Graph) -> None:
    """Ends the trace before the second of two operations of which one may raise, where the program
    catches that, and one can't happen twice. Errors: RestartTrace."""
    outside = _outside(graph)
    raises = stays = None
    for node in _operations(graph):
        if any(inner.meta.get("caught") for inner in _all_nodes(node)):
            raises = node
        if not _is_repeatable(node, outside) and not _is_undone(node, outside):
            stays = node
        if raises is not None and stays is not None and "step" in node.meta:
            names = " ".join(map(_name, dict.fromkeys((stays, raises))))
            raise RestartTrace(node.meta["step"], Break("caught_error", names))


def _all_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """A node and those of the graphs that it calls."""
    yield node
    modules = getattr(node.target, "modules", (getattr(node.target, "module", None),))
    for module in modules:
        if isinstance(module, fx.GraphModule):
            for inner in module.graph.nodes:
                yield from _all_nodes(inner)


def _name(node: fx.Node) -> str:
    target: Any = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _is_undone(node: fx.Node, outside: set[int]) -> bool:
    written, given = node.meta.get("written"), node.kwargs.get("generator")
    if _name(node) not in UNDONE or written is None or given is not None:
        return False
    return all(storage_of(fake) not in outside for fake in written)


def _outside(graph: fx.Graph) -> set[int]:
    """The storages of the graph's inputs."""
    return {
        storage_of(node.meta["example_value"]) for node in graph.nodes
        if node.op == "placeholder" and isinstance(node.meta["example_value"], torch.Tensor)
    }


def _operations(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


def _is_repeatable(node: fx.Node, outside: set[int]) -> bool:
    target: Any = node.target
    if target in HARMLESS:
        return True
    if isinstance(target, torch._ops.OpOverload) and target.namespace not in TORCH_OPERATORS:
        return False
    written = node.meta.get("written")
    if written is None:  # no operation on tensors, or one with functions of the program in it
        return target in READS if isinstance(target, str) else module_of(target) in OF_NUMBERS
    name = _name(node).partition(".")[0]
    if not name or name in CHANGES | TESTS or node.meta.get("draws"):
        return False
    if _has_new_statistics(node, name):
        return False
    return all(storage_of(fake) not in outside for fake in written)


def _has_new_statistics(node: fx.Node, name: str) -> bool:
    """True for a normalization that may change its running statistics, of which schemas say
    nothing; one whose flag says that it computes none does not."""
    if name not in NORMS:
        return False
    named = (node.kwargs[key] for key in ("training", "use_input_stats") if key in node.kwargs)
    given = [*node.args[5:6], *named]
    return len(given) != 1 or given[0] is not False


# -- branches of which one side raises -------------------------------------------------------------


def branch_truth(frame: Frame, var: Var, jump: Instruction) -> bool:
    """The truth of a value that the instruction `jump` branches on."""
    if not isinstance(var, TensorVar):
        return var.truth(frame)
    try:
        return var.truth(frame)
    except Break as reason:
        if reason.code != "data_dependent_branch" or var.fake.dim() or in_transform():
            raise
        expected = expected_truth(frame.decoded, jump)
        graph = frame.trace.graph
        if expected is None or not can_undo(graph.graph):
            raise
        values = ((expected,), var.as_proxy())
        node = graph.operation("call_function", expect, values, {}, None)
        node.meta.update(checks=True, raises=(_message(frame, jump),))
        return expected


def expected_truth(decoded: Decoded, jump: Instruction) -> bool | None:
    """The outcome of a branch that does not raise at once; None where both go on, or none does."""
    if jump.op not in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
        return None
    jumps, stays = (_only_raises(decoded, at) for at in (jump.target, jump.index + 1))
    if jumps == stays:
        return None
    return (jump.op == "POP_JUMP_IF_TRUE") == stays


def _message(frame: Frame, jump: Instruction) -> str | None:
    """The text of the error that one side of a branch raises, where it is a constant."""
    decoded = frame.decoded
    start = next(at for at in (jump.target, jump.index + 1) if _only_raises(decoded, at))
    texts: list[Any] = []
    for instruction in decoded.instructions[start:]:
        if instruction.op == "RAISE_VARARGS":
            break
        if instruction.op == "LOAD_CONST":
            texts.append(instruction.arg)
        elif instruction.op == "LOAD_FAST":
            local = frame.locals.get(instruction.arg)
            plain = type(local) is ConstVar and local.source is None
            texts.append(local.as_constant() if plain and local is not None else None)
        elif instruction.op not in PLAIN_RAISE:
            return None
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None


PLAIN_RAISE = frozenset((
    "LOAD_ASSERTION_ERROR", "LOAD_GLOBAL", "PUSH_NULL", "PRECALL", "CALL", "NOP",
))


def _only_raises(decoded: Decoded, start: int) -> bool:
    """True where the code from an instruction on ends in a `raise`, whichever way it takes."""
    seen: set[int] = set()
    work = [start]
    while work:
        at = work.pop()
        if at in seen:
            continue
        seen.add(at)
        instruction = decoded.instructions[at]
        if instruction.op in ("RAISE_VARARGS", "RERAISE"):
            continue
        leaves = instruction.op.startswith(("RETURN", "YIELD", "SEND"))
        if leaves or at < start or len(seen) > LONGEST_RAISE:
            return False
        if instruction.target >= 0:
            work.append(instruction.target)
        if instruction.op != "JUMP":
            work.append(at + 1)
    return True


def has_tests(graph: fx.Graph) -> bool:
    """True where the graph tests what the trace has expected."""
    return any(node.target is expect for node in graph.nodes)


def settle_tests(graph: fx.Graph) -> None:
    """Joins the tests of a finished graph at its end, or before what writes into a tested value.

    Where the graph can't be undone they stay: another operation might raise before a later test.
    """
    if not has_tests(graph) or not can_undo(graph):
        return
    waiting: list[fx.Node] = []
    for node in [*_operations(graph), graph.output_node()]:
        if node.target is expect:
            waiting.append(node)
        elif waiting and (node.op == "output" or _writes(node, waiting)):
            _join(graph, waiting, node)
            waiting = []


def _writes(node: fx.Node, tests: Iterable[fx.Node]) -> bool:
    written = {storage_of(fake) for fake in node.meta.get("changed", ())}
    tested = (arg.meta["example_value"] for test in tests for arg in test.all_input_nodes)
    return any(storage_of(fake) in written for fake in tested)


def _join(graph: fx.Graph, tests: list[fx.Node], place: fx.Node) -> None:
    """Replaces tests by one before `place`."""
    expected, texts = dict[fx.Node, bool](), dict[fx.Node, str | None]()
    for test in tests:
        outcomes: Any = test.args[0]
        expected.update(zip(test.all_input_nodes, outcomes, strict=True))
        texts.update(zip(test.all_input_nodes, test.meta["raises"], strict=True))
    with graph.inserting_before(place):
        joined = graph.call_function(expect, (tuple(expected.values()), *expected))
    joined.meta.update(tests[-1].meta, raises=tuple(texts.values()))
    for test in tests:
        graph.erase_node(test)


# -- random numbers of a graph that runs twice -----------------------------------------------------


def errors_to_undo(
    graph: fx.Graph, repeatable: bool, calm: bool
) -> tuple[type[Exception], ...]:
    """The errors before which the function of a graph puts torch's generators back. repeatable:
    whether the graph runs again after any error; calm: see `Runs`."""
    if calm:
        return ()
    return (Exception,) if repeatable else (Unforeseen,) if has_tests(graph) else ()


def puts_back(
    function: Callable[..., Any], errors: tuple[type[Exception], ...]
) -> Callable[..., Any]:
    """A graph's function that puts torch's generators back before it raises one of `errors`."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        state = torch.default_generator.get_state()
        try:
            return function(*args)
        except errors:
            torch.default_generator.set_state(state)
            if gpus:
                torch.cuda.set_rng_state_all(gpus)
            raise

    return call
