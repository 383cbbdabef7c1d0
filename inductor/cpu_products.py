"""Which kernels run inside of our own matrix products on the CPU, part by part of the result.

In: a loop graph and its schedule, where products of our own are library calls. Out: the same
schedule where kernels behind them are `TemplateKernel`s: what the product has written is still in
the cache when they read it, and no further parallel region begins.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor.ir.graph import LoopGraph
from inductor.scheduler.products import (
    Candidate,
    choose_disjoint,
    epilogue_over_rows,
    find_candidates,
    with_templates,
)
from inductor.scheduler.schedule import Kernel, Product, Schedule, TemplateKernel
from inductor.scheduler.verify import verify_steps

MATRICES = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def attach_epilogues(graph: LoopGraph, schedule: Schedule) -> Schedule:
    """The schedule with each kernel attached that can follow a product of our own."""
    if graph.device.type != "cpu":
        return schedule
    found = [each for each in find_candidates(graph, schedule) if _is_ours(each)]
    chosen = choose_disjoint(found, _wanted)
    if not chosen:
        return schedule
    made = with_templates(schedule, chosen)
    verify_steps(graph, made.steps)
    return made


def _is_ours(candidate: Candidate) -> bool:
    calls = [product.call for product in candidate.template.products()]
    return all(call.ours and call.target in MATRICES for call in calls)


def _wanted(candidate: Candidate) -> TemplateKernel | None:
    """The template, if it is one product of known sizes with a kernel that walks along its rows;
    the result itself is stored, too: it is what the kernel reads."""
    template = candidate.template
    products = template.products()
    if len(products) != 1 or len(template.epilogues()) != 1:
        return None
    (product,), (kernel,) = products, template.epilogues()
    if any(type(size) is not int for size in (product.m, product.n, product.k)):
        return None
    if product.batch != 1 or not _walks_along_rows(kernel, product):
        return None
    (part,) = template.parts
    return replace(template, parts=(replace(part, kept=(product.name,)),))


def _walks_along_rows(kernel: Kernel, product: Product) -> bool:
    """Whether neighbours of a row are neighbours, or one and the same, in all that it touches."""
    (stage,) = epilogue_over_rows(kernel, product).stages
    near = {"load": (0, 1), "store": (1,)}
    return all(
        op.index is not None and op.index.stride_of("i1") in near[op.name]
        for op in stage.ops
        if op.name in near
    )
