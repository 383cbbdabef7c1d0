"""Random functions out of statements about which object a tensor is and which memory it has, with breaks between, and the calls of them.

A statement that raises on the first call's arguments in eager is left out, so that most programs run to their end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

# Expressions of a new tensor. {x}, {y}: names of tensors.
VIEWS = (
    "{x}.t()", "{x}.view(-1)", "{x}.view(4, 4)", "{x}.reshape(4, 4)", "{x}.reshape(2, 8)", "{x}[1]", "{x}[:2]", "{x}[:, 1:3]", "{x}[...]", "{x}[None]",
    "{x}.detach()", "{x}.data", "{x}.T", "{x}.unsqueeze(0)", "{x}.squeeze()", "{x}.narrow(0, 1, 2)", "{x}.select(-1, 0)", "{x}.diagonal()",
    "{x}.contiguous()", "{x}.view_as({x})", "{x}.expand_as({y})", "{x}.expand(2, -1, -1)", "{x}.flatten()", "{x}.chunk(2)[1]", "{x}.split(2)[0]",
    "{x}.unbind(0)[1]", "{x}.to(torch.float32)", "{x}.float()", "{x}.cpu()", "{x}.type_as({y})", "torch.positive({x})", "{x}.resolve_conj()",
    "{x}.real", "{x}.ravel()", "torch.broadcast_tensors({x}, {y})[0]", "torch.atleast_2d({x})", "{x}.unfold(0, 2, 1)", "{x}.as_strided((2, 2), (4, 1))",
    "nn.Parameter({x}.detach())", "nn.Parameter({x}.detach(), requires_grad=False)", "{x}.detach().requires_grad_()", "F.dropout({x}, 0.5, False)",
    "nn.Identity()({x})", "{x}.view(torch.int32).view(torch.float32)", "torch.ops.aten.alias({x})", "{x}.swapaxes(0, -1)", "{x}.movedim(0, -1)",
    "{x} if {x}.is_leaf else {y}", "({x}, {y})[{x} is {y}]", "torch.no_grad()(lambda: {x}[1:])()", "{x}.requires_grad_({x}.is_leaf)", "copy.copy({x})",
    "torch.as_tensor({x})", "torch.as_tensor({x}, dtype=torch.float32)", "{x}.unflatten(0, (2, 2))", "{x}.type(torch.float32)", "{x}.reshape_as({x})", "{x}.to({y})",
    "{x}.untyped_storage() and {x}", "torch.utils.dlpack.from_dlpack({x}.detach())", "{x}.mT", "{x}.permute(*range({x}.dim()))",
)  # fmt: skip
MADE = (
    "{x} * 2", "{x} + {y}", "{x}.sin()", "{x}.clone()", "{x}.sum()", "torch.cat([{x}, {y}])", "torch.stack([{x}, {x}])", "torch.where({x} > 0, {x}, {y})",
    "torch.zeros(4, 4)", "torch.empty_like({x}).fill_(2)", "{x}.new_ones(4, 4)", "{x}.max(0).values", "{x}.clone().t()", "({x} * 3)[1:]", "{x}.relu()",
    "torch.ones(4, 4, requires_grad=True)", "{x} @ {y}", "torch.tensor([1.0, 2.0, 3.0, 4.0])", "torch.zeros(4).expand(4, 4)",
    "{x}.detach().clone().requires_grad_() * 2", "{x}.masked_fill({x} > 0, 0.0)", "torch.empty(0)", "torch.autograd.grad(({x} * {x}).sum(), {x})[0]", "{x}.t().contiguous()",
)  # fmt: skip
KEPT = (
    "KEPT[-1]", "KEPT[0]", "TABLE['k']", "box.t", "LAST", "box.items[-1]", "{x}.grad", "{x}._base", "{x}.tag", "net.w", "net.b", "net.state", "next(net.parameters())",
    "dict(net.named_buffers())['b']", "vars(box).get('t', {x})", "getattr(box, 't', {y})", "weakref.ref({x})()", "box.pair[0]",
)  # fmt: skip
WRITES = (
    "{x}.add_(1)", "{x}.mul_({y})", "{x}[0] = 5", "{x}[:, 1] = {y}[0]", "{x}.copy_({y})", "{x}.zero_()", "{x} += 1", "{x} *= {y}", "{x}.data.add_(1)",
    "{x}.detach().mul_(2)", "{x}.data = {y}", "{x}.data = {x}.data.clone()", "{x}.t_()", "{x}.transpose_(0, 1)", "{x}.squeeze_()", "{x}.unsqueeze_(0)",
    "{x}.set_({y}.detach())", "torch.add({y}, 1, out={x})", "torch.sin({x}, out={x})", "torch.cat([{y}, {y}], out={x})", "F.relu({x}, inplace=True)", "{x}.requires_grad_()",
    "{x}.detach_()", "{x}.retain_grad()", "{x}.grad_fn, {x}.register_hook(lambda g: g * 2)", "{x}.grad_fn, {x}.register_hook(lambda g: LOG.append(float(g.sum())))", "{x}.grad = None",
    "{x}.grad = {y}.detach()", "{x}.grad.add_(1)", "{x}.tag = {y}", "del {x}.tag", "{x}.masked_fill_({x} > 0, 0.5)", "torch._foreach_add_([{x}, {y}], 1)",
    "with torch.no_grad(): {x}.add_(1)", "{x}.sum().backward()", "{x}.resize_(2, 2)", "{x}.untyped_storage().fill_(0)", "{x}.sub_({x})", "{x}[{x} > 0] = 0",
    "{x}.fill_({y}.sum())", "{x}.view(-1)[:2].mul_(3)", "{x}.requires_grad = False", "{x}.requires_grad = True", "with torch.no_grad(): {x}.copy_({y})", "{x}.data.zero_()",
    "{x}.index_fill_(0, torch.tensor([0]), 9)", "{x}.unbind(0)[0].add_(1)", "torch.autograd.backward({x}.sum(), retain_graph=True)", "{x}.swapaxes_(0, 1)", "{x}.as_strided_((2, 2), (1, 2))",
    "net.w.data.mul_(0.5)", "net.w.grad = None", "net.zero_grad()", "net.b.add_(1)", "net.b = {x}.detach()", "net.state = {x}", "net.w = nn.Parameter({x}.detach())", "net.w.data = {x}.detach()",
)  # fmt: skip
STORES = (
    "KEPT.append({x})", "TABLE['k'] = {x}", "box.t = {x}", "box.items.append({x})", "KEPT[0] = {x}", "box.pair = ({x}, {y})", "box.items = [{x}, *box.items]",
    "KEPT.clear()", "box.items[:] = [{x}]", "KEPT.extend([{x}, {x}])", "del box.t", "TABLE.setdefault('k', {x})", "KEPT.insert(0, {x})", "TABLE.update(k={x}, j={y})",
    "{x}, {y} = {y}, {x}", "box.items.reverse()",
)  # fmt: skip
FACTS = (
    "{x} is {y}", "{x}._base is {y}", "{x}._version", "{x}.data_ptr() == {y}.data_ptr()", "{x}.stride()", "{x}.storage_offset()", "{x}.is_leaf", "{x}.requires_grad",
    "{x}.grad is None", "{x}.grad_fn is None", "{x}._is_view()", "{x}.is_contiguous()", "any({x} is k for k in KEPT)", "id({x}) == id({y})", "{y} in {{{x}: 1}}", "{x}.is_set_to({y})",
    "hasattr({x}, 'tag')", "{x}.untyped_storage().data_ptr() == {y}.untyped_storage().data_ptr()", "getattr(box, 't', None) is {x}", "{x}.grad is {y}.grad", "type({x}).__name__",
    "len(KEPT)", "{x}.retains_grad", "{x}.output_nr", "len({{{x}, {y}, {x}.data}})", "{x}.grad is {y}", "LAST is {x}", "{x}.data is {x}", "{x}.untyped_storage().nbytes()", "KEPT.index({x})",
    "weakref.ref({x})() is {x}", "{x}.is_inference()", "{x} is {x}.contiguous()", "{x} is {x}.to({y}.dtype)", "net.w is {x}", "isinstance({x}, nn.Parameter)", "{x}.equal({y})", "{x}.tag is {y}", "{x}.shape == {y}.shape",
    "[k is {x} for k in box.items]", "[{x}, {y}].count({x})", "{x}.grad_fn is {y}.grad_fn", "{x}._backward_hooks is None",
)  # fmt: skip
RESULTS = ("{x}", "{x}, {x}", "[{x}, {y}]", "{{'r': {x}, 's': [{y}]}}", "a", "b", "{x}.t()", "{x}[1:]", "KEPT[-1]", "box", "{x} * 1", "{x}.detach()")

# What the caller does before a call; `outs`: the tensors of the last result.
CHANGES = (
    "for t in outs: t.data.add_(1)", "for t in outs:\n    with torch.no_grad(): t.mul_(2)", "for k in KEPT: k.data.fill_(3)", "box.t = outs[0]", "KEPT[:] = outs", "KEPT.clear()", "box.items[:] = outs",
    "net.zero_grad()", "net.w.data = torch.randn(4, 4)", "net.w.data.add_(1)", "net.b = torch.randn(4, 4)", "net.b = net.w.detach()", "net.w.requires_grad_(False)", "net.w.requires_grad_()",
    "outs[0].tag = 1", "for t in outs: t.grad = None", "outs[0].requires_grad_()", "net.w = nn.Parameter(torch.randn(4, 4))", "KEPT.append(net.w)", "LAST = torch.ones(4, 4)", "outs[0].sum().backward()",
    "outs[-1].resize_(0)", "outs[0].t_()", "box.t = net.w", "LAST = net.b", "KEPT.append(a)", "box.t = b",
)  # fmt: skip
# How the arguments `a` and `b` of a call are made; `fresh()` is a new tensor of random values, `a` and `b` are those of the last call.
MAKINGS = (
    "a, b = fresh(), fresh()", "a, b = fresh(), fresh()", "a = b = fresh()", "a = fresh(); b = a.view(4, 4)", "a = fresh(); b = a.t()", "base = torch.randn(8, 4); a, b = base[:4], base[2:6]",
    "a = fresh().requires_grad_(); b = fresh()", "a = fresh().requires_grad_(); b = a", "a = net.w; b = fresh()", "a = net.w; b = net.w.detach()", "a, b = net.w, net.b", "a = fresh(); b = net.b",
    "a = fresh().requires_grad_() * 2; b = a.detach()", "base = fresh().requires_grad_() * 2; a, b = base[:], base.t()", "a, b = b, a", "a, b = outs[0], fresh()", "a = fresh(); b = outs[-1]", "a = outs[0]; b = outs[0]",
    "a = KEPT[-1]; b = fresh()", "a = fresh(); b = box.t", "a, b = fresh().t(), fresh()", "base = torch.randn(8, 8); a, b = base[::2, ::2], base[:4, :4]", "a, b = torch.randn(1, 4).expand(4, 4), fresh()",
    "a = fresh(); b = a.data; a.grad = b", "a, b = nn.Parameter(fresh()), nn.Parameter(fresh())", "a = nn.Parameter(fresh()); b = a", "a, b = torch.randn(17)[1:].view(4, 4), fresh()", "pass", "a = fresh(); b = KEPT[0]",
    "a = nn.Parameter(fresh()); b = nn.Parameter(a.data)", "a, b = LAST, fresh()", "a = b = LAST",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    making: str
    changes: tuple[str, ...] = ()
    learns: bool = False


@dataclass(frozen=True)
class Program:
    lines: tuple[str, ...]
    calls: tuple[Call, ...]

    def source(self) -> str:
        body = "".join(f"    {line}\n" for line in (*self.lines,))
        return f"def program(a, b, net, box):\n    global LAST\n    facts = []\n{body}"

    def __str__(self) -> str:
        calls = (f"{'; '.join((*call.changes, call.making))}{'  # backward' * call.learns}" for call in self.calls)
        return "\n".join([self.source(), *calls])


def filled(rnd: random.Random, text: str, names: list[str]) -> str:
    return text.format(x=rnd.choice(names[-4:]), y=rnd.choice(names))


def statement(rnd: random.Random, names: list[str], n: int) -> tuple[str, str]:
    """A line, and the name that it defines or nothing."""
    kind = rnd.random()
    if kind < 0.45:
        table = rnd.choice([VIEWS, VIEWS, MADE, KEPT])
        return f"v{n} = {filled(rnd, rnd.choice(table), names)}", f"v{n}"
    if kind < 0.65:
        return filled(rnd, rnd.choice(WRITES), names), ""
    if kind < 0.75:
        return filled(rnd, rnd.choice((*STORES, "LAST = {x}")), names), ""
    if kind < 0.88:
        return f"facts.append({filled(rnd, rnd.choice(FACTS), names)})", ""
    if kind < 0.92:
        return filled(rnd, f"if {rnd.choice(FACTS)}: {rnd.choice(WRITES[:20])}", names), ""
    if kind < 0.95:
        return f"del {rnd.choice(names)}", ""
    return "dynamo.graph_break()", ""


def result(rnd: random.Random, names: list[str]) -> str:
    parts = ", ".join(filled(rnd, rnd.choice(RESULTS), names) for _ in range(rnd.choice([1, 1, 2, 3])))
    return f"return {parts}, facts"


def calls(rnd: random.Random) -> tuple[Call, ...]:
    makings = [MAKINGS[0], *rnd.choices(MAKINGS, k=rnd.choice([1, 2, 4]))]
    found = [Call(rnd.choice(MAKINGS[:14]), (), rnd.random() < 0.6)]
    for _ in range(4):
        found.append(Call(rnd.choice(makings), tuple(rnd.sample(CHANGES, rnd.choice([0, 0, 1, 2]))), rnd.random() < 0.6))
    return tuple(found)


def smaller(program: Program) -> list[Program]:
    """The same with one thing less."""
    found = [Program(program.lines, (*program.calls[:n], *program.calls[n + 1 :])) for n in range(len(program.calls))]
    found += [Program((*program.lines[:n], *program.lines[n + 1 :]), program.calls) for n in reversed(range(len(program.lines)))]
    for n, call in enumerate(program.calls):
        plain = [Call(call.making, (*call.changes[:k], *call.changes[k + 1 :]), call.learns) for k in range(len(call.changes))]
        plain += [Call(MAKINGS[0], call.changes, call.learns), Call(call.making, call.changes)]
        found += [Program(program.lines, (*program.calls[:n], p, *program.calls[n + 1 :])) for p in plain if p != call]
    return [p for p in found if p.calls and p.lines]
