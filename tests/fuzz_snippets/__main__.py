"""`python -m tests.fuzz_snippets --count 10000`: programs out of snippets, plain and compiled."""

from __future__ import annotations

import sys

from tests.fuzz_snippets.compare import differs
from tests.fuzz_snippets.compose import Program, generate
from tests.fuzzing import Fuzzer

FUZZER = Fuzzer(
    __doc__, "eager", lambda seed, options: generate(seed, options.only), differs, Program.smaller,
    lambda program: f"{program.parts}\n{program.source()}",
    add=lambda parser: parser.add_argument("--only", help="snippets whose names contain this"),
)  # fmt: skip
check = FUZZER.checked

if __name__ == "__main__":
    sys.exit(FUZZER.main())
