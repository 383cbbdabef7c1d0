"""More rows for random tensor programs: writes through views, into what other views show, into new tensors piece by piece.

The holes are those of `operations`. The functions here are in the programs' scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.fuzz_tensors.operations import UNARY

Function = Callable[..., Any]


def put(x: Tensor, at: Any, value: Any) -> Tensor:
    x[at] = value
    return x


def plus(x: Tensor, at: Any, value: Any) -> Tensor:
    x[at] += value
    return x


def times(x: Tensor, at: Any, value: Any) -> Tensor:
    x[at] *= value
    return x[at]


def read_between(x: Tensor, at: Any, value: Any) -> tuple[Tensor, Tensor]:
    """What a view shows before a write, as a value, and the view after it."""
    view = x[at]
    old = view * 2
    view.copy_(value)
    return old, view


def without_history(function: Function, x: Tensor, *args: Any) -> Any:
    with torch.no_grad():
        return function(x, *args)


def rows(function: Function, x: Tensor, out: Tensor, count: int) -> Tensor:
    """A new tensor, whose parts are written one after the other."""
    for k in range(min(count, len(out))):
        out[k] = function(x, k)
    return out


def columns(function: Function, x: Tensor, out: Tensor, count: int) -> Tensor:
    for k in range(min(count, out.shape[-1])):
        out[..., k] = function(x, k)
    return out


def scanned(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Each step reads the one before, out of the tensor or not."""
    state = x[0] * 1
    for k in range(min(len(x), 5)):
        state = state * 0.5 + x[k]
        out[k] = state
        if k:
            out[k] += out[k - 1]
    return out, state


