"""Whatever the processor is taken for, graphs and packages are right: no kernel depends on what this machine has."""

from __future__ import annotations

import pytest

from dynamo.store.processor import describe
from tests.inductor.runtime.described_programs import PROGRAMS
from tests.processes import run_python
from tests.processors import DESCRIPTIONS, runs_here

# What runs by default: each program on a kind with fewer instructions, and with each library.
BY_DEFAULT = {
    "x86-64-v3 ours": ("gemms_and_attention", "gradients", "packages"), "cooperlake ours": ("gemms_and_attention",),
    "mkl": ("gemms_and_attention", "gradients"), "onednn": ("gemms_and_attention", "convolutions"),
}


def check(description: str, *programs: str) -> None:
    if not runs_here(description):
        pytest.skip(f"this machine can't run code for {description}")
    done = run_python("-m", "tests.inductor.runtime.described_programs", *programs, DYNAMO_PROCESSOR=description,
                      DYNAMO_LIBRARY_KERNELS="measure", DYNAMO_SUPPRESS_ERRORS="0")  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("description", BY_DEFAULT)
def test_a_few_programs(description: str) -> None:
    check(description, *BY_DEFAULT[description])


@pytest.mark.long
@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_all_programs(description: str) -> None:
    check(description, *PROGRAMS)


def test_descriptions() -> None:
    here = describe("")
    assert (here.fastest, describe("ours").fastest) == ("", "ours") and describe("ours").flag == here.flag
    assert describe("x86-64-v3 mkl").flag == "-march=x86-64-v3" and not describe("x86-64-v3").half
    assert len({describe(text).text for text in ("", *DESCRIPTIONS)}) == 1 + len(DESCRIPTIONS)


@pytest.mark.parametrize("text", ["x86-64-v3 cooperlake", "mkl ours"])
def test_what_is_no_description(text: str) -> None:
    with pytest.raises(ValueError, match="a processor is a kind and one of mkl, onednn, ours"):
        describe(text)
