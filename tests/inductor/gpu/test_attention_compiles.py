"""Triton compiles attention of few queries without a GPU: programs that count themselves, and such that do not."""

from __future__ import annotations

import re
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

import torch  # noqa: E402

from inductor.kernels.attention_spec import few_of, spec_of  # noqa: E402
from inductor.kernels.gpu.attention import launches  # noqa: E402
from inductor.kernels.gpu.text_launches import load_text  # noqa: E402

FLOATS = ("PART", "LSE")


@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32)])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("queries, keys", [(1, 512), (4, 4096)])
def test_few_queries(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, counted: bool, target: Any) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made: list[Any] = []
    monkeypatch.setattr(launches.TextLaunch, "of", lambda *args: made.append(args))
    q, k = (torch.empty(1, heads, n, 128, dtype=torch.bfloat16) for heads, n in ((32, queries), (8, keys)))
    spec = spec_of(q, k, k, None, torch.empty(1, 1, queries, keys, dtype=torch.bool), causal=False, scale=0.1)
    few = few_of(spec)
    assert few is not None
    launches.prepare_few(spec, few, torch.device("cpu"), counted)
    assert [name.name for name, *_ in made] == ["attention_few", "attention_join"][: 2 - counted]
    for name, _, constants, blocks, count in made:
        function = getattr(load_text(name.text), name.name)
        known = constants | {"ROWS": blocks.rows, "COLUMNS": blocks.columns}
        signature = {each: "constexpr" if each in known else "*fp32" if each in FLOATS else "*bf16" for each in function.arg_names}
        signature |= {each: kind for each, kind in (("MASK", "*i1"), ("ARRIVED", "*i32")) if each in signature}
        assert sum(kind != "constexpr" for kind in signature.values()) == count
        what = ASTSource(fn=function, signature=signature, constexprs={each: known[each] for each in known if each in signature})
        built = triton.compile(what, target=GPUTarget(*target), options={"num_warps": blocks.warps, "num_stages": blocks.stages})
        if target[0] != "cuda" or name.name != "attention_few":
            continue
        text = built.asm["ptx"]
        assert ".local .align" not in text, "registers suffice"
        atomics = re.findall(r"atom\.\S+", text)
        assert atomics == (["atom.global.gpu.acq_rel.add.u32"] if counted else [])
        if counted:  # every thread has stored before, and loads behind
            before, behind = text.split(atomics[0])
            assert "st.global" not in before.rpartition("bar.sync")[2] and "bar.sync" in behind
            assert behind.index("bar.sync") < behind.index("ld.global")
            assert set(re.findall(r"ld\.global\.\S+", behind)) and all(".cg" in load for load in re.findall(r"ld\.global\.\S+", behind))
