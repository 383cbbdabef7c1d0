"""Random tensor programs on the default backend: seeds that once differed, and some more."""

from __future__ import annotations

import pytest
import torch

from dynamo.base.config import config
from tests.fuzz_tensors.__main__ import check
from tests.fuzz_tensors.compare import difference, function_of, taken_ties
from tests.fuzz_tensors.generate import generate
from tests.fuzz_tensors.inputs import make_inputs
from tests.fuzz_tensors.program import Input, Program, Statement
from tests.fuzz_tensors.ties import Shaker
from tests.seeds import some

# What once differed, as it was shrunk: (inputs, statements, outputs).
FOUND: dict[str, tuple[tuple[tuple[str, str, str], ...], str, str]] = {
    "view of a detached output": ((("v0", "float32", ""),), "v1 = v0.data\nv2 = v1.t()", "v1 v2"),
    "loss of mixed dtypes": (
        (("v0", "float32", ""), ("v1", "float64", "")), "v2 = F.huber_loss(v0,v1,reduction='none')", "v2",
    ),
    "members of a transposed tensor": ((("v0", "float32", ""),), "v1 = torch.isin(v0.t(),v0[0])", "v1"),
    "detached in place": ((("v0", "float32", "leaf"),), "v1 = v0.detach_()", ""),
    "inference mode": ((("v0", "float32", ""),), "v1 = torch.neg(v0)", "v1"),
    "complex in place": ((("v0", "complex64", ""),), "v1 = v0.sqrt_()", ""),
    "data in place": ((("v0", "float32", "leaf"),), "v1 = v0.data.mul_(2)", ""),
    "data of a view": ((("v0", "bfloat16", ""),), "v1 = v0.view(-1).data.mul_(2)", ""),
    "strides over gaps": (
        (("v0", "float32", ""),), "v1 = torch.mul(v0,2).flatten()\nv2 = v1[::2].as_strided((2,),(1,),0).add_(1)", "v1 v2",
    ),
    "lazy conj": ((("v0", "complex64", ""),), "v1 = torch.prod(v0).conj().t()", "v1"),
    "bool target": ((("v0", "float32", ""),), "v1 = F.mse_loss(v0,v0>0)", "v1"),
    "fill of a number": ((("v0", "int64", ""),), "v1 = v0.sum().index_fill(0,torch.tensor([0,-1]),3)", "v1"),
    "flip of a number": ((("v0", "float32", ""),), "v1 = v0.sum().flip(0)", "v1"),
    "add to a number": ((("v0", "float32", ""),), "v1 = v0.sum().index_add(0,torch.tensor([0]),torch.ones(()))", "v1"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with config.patch(cache_dir=str(tmp_path_factory.getbasetemp() / "cache")):
        yield


@pytest.mark.parametrize("name", FOUND)
def test_found_program_equals_eager(name: str) -> None:
    specs, text, outputs = FOUND[name]
    inputs = tuple(Input(n, ("a", 2), dtype, "plain", "normal", grad) for n, dtype, grad in specs)
    statements = tuple(Statement((line.split(" = ")[0],), line.split(" = ")[1]) for line in text.split("\n"))
    within = (0, 1, "torch.inference_mode()") if name == "inference mode" else (0, 0, "")
    program = Program(0, inputs, statements, tuple(outputs.split()), "contextlib.nullcontext()", within, None, ((3, 2, 2),))
    assert check(program, "inductor") == ""


# Parts of odd sizes, a dropout of nothing, a view of a detached output, a half precision batch norm.
@pytest.mark.parametrize("seed", [*some(range(8), 3), 4480, 2204, 4448, 51467])
def test_program_equals_eager(seed: int) -> None:
    assert check(generate(seed), "inductor") == ""


# Gradients of a transform around which there are none, draws for an unused result.
@pytest.mark.parametrize("seed", [*some(range(98000000, 98000004), 2), 98000088, 98200074])
def test_program_of_nested_calls_equals_eager(seed: int) -> None:
    assert check(generate(seed, "nested"), "eager") == ""


# Parts that make up a whole only as eager cut it, the first of equal elements, a strided write.
@pytest.mark.parametrize("seed", [140010060, 140010093, 140012338, 140013082])
def test_program_of_parts_equals_eager(seed: int) -> None:
    assert check(generate(seed, "windows"), "inductor") == ""


# Numbers that are copied, a write through a view that names elements twice.
@pytest.mark.parametrize("seed", [7000028, 7000058, 7000103, 7300166, *some(range(7400000, 7400004), 2)])
def test_program_of_writes_equals_eager(seed: int) -> None:
    assert check(generate(seed, "writes"), "inductor") == ""


def wrong_value(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 1.001,)



@pytest.mark.parametrize(("text", "wrong", "what"), [
    ("v1 = torch.mul(v0,1)", wrong_value, "elements differ"),
    ("v1 = v0.view(-1)", lambda x: (x.reshape(-1).clone(),), "shares storage"),
    ("v1 = v0.t()", lambda x: (x.t().double(),), "dtype"),
    ("v1 = v0.clone()", lambda x: (x.t().contiguous().t(),), "strides"),
    ("v1 = v0.add_(1)", lambda x: (x + 1,), "was written"),
    ("v1 = v0.exp()", lambda x: (x.detach().exp(),), "requires_grad"),
    ("v1 = torch.fail(v0)", wrong_value, "exception"),
])  # fmt: skip
def test_differences_are_found(text: str, wrong: object, what: str) -> None:
    grad = "computed" if "exp" in text else ""
    inputs = (Input("v0", ("a", 3), "float32", "plain", "normal", grad),)
    statements = (Statement(("v1",), text.split(" = ")[1]),)
    program = Program(0, inputs, statements, ("v1",), "contextlib.nullcontext()", (0, 0, ""), None, ((4, 2, 2),))
    assert what in difference(program, lambda f: wrong)  # type: ignore[arg-type, return-value]


def test_moved_inputs_keep_their_dtype() -> None:
    inputs = (Input("v0", ("a", 3), "float16", "plain", "normal", ""),)
    program = Program(0, inputs, (), (), "contextlib.nullcontext()", (0, 0, ""), None, ((40, 2, 2),))
    assert make_inputs(program, 0, moved=Shaker(0).moved).values[0].dtype is torch.float16


REST = "(v0/3*3-v0)"  # what rounding left


@pytest.mark.parametrize(("text", "other", "kind"), [
    ("v0.argmax(-1)", "(v0.argmax(-1)+1)%3", ""),
    ("v0.long().float().argmax(-1)", "2-v0.long().float().flip(-1).argmax(-1)", ""),  # another of equal values
    ("v0.cos().abs().ge(2).argmax(-1)", "v0.argmax(-1)*0+2", ""),
    ("v0.sign().argmax(-1)", "2-v0.sign().flip(-1).argmax(-1)", ""),
    ("(v0.sign()*1.3).cos().argmax(-1)", "2-(v0.sign()*1.3).cos().flip(-1).argmax(-1)", ""),
    (f"{REST}.argmax(-1)", "(v0.double()/3*3-v0).argmax(-1)", "tie"),
    (f"torch.cat([{REST}.argmax(-1),v0.argmax(-1)])", f"torch.cat([{REST}.argmax(-1),(v0.argmax(-1)+1)%3])", ""),
    (f"torch.cat([{REST}*1e6,v0*1e-3])", f"torch.cat([{REST}*1e6,v0*1.002e-3])", ""),
    (f"({REST}>0).nonzero().shape[0]", "v0.numel()", "tie"),
    ("(v0>0).nonzero().shape[0]", "v0.numel()", ""),
    ("torch.atan2(v0.abs(),v0.abs()).sub(0.7853981).argmax(-1)", "v0.argmax(-1)*0+1", ""),
    ("v0.bfloat16().log_softmax(-1).logsumexp(-1)", "v0.bfloat16().log_softmax(-1).logsumexp(-1)+0.004", "tie"),
    ("v0.bfloat16().log_softmax(-1).logsumexp(-1)", "v0.bfloat16().log_softmax(-1).logsumexp(-1)+0.2", ""),
    ("torch.round(v0*9)", "torch.round(v0*9)+1", ""),
    ("(v0*0.).signbit()", "(v0*0.).signbit().logical_not()", "tie"),  # a zero of either sign
    ("v0.detach().sigmoid().clone().data.div_(torch.tensor(0.1))", "v0.sigmoid()*10.001", ""),
])  # fmt: skip
def test_ties_are_told_apart_from_wrong_decisions(text: str, other: str, kind: str) -> None:
    inputs = (Input("v0", ("a", 3), "float32", "plain", "normal", ""),)
    program = Program(0, inputs, (Statement(("v1",), text),), ("v1",), "contextlib.nullcontext()", (0, 0, ""), None, ((40, 2, 2),))
    taken_ties()
    found = difference(program, lambda f: function_of(f"def f(v0): return ({other}, )"))
    assert bool(found) == (not kind)
    assert [tie.split(":")[0] for tie in taken_ties().values()] == [kind] * bool(kind)


@pytest.mark.parametrize("text", ["v0.hsplit(2)[0]", "v0[1:]", "v0.t()", "v0.unsqueeze(0)"])
def test_gradients_of_views_of_an_expanded_leaf(text: str) -> None:
    inputs = (Input("v0", ("a", 4), "float32", "expanded", "normal", "leaf"),)
    program = Program(0, inputs, (Statement(("v1",), text),), ("v1",), "contextlib.nullcontext()", (0, 0, ""), None, ((3, 2, 2),))
    assert check(program, "inductor") == ""


def test_a_view_made_without_gradients_has_no_history() -> None:
    inputs = (Input("v0", ("a", 4), "float32", "plain", "normal", "computed"),)
    statements = (Statement(("v1",), "v0[::2]"),)
    program = Program(0, inputs, statements, ("v1",), "contextlib.nullcontext()", (0, 1, "torch.no_grad()"), None, ((3, 2, 2),))
    assert check(program, "inductor") == ""
