"""The calls of functions of our own that are no kernels of loops: GEMMs, convolutions,
attention, GEMMs of stacks and sums of all elements before each.

In: a step of the schedule. Out: lines of C++ in the wrapper that call the function, and the
operator where it finds no memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from inductor.codegen.calls import CallWriter
from inductor.codegen.cpp.own_calls import STACKS, SUMS, print_stack, print_sums
from inductor.codegen.cpp.types import literal, memory_type
from inductor.ir.convolutions import Geometry, geometry_of, is_own_convolution
from inductor.ir.graph import ExternKernel, ViewRef
from inductor.kernels.attention_spec import broadcast_steps
from inductor.kernels.cpu.attention.library import HALF, facts_of
from inductor.kernels.cpu.attention.source import attention_declaration, attention_name
from inductor.kernels.cpu.convolution import (
    CHAIN_NAME,
    CONVOLUTION_DECLARATIONS,
    CONVOLUTION_NAME,
    DEPTHWISE_NAME,
    WINOGRAD_NAME,
)
from inductor.kernels.cpu.gemm import CHAIN_DECLARATION as GEMM_CHAIN_DECLARATION
from inductor.kernels.cpu.gemm import GEMM_DECLARATION, GEMM_NAME
from inductor.kernels.cpu.half_gemm import HALF_DECLARATION, HALF_NAME
from inductor.operators.cpu_attention_ops import OPERATOR as ATTENTION
from inductor.scheduler.fuse_convolutions import bounds_of
from inductor.scheduler.schedule import (
    ConvolutionChain,
    FusedConvolution,
    GemmChain,
    Kernel,
    TemplateKernel,
)

SYMBOL = re.compile(r"\bk\d+\b")


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Texts for a call of a convolution of our own. lines: tables; pointers: to x, weight, bias and
    the result. data: the `count` pointers that the epilogue gets; inner: bits for the result's."""

    call: ExternKernel
    geometry: Geometry
    lines: tuple[str, ...]
    pointers: tuple[str, ...]
    bounds: str
    epilogue: str
    data: str
    count: int
    inner: int


def _gemm_in(step: TemplateKernel | ExternKernel) -> tuple[ExternKernel, Kernel | None, str]:
    """The GEMM of a step, what follows it, and where its result lies if not in its own
    buffer."""
    if isinstance(step, ExternKernel):
        return step, None, ""
    (part,) = step.parts
    return part.gemms[0].call, part.epilogue, part.target


def call_gemm(
    writer: CallWriter, step: ExternKernel, epilogue: Kernel | None = None, target: str = ""
) -> None:
    """target: the buffer for the result, if that is not the GEMM's own."""
    assert step.layout is not None
    half = step.layout.dtype is HALF
    function = HALF_NAME if half else GEMM_NAME
    kind = "u16" if half else "f32"
    m, n, k, *_ = numbers = _sides(writer, step, kind)
    writer.symbols.update(*(SYMBOL.findall(f"{number}") for number in numbers))
    whole = replace(writer.whole(step.name), buffer=target or step.name)
    result = writer.pointer(whole, kind)
    arguments = ", ".join(f"{n}" for n in (*numbers, result, writer.threads))
    # Where it finds no memory for its copies the operator runs.
    instead = f"if (rt->call(rt, {writer.extern_number(step, whole)})) return 1;"
    behind = "0, 0"
    if epilogue is not None:
        source, context = writer.kernels[epilogue.name], f"c{len(writer.lines)}"
        pointers = [f"(void*)({each})" for each in writer.arguments(source)]
        writer.lines.append(f"  void* {context}[] = {{{', '.join(pointers)}}};")
        behind = f"{source.name}, {context}"
        instead += f" {source.name}({context}, 0, {m}, 0, {n});"
    writer.lines.append(f"  if ({function}({arguments}, {behind})) {{ {instead} }}")
    writer.declarations.add(HALF_DECLARATION if half else GEMM_DECLARATION)


def call_template(writer: CallWriter, step: TemplateKernel) -> None:
    call_gemm(writer, *_gemm_in(step))


def _sides(writer: CallWriter, step: ExternKernel, kind: str) -> tuple[Any, ...]:
    """m, n, k, the left side and its strides, the right side and its strides, the bias."""
    *bias, x, weight = (view for view in step.args if isinstance(view, ViewRef))
    (m, k), n = x.size, weight.size[1]
    left, right = writer.pointer(x, kind), writer.pointer(weight, kind)
    strides, start = weight.stride, writer.pointer(bias[0], kind) if bias else "0"
    if step.panels:
        right, strides = f"({kind}*)d[{writer.slot_of[step.panels]}]", (0, 0)
    return (m, n, k, left, *x.stride, right, *strides, start)


