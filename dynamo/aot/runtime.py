"""What runs around a compiled graph: mutations, views, and the way back to the captured program.

In: an `AtenGraph` and the callable that a compiler made of its module. Out: a callable with the
inputs and outputs of the program. It is one generated Python function, readable as `call.source`:

    def call(a0, a1):
        v0, v1 = compiled(a0, a1)
        a0.copy_(v1)
        return (v0, a0.as_strided((2, 3), (3, 1)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch._C._autograd import (  # type: ignore[attr-defined]
    CreationMeta,
    _set_creation_meta,
)
from torch.utils import _pytree as pytree

from dynamo._C import count_writes, share_memory
from dynamo.aot.recipes import noted
from dynamo.aot.records import (
    AtenGraph,
    ConstantOutput,
    FreshOutput,
    InputOutput,
    NumberOutput,
    Output,
    PlainOutput,
    ViewOutput,
)
from dynamo.aot.spent import spend
from dynamo.aot.symbols import names_of, reads, text_of
from dynamo.base import logs
from dynamo.base.fallbacks import GRAPH, line_of, refused
from dynamo.base.generated import function_of

Callee = Callable[..., Any]


def wrap_compiled(graph: AtenGraph, compiled: Callee, original: Callee) -> Callee:
    """The program's callable; the compiled one itself where nothing is to do around it.

    original: the program as it was captured, for calls that the graph was not made for.
    """
    if graph.inference:
        compiled = in_inference_mode(compiled)
    if graph.is_plain and not graph.mutations:
        logs.log("wrapper").emit("# nothing is done around the compiled graph")
        return compiled
    writer = _Writer(graph)
    source = "\n".join(writer.lines())
    logs.log("wrapper").emit(source)
    return call_of(source, writer.names, compiled, original)


def call_of(source: str, names: dict[str, Any], compiled: Callee, original: Callee) -> Callee:
    """The function `call` of a source. names: its globals beside what it calls."""
    scope = {**names, "compiled": compiled, "original": original}
    call = function_of(source, "call", "wrapper", scope)
    call.source = source
    return noted(call, call_of, source, names, compiled, original)  # type: ignore[no-any-return]


class _Writer:
    """Writes the source of one runtime function; `names` is its globals, see `call_of`."""

    def __init__(self, graph: AtenGraph) -> None:
        self.graph = graph
        self.names: dict[str, Any] = {"share_memory": share_memory}
        self._numbers = count()
        self._symbols = names_of(graph.symbols)

    def lines(self) -> list[str]:
        graph = self.graph
        inputs = [f"a{index}" for index in range(len(graph.fakes))]
        results = self._result_count()
        lines = [f"def call({', '.join(inputs)}):"]
        given = ", ".join(inputs)
        for reason, tests in self._refusals().items():
            if tests:
                self.names["run_as_captured"] = run_as_captured
                lines += [f"    if {' or '.join(tests)}:",
                          f"        return run_as_captured(original, {reason!r}, {given})"]
        lines += [f"    {line}" for line in self._sizes(inputs)]
        lines += self._written(graph.touched)  # first: what the graph saves is as new as its input
        call = f"compiled({given})"
        if results:
            written = any(mutation.output is None for mutation in graph.mutations)
            if written and not graph.epilogue_in_graph:  # there is a None for each of them behind
                call = f"(*{call},)[:{results}]"  # Python allows 255 names before a starred one
            call = ", ".join(f"v{index}" for index in range(results)) + f", = {call}"
        lines.append(f"    {call}")
        for mutation in graph.mutations_outside:
            data = ".data" if mutation.input in graph.quiet else ""
            lines.append(f"    write(a{mutation.input}{data}, v{mutation.output})")
            self.names["write"] = write
        inside = [
            m.input for m in graph.mutations if m.output is None and m.input not in graph.quiet
        ]
        lines += self._written(inside)
        for index in graph.in_inference:
            self.names["as_inference_tensor"] = as_inference_tensor
            lines.append(f"    v{index} = as_inference_tensor(v{index})")
        if graph.spent:
            self.names["spend"] = spend
            spent = "".join(f"v{index}, " for index in graph.spent)
            leaves = "".join(f"a{index}, " for index in graph.leaves)
            lines.append(f"    spend(({spent}), ({leaves}))")
        lines.append(f"    return {self._result()}")
        return lines

    def _written(self, inputs: Sequence[int]) -> list[str]:
        if not inputs:
            return []
        self.names["written"] = count_writes
        return [f"    written(({', '.join(f'a{index}' for index in inputs)},))"]

    def _sizes(self, inputs: list[str]) -> list[str]:
        """Reads the symbols where an output needs them; mutations don't change sizes."""
        wanted = any(isinstance(out, (ViewOutput, NumberOutput)) for out in self.graph.outputs)
        return reads(self.graph.symbols, inputs) if wanted else []

    def _result_count(self) -> int:
        bases = map(root_of, self.graph.outputs)
        indices = [base.index for base in bases if isinstance(base, FreshOutput)]
        indices += [m.output for m in self.graph.mutations if m.output is not None]
        return max(indices, default=-1) + 1

    def _refusals(self) -> dict[str, list[str]]:
        """Tests of calls that the graph was not made for, by reason."""
        numbers, histories, memory = list[str](), list[str](), list[str]()
        for index, value in self.graph.numbers:
            name = self._name(value)
            numbers.append(f"type(a{index}) is not type({name}) or a{index} != {name}")
        mutated = [mutation.input for mutation in self.graph.mutations]
        unread = {each.input for each in self.graph.within}
        tensors = [index for index, fake in enumerate(self.graph.fakes)
                   if isinstance(fake, torch.Tensor) and index not in unread]
        for each in self.graph.within:
            place = f"a{each.input}.data_ptr() - a{each.owner}.data_ptr()"
            memory.append(f"{place} != {each.start}")
        for index in self.graph.mutates_history:
            histories.append(f"a{index}._is_view() or a{index}.retains_grad")
        if mutated and len(tensors) > 1:
            listed = ", ".join(f"a{index}" for index in mutated)
            others = ", ".join(f"a{index}" for index in tensors if index not in mutated)
            memory.append(f"share_memory(({listed},), ({others}{',' if others else ''}))")
        return {
            "a number is another than in the graph": numbers,
            "an input that gets a gradient is a view, or retains its own": histories,
            "inputs of which one is written share memory otherwise than in the graph": memory,
        }

    def _name(self, value: Any) -> str:
        name = f"c{next(self._numbers)}"
        self.names[name] = value
        return name

    def _result(self) -> str:
        form = self.graph.form
        bases: dict[Output, str] = {}
        parts = [self._output(output, bases) for output in self.graph.outputs]
        if form.kind is tuple:
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if form.kind is list:
            return f"[{', '.join(parts)}]"
        self.names["unflatten"] = pytree.tree_unflatten
        return f"unflatten([{', '.join(parts)}], {self._name(form.spec)})"

    def _output(self, output: Output, seen: dict[Any, str]) -> str:
        if isinstance(output, FreshOutput):
            return f"v{output.index}"
        if isinstance(output, InputOutput):
            return f"a{output.index}"
        if isinstance(output, ConstantOutput):
            return self._name(output.value)
        if isinstance(output, PlainOutput):
            return self._name(output.value)
        if isinstance(output, NumberOutput):
            return text_of(output.expression, self._symbols)
        known = seen.get(id(output))
        if known is not None:
            return known
        text = self._view(output, seen)
        others = (other for given in self.graph.outputs for other in with_bases(given))
        if sum(other is output for other in others) > 1:
            name = f"w{next(self._numbers)}"
            seen[id(output)] = name
            return f"({name} := {text})"
        return text

    def _view(self, output: ViewOutput, seen: dict[Any, str]) -> str:
        base = self._output(output.base, seen)
        text = f"{base}.detach()" if output.detach == "before" else base
        size, stride = (
            f"({''.join(f'{text_of(extent, self._symbols)}, ' for extent in part)})"
            for part in (output.size, output.stride)
        )
        if output.no_grad:
            self.names["no_grad_view"] = no_grad_view
            form = f"{size}, {stride}, {text_of(output.offset, self._symbols)}"
            kind = output.dtype, output.conjugated, output.negated, output.inference
            return f"no_grad_view({text}, {form}, *{self._name(kind)})"
        if output.dtype is not None:
            self.names["read_as"] = read_as
            base = text = f"read_as({text}, {self._name(output.dtype)})"
        # without an offset, `as_strided` takes that of its tensor
        offset = ""
        if output.offset != 0:
            offset = f", {text_of(output.offset, self._symbols)}"
            if isinstance(output.base, ViewOutput):
                text = f"({(base := f'w{next(self._numbers)}')} := {text})"
            if not isinstance(output.base, FreshOutput):
                offset += f" + {base}.storage_offset()"
        text += f".as_strided({size}, {stride}{offset})"
        text += ".conj()" * output.conjugated + "._neg_view()" * output.negated
        if output.one_of_many:
            self.names["one_of_many"] = one_of_many
            text = f"one_of_many({text})"
        return f"{text}.detach()" if output.detach == "after" else text