def cached(x: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """A cache made inside, filled from both ends, read in between."""
    cache = x.new_zeros(length, *x.shape)
    sums = []
    for k in range(length):
        cache[k] = x + k
        sums.append(cache[: k + 1].sum(0))
        cache[-1].mul_(2)
    return cache, sums[-1] + sums[0]


HELPERS = (put, plus, times, read_between, without_history, rows, columns, scanned, cached)

ALIASES = """
x x x.detach() x[1:] x[:-1] x.t() x.mT x[0] x[-1] x[...,0] x[...,1:] x[::2] x[1::2] x.view(-1) x.view(-1)[1:] x.unsqueeze(0) x.expand(2,*x.shape)
x.as_strided((2,2),(1,1)) x.as_strided((2,),(1,),1) x.as_strided((2,2),(2,1)) x.diagonal() x[None] x.unbind(0)[0] x.chunk(2)[1] x.split(1,-1)[0] x.view(-1)[:2]
""".split()

VIEWS = """
{x}[0] {x}[-1] {x}[1:] {x}[:-1] {x}[::2] {x}[1::2] {x}[...,0] {x}[...,1:] {x}[...,::2] {x}[{p}:] {x}[:,None] {x}.t() {x}.mT {x}.view(-1) {x}.view(-1)[1:] {x}.flatten() {x}.reshape(-1) {x}.reshape(2,-1) {x}.transpose({d},{e})
{x}.select({d},0) {x}.select({d},-1) {x}.narrow({d},0,1) {x}.narrow({d},1,1) {x}.diagonal() {x}.diagonal(1) {x}.unsqueeze({d}) {x}.squeeze() {x}.expand(2,*{x}.shape) {x}.expand_as({y}) {x}.as_strided((2,2),(1,1)) {x}.as_strided((2,2),(2,1))
{x}.as_strided((2,),(1,),1) {x}.as_strided((3,),(0,)) {x}.unfold({d},2,1) {x}.unfold({d},2,2) {x}.unfold({d},1,1) {x}.chunk(2,{d})[1] {x}.split(1,{d})[-1] {x}.unbind({d})[0] {x}.unbind({d})[-1] {x}.tensor_split(2,{d})[0] {x}.detach() {x}.data {x}.alias()
{x}.movedim({d},{e}) {x}.swapaxes({d},{e})[1:] {x}[None][0] {x}[1:][:1] {x}.t()[1:] {x}.view(-1)[::2] {x}[...,None].expand(*{x}.shape,2) {x}.contiguous() {x}.clone() {x}*1 {x}.unflatten({d},(1,-1)) {x}.permute(*range({x}.dim())[::-1]) {x}.view_as({y}) {x}[0:0]
""".split()

WRITTEN = """
put({x}, 0, {s})
put({x}, -1, {y})
put({x}, slice(1, None), {x}[:-1])
put({x}, slice(None, -1), {x}[1:])
put({x}, slice(1, None), {x}[:-1].clone())
put({x}, slice(None, None, 2), {s})
put({x}, slice(1, None), {y}[:1])
put({x}, (..., 0), {y}.sum())
put({x}, (..., slice(1, None)), {x}[..., :-1] * 2)
put({x}, (..., -1), {x}[..., 0])
put({x}, slice(0, 0), {s})
put({x}, 0, {x}[-1])
put({x}, ..., {y})
put({x}, {x} > 0, {s})
put({x}, {b}, {s})
put({x}, {x} > 0, {x}[{x} > 0] * 2)
put({x}, {x}.isnan(), 0)
put({x}, torch.tensor([0, -1]), {s})
put({x}, torch.tensor([1, 0]), {x}[:2].clone())
put({x}, torch.tensor([0, 0, 1]), {y})
put({x}, (..., torch.tensor([0, -1])), {y}.sum())
put({x}, (torch.tensor([0, 1]), torch.tensor([0, 0])), {s})
put({x}, {i} % {p}, {s})
put({x}, torch.tensor(1), {y})
put({x}, torch.tensor(-1), {s})
put({x}, torch.tensor(0, dtype=torch.int32), {x}[-1])
put({x}, {x}.argmax({d}), {s})
put({x}, (slice(None), torch.tensor(0)), {s})
put({x}, torch.arange(2), {x}[:2].flip(0))
put({x}, {i}.flatten()[0] % 2, {y})
plus({x}, 0, {s})
plus({x}, -1, {y})
plus({x}, slice(1, None), {x}[:-1])
plus({x}, slice(None, None, 2), {s})
plus({x}, (..., 0), {y}.sum())
plus({x}, torch.tensor([0, 0, 1]), {s})
plus({x}, torch.tensor([1, 0]), {x}[:2])
plus({x}, torch.tensor(1), {s})
plus({x}, torch.tensor(-1), {x}[0])
plus({x}, {i}.flatten()[0] % 2, {s})
plus({x}, {x} > 0, {s})
plus({x}, {b}, 1)
times({x}, 0, {s})
times({x}, slice(1, None), {y})
times({x}, (..., slice(None, 1)), {y}[..., :1])
times({x}, torch.tensor([0, -1]), {s})
{x}.add_({y})
{x}.add_({s})
{x}.mul_({x})
{x}.mul_({s})
{x}.copy_({y})
{x}.copy_({x}.flip(0))
{x}.copy_({x}.t())
{x}.fill_({s})
{x}.fill_({x}.sum())
{x}.zero_()
{x}[0].add_({y})
{x}[1:].mul_({s})
{x}[:-1].sub_({x}[1:])
{x}[1:].copy_({x}[:-1])
{x}.t()[0].add_({s})
{x}.t().copy_({x})
{x}.view(-1)[1:].neg_()
{x}.view(-1)[1:].add_({x}.view(-1)[:-1])
{x}.diagonal().add_({s})
{x}.diagonal().copy_({x}[0])
{x}.select({d},0).fill_({s})
{x}.narrow({d},0,1).copy_({x}.narrow({d},1,1))
{x}.unbind({d})[-1].zero_()
{x}.chunk(2,{d})[0].mul_({s})
{x}.unsqueeze(0)[0].sub_({s})
{x}.expand(1,*{x}.shape).add_(1)
{x}.as_strided((2,),(1,),1).add_({s})
{x}.as_strided((2,2),(2,1)).mul_({s})
{x}.index_put_((torch.tensor([0, 0, 1]),), {x}[:1] * 2, accumulate=True)
{x}.index_put_((torch.tensor([0, -1]),), {y}.clone())
{x}.index_put_((torch.tensor([[0], [1]]), torch.tensor([0, -1])), torch.tensor({s}).to({x}.dtype))
{x}.index_add_({d}, torch.tensor([0, 0]), {x}.narrow({d}, 0, 2).clone())
{x}.index_copy_({d}, torch.tensor([1, 0]), {x}.narrow({d}, 0, 2).clone())
{x}.index_fill_({d}, torch.tensor([0, -1]), {s})
{x}.scatter_({d}, {x}.argmax({d}, keepdim=True), {s})
{x}.scatter_({d}, {x}.argsort({d}), {x}.clone())
{x}.scatter_({d}, {x}.argsort({d}), {y})
{x}.scatter_add_({d}, {x}.argmin({d}, keepdim=True), {x})
{x}.scatter_reduce_({d}, {x}.argmax({d}, keepdim=True), {x} * 3, 'amax')
{x}.masked_fill_({x} > 0, {s})
{x}.masked_scatter_({x} > 0, {x} + 1)
{x}.put_(torch.tensor([0, -1]), {x}.view(-1)[:2].clone())
{x}.clamp_(min=0)
{x}.lerp_({x}.sin(), 0.3)
{x}.cumsum_({d})
{x}.tril_()
torch.add({x}, {y}, out={x})
torch.mul({x}[1:], {x}[:-1], out={x}[1:])
torch.sin({f}, out={f}[...])
torch.cat([{x}[1:], {x}[:1]], out={x}.clone())
without_history(put, {x}, 0, {s})
without_history(put, {x}, slice(1, None), {x}[:-1])
without_history(plus, {x}, torch.tensor([0, -1]), {s})
without_history(lambda t: t.mul_(2), {x})
without_history(lambda t: t[0].copy_(t[1]), {x})
without_history(lambda t, u: t.copy_(u), {x}, {y})
{x}.data.mul_({s})
{x}.detach()[0].add_(1)
""".strip().splitlines()

MADE = """
rows(lambda t, k: t[k] * 2, {x}, torch.zeros_like({x}), 5)
rows(lambda t, k: t[k], {x}, {x}.new_empty({x}.shape).fill_({s}), 3)
rows(lambda t, k: t.sum() + k, {x}, torch.full((4,), {s}, dtype={t}), 4)
rows(lambda t, k: t[k].flip(0), {x}, {x} * 1, 3)
rows(lambda t, k: t[-1 - k], {x}, {x}.clone(), 6)
rows(lambda t, k: t[k] + {y}.sum(), {x}, torch.ones({x}.shape), 2)
rows(lambda t, k: {x}[k], {x}, {x}, 3)
columns(lambda t, k: t[..., k] * k, {x}, torch.zeros_like({x}), 4)
columns(lambda t, k: t.sum(-1), {x}, torch.empty({x}.shape).zero_(), 9)
columns(lambda t, k: t[..., 0], {x}, {x}.mT.clone().mT, 3)
cached({x}, 3)[0]
cached({x}, 2)[1]
put(torch.zeros_like({x}), {x} > 0, {s})
put(torch.zeros_like({x}), slice(1, None), {x}[:-1])
put({x}.new_zeros({x}.shape[0] + 2, *{x}.shape[1:]), slice(1, -1), {x})
plus({x} * 2, torch.tensor([0, 0]), {s})
plus({x}.clone(), 0, {x}[-1])
torch.zeros_like({x}).scatter_({d}, {x}.argmax({d}, keepdim=True), 1)
torch.zeros_like({x}).index_put_((torch.tensor([0, 1, 0]),), {x}[:1], accumulate=True)
put(torch.zeros({p}, 4), torch.arange({p}), 1.0).t()
torch.empty_like({x}).copy_({y})
torch.eye({p}).index_copy_(0, torch.tensor([0]), torch.ones(1, {p}))
""".strip().splitlines()

PAIRS = """
read_between({x}, 0, {x}[-1])
read_between({x}, 0, {s})
read_between({x}, slice(1, None), {x}[:-1])
read_between({x}, (..., 0), {y}.sum())
read_between({x} + 1, 0, {y})
scanned({x}, torch.zeros_like({x}))
scanned({x}, {x}.new_empty({x}.shape).zero_())
{x}.unbind(0)[:2]
{x}.chunk(2, {d})
{x}.split([1, {x}.shape[{d}] - 1], {d})
cached({x}, 3)
""".strip().splitlines()

COMPUTED = """
({x}*2) ({x}+{y}) ({x}*{y}) ({x}-{x}.mean({d},dtype=torch.float32)) {x}.sum() {x}.sum({d}) {x}.cumsum({d}) {f}.sin() {f}.exp() {f}.softmax({d}) {x}.flip({d}) {x}.clone() ({x}>0) {x}.argmax({d}) {x}.amax({d}) torch.cat([{x},{y}],{d}) torch.stack([{x},{x}])
({f}@{f}.mT) {x}.to({t}) torch.where({x}>0,{x},{y}) ({f}*{f}) {f}.sigmoid() {f}.tanh() {x}.sort({d})[0] {x}[{x}.argsort(0)] {x}[torch.tensor([0,-1])] {x}[torch.tensor(0)] {x}[{i}%{p}]
""".split()

# As `operations.TABLE`.
WRITES = (
    (UNARY, 1, 1), (VIEWS, 6, 1), (WRITTEN, 8, 1), (MADE, 3, 1), (PAIRS, 2, 2), (COMPUTED, 4, 1),
)  # fmt: skip