def call_gemm_chain(writer: CallWriter, chain: GemmChain) -> None:
    """Both GEMMs by one function; one behind the other, where that finds no memory."""
    at, links, sides = len(writer.lines), [], []
    for number, step in enumerate(chain.links):
        call, epilogue, _ = _gemm_in(step)
        _, n, k, *left, right, row, column, start = _sides(writer, call, "f32")
        sides.append(left)
        behind, pointers = "0, 0", []
        if epilogue is not None:
            source = writer.kernels[epilogue.name]
            pointers = [
                "0" if buffer in chain.between else f"(void*)({argument})"
                for buffer, argument in zip(
                    source.parameters, writer.arguments(source), strict=True
                )
            ]
            behind = f"{source.name}, p{at}_{number}"
            writer.lines.append(f"  void* p{at}_{number}[] = {{{', '.join(pointers)}}};")
        numbers = (n, k, right, row, column, start, behind, len(pointers))
        links.append(f"{{{', '.join(map(str, numbers))}}}")
    call, _, target = _gemm_in(chain.links[-1])
    m, between = writer.layouts[call.name].size[0], writer.whole(*chain.between)
    result = writer.pointer(writer.whole(target or call.name))
    places = (m, *sides[0][:2], f"links{at}", writer.pointer(between), result, writer.threads)
    writer.lines.append(f"  const GemmLink links{at}[] = {{{', '.join(links)}}};")
    writer.lines.append(f"  if ({GEMM_NAME}_chain({', '.join(map(str, places))})) {{")
    for step in chain.links:
        call_gemm(writer, *_gemm_in(step))
    writer.lines.append("  }")
    writer.declarations.add(GEMM_CHAIN_DECLARATION)


def call_stack(writer: CallWriter, step: ExternKernel) -> None:
    x, weight = (view for view in step.args if isinstance(view, ViewRef))
    pointers = [writer.pointer(view) for view in (x, weight, writer.whole(step.name))]
    instead = f"rt->call(rt, {writer.extern_number(step)})"
    writer.lines += print_stack(x, weight, pointers, writer.threads, instead)
    writer.declarations.add(GEMM_DECLARATION)


def call_sums(writer: CallWriter, step: ExternKernel) -> None:
    x, dim, *_ = step.args
    assert isinstance(x, ViewRef) and isinstance(dim, int) and step.layout is not None
    views = (x, writer.whole(step.name))
    pointers = [writer.pointer(view, memory_type(view.dtype)) for view in views]
    writer.lines += print_sums(x, step.layout, dim, pointers)


def call_attention(writer: CallWriter, step: ExternKernel) -> None:
    """The library's function; the operator, where that is not there or finds no memory."""
    views: Sequence[Any] = step.args[:5]
    rest: Sequence[Any] = step.args[5:]
    causal, scale, window, cap, nan_rows, fills, _ = rest
    q, k, v, bias, mask = views
    out = writer.whole(step.name)
    assert isinstance(q, ViewRef) and isinstance(k, ViewRef) and isinstance(v, ViewRef)
    if any(x.size[3] != 1 and x.stride[3] != 1 for x in (q, k, v, out)):
        return writer.call_extern(step)
    sizes = (*q.size[:2], k.size[1], q.size[2], *k.size[2:], v.size[3])
    added = [broadcast_steps(x.size, x.stride) if isinstance(x, ViewRef) else (0,) * 4
             for x in (bias, mask)]  # fmt: skip
    strides = [x.stride[:3] for x in (q, k, v, out)]
    facts = facts_of(sizes, strides, added, causal, window, nan_rows, fills)
    name = f"facts{len(writer.externs)}"
    half, half_bias = (isinstance(x, ViewRef) and x.dtype is HALF for x in (q, bias))
    places = [writer.byte(x) if isinstance(x, ViewRef) else "0" for x in (*views, out)]
    values = ", ".join(map(str, (name, int(half_bias), *places, 0, scale, cap, writer.threads)))
    function = attention_name(half)
    call = f"!{function} || {function}({values})"
    instead = f"rt->call(rt, {writer.extern_number(step)})"
    writer.lines.append(f"  static const i64 {name}[] = {{{', '.join(map(str, facts))}}};")
    writer.lines.append(f"  if (({call}) && {instead}) return 1;")
    writer.declarations.add(attention_declaration(half))