def with_bases(output: Output) -> list[Output]:
    """The record, and those of what it is a view of."""
    return [output, *with_bases(output.base)] if isinstance(output, ViewOutput) else [output]


def root_of(output: Output) -> Output:
    """The record of what an output is a view of, directly or by way of others."""
    return with_bases(output)[-1]


def run_as_captured(original: Callee, reason: str, *inputs: Any) -> Any:
    """`original(*inputs)`, which is counted as not compiled, and told once."""
    graph = getattr(getattr(original, "__self__", None), "graph", None)
    refused(GRAPH, f"in some calls {reason}", line_of(graph.nodes if graph else ()), strict=False)
    return original(*inputs)


def read_as(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A view with elements of another dtype; complex numbers as pairs of theirs."""
    return torch.view_as_real(base) if base.dtype.is_complex else base.view(dtype)


def no_grad_view(
    base: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int,
    dtype: torch.dtype | None, conjugated: bool, negated: bool, inference: bool,
) -> torch.Tensor:
    """A view made without grad mode, whatever it is: see `ViewOutput`."""
    with torch.inference_mode() if inference else torch.no_grad():
        view = base if dtype is None else read_as(base, dtype)
        view = view.as_strided(size, stride, view.storage_offset() + offset)
        view = view.conj() if conjugated else view
        return view._neg_view() if negated else view


def as_inference_tensor(value: torch.Tensor) -> torch.Tensor:
    """The same memory as inference mode would have made it."""
    with torch.inference_mode():
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(
            value.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def one_of_many(view: torch.Tensor) -> torch.Tensor:
    """The view; autograd takes it for a result of an operation that returns several views."""
    if torch.is_grad_enabled():
        _set_creation_meta(view, CreationMeta.MULTI_OUTPUT_NODE)
    return view


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """`target.copy_(value)` whatever the grad mode: the program's own checks passed when traced."""
    with torch.no_grad():
        target.copy_(value)


def without_grad(compiled: Callee) -> Callee:
    """For a graph that detached what it returns: its calls of ATen must not be recorded."""

    def call(*inputs: Any) -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    return noted(call, without_grad, compiled)  # type: ignore[no-any-return]


def in_inference_mode(compiled: Callee) -> Callee:
    """For a graph that makes inference tensors."""

    def call(*inputs: Any) -> Any:
        with torch.inference_mode():
            return compiled(*inputs)

    return noted(call, in_inference_mode, compiled)  # type: ignore[no-any-return]
