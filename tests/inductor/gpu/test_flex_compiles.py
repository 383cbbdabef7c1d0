"""Kernels of flex attention go through Triton's compiler for a GPU that need not be here."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed here")

from interpreted_flex import CASES, captured  # noqa: E402
from test_triton_compiles import POINTERS  # noqa: E402

from dynamo.graph_operators.flex_calls import TABLES  # noqa: E402
from inductor.kernels.gpu.attention.flex_kernels import kernel_text  # noqa: E402
from inductor.kernels.gpu.attention.flex_program import program_of  # noqa: E402
from inductor.kernels.gpu.attention.flex_spec import flex_spec_of  # noqa: E402
from inductor.kernels.gpu.text_launches import load_text  # noqa: E402
from inductor.operators import flex_ops  # noqa: E402

PLAIN = {"COUNT": "*i32", "INDEX": "*i32", "FULL_COUNT": "*i32", "FULL_INDEX": "*i32"}


@pytest.mark.parametrize("name", ["alibi", "documents"])
def test_kernels(name: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    mod, mask = CASES[name]
    call, fakes, (q, k, v, *inputs) = captured(mod, mask, (2, 2, 1, 40, 40, 64, 64), 128)
    reads = fakes[3 + TABLES :]
    program = program_of(call, (*q.shape[:3], k.shape[2]), q.device, reads)
    assert program is not None
    tables = flex_ops.tables_of(inputs[:TABLES], q.shape, k.shape, call.facts.sizes)
    spec = flex_spec_of(q, k, v, tables, call.facts.sizes or (1, 1), 0.3)
    module = load_text(kernel_text(program, bool(tables)))
    constants = spec.constants((1, 1, 1, 1))
    chosen = {
        "attention_forward": spec.forward(), "attention_backward_keys": spec.keys(),
        "attention_backward_queries": spec.queries(),
    }  # fmt: skip
    for function, (blocks, *_) in chosen.items():
        fn = getattr(module, function)
        known: dict[str, Any] = {n: constants[n] for n in fn.arg_names if n in constants}
        known |= {"ROWS": blocks.rows, "COLUMNS": blocks.columns}
        signature = {n: "constexpr" if n in known else PLAIN.get(n, "*fp16") for n in fn.arg_names}
        signature |= {n: "*fp32" for n in ("LSE", "DELTA") if n in signature}
        signature |= {f"R{place}": POINTERS[reads[place].dtype] for place in program.reads}
        what = ASTSource(fn=fn, signature=signature, constexprs=known)
        options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
        built = triton.compile(what, target=GPUTarget("cuda", 90, 32), options=options)
        assert ".visible .entry" in built.asm["ptx"]
        assert built.metadata.shared < 228 * 1024