def call_convolution(writer: CallWriter, link: ExternKernel | FusedConvolution) -> None:
    given = _convolution(writer, link, "")
    function = CONVOLUTION_NAME
    if given.call.winograd:
        function = WINOGRAD_NAME
    elif given.geometry.is_depthwise():
        function = DEPTHWISE_NAME
    bounds = [] if given.call.winograd else [given.bounds]
    arguments = ("sizes", *given.pointers, *bounds, given.epilogue, given.data)
    text = ", ".join((*arguments, str(writer.threads)))
    writer.lines += ["  {", *given.lines, f"    {function}({text}); }}"]
    writer.declarations.add(CONVOLUTION_DECLARATIONS[function])


def call_convolution_chain(writer: CallWriter, chain: ConvolutionChain) -> None:
    rows = []
    writer.lines.append("  {")
    for n, link in enumerate(chain.links):
        given = _convolution(writer, link, str(n))
        inner = 0 if n + 1 == len(chain.links) else given.inner
        facts = map(str, (given.count, inner, int(given.geometry.is_depthwise())))
        row = (f"sizes{n}", *given.pointers, given.bounds, given.epilogue, given.data, *facts)
        rows.append(f"{{{', '.join(row)}}}")
        writer.lines += given.lines
    writer.lines.append(f"    const ConvolutionStage stages[] = {{{', '.join(rows)}}};")
    writer.lines.append(f"    {CHAIN_NAME}(stages, {len(rows)}, {writer.threads}); }}")
    writer.declarations.add(CONVOLUTION_DECLARATIONS[CHAIN_NAME])


def _convolution(
    writer: CallWriter, link: ExternKernel | FusedConvolution, suffix: str
) -> _Convolution:
    """suffix: of the names of the tables."""
    call = link.call if isinstance(link, FusedConvolution) else link
    geometry = geometry_of(call)
    x, weight, bias = call.args[:3]
    assert isinstance(x, ViewRef) and isinstance(weight, ViewRef) and geometry is not None
    start = writer.pointer(bias) if isinstance(bias, ViewRef) else "0"
    numbers = ", ".join(map(str, geometry.numbers()))
    lines = [f"    static const i64 sizes{suffix}[] = {{{numbers}}};"]
    target, bounds, epilogue, data, count, inner = call.name, "0", "0", "0", 0, 0
    if isinstance(link, FusedConvolution):
        target, ends = link.target, bounds_of(link)
        if ends is not None:
            bounds = f"bounds{suffix}"
            values = ", ".join(literal(end, torch.float32) for end in ends)
            lines.append(f"    static const f32 {bounds}[] = {{{values}}};")
        else:
            source = writer.kernels[link.name]
            epilogue, data, count = source.name, f"at{suffix}", len(source.parameters)
            memory = ", ".join(f"(void*)({text})" for text in writer.arguments(source))
            inner = sum(1 << n for n, own in enumerate(source.parameters) if own == target)
            lines.append(f"    void* {data}[] = {{{memory}}};")
    result = f"(f32*)d[{writer.slot_of[target]}]"
    pointers = (writer.pointer(x), writer.pointer(weight), start, result)
    return _Convolution(
        call, geometry, tuple(lines), pointers, bounds, epilogue, data, count, inner
    )


# What writes the call of a step, by its kind, and of an operator that is ours.
STEPS: Mapping[type, Callable[[CallWriter, Any], None]] = MappingProxyType(
    {
        FusedConvolution: call_convolution,
        ConvolutionChain: call_convolution_chain,
        TemplateKernel: call_template,
        GemmChain: call_gemm_chain,
    }
)
OPERATORS: Mapping[Any, Callable[[CallWriter, Any], None]] = MappingProxyType(
    {STACKS: call_stack, SUMS: call_sums}
)


def own_call(step: Any) -> Callable[[CallWriter, Any], None] | None:
    """What writes the call of a step; None where no function of our own computes it."""
    if not isinstance(step, ExternKernel):
        return STEPS.get(type(step))
    if is_own_convolution(step):
        return call_convolution
    if step.ours:
        return OPERATORS.get(step.target, call_gemm)
    return call_attention if step.target is ATTENTION else None
