"""`python -m tests.fuzz_identity --seconds 600 [--seed 0] [--backend eager]`: which object a tensor is, which memory it has.

Random programs of views, writes, stores and questions, with breaks between, are called with arguments that share
memory in changing ways. Prints each difference shrunk.
"""

from __future__ import annotations

import sys
import time
import warnings

import dynamo
from dynamo.base.config import config
from tests.common import fuzz_parser
from tests.fuzz_identity.compare import difference, generate
from tests.fuzz_identity.program import Program, smaller


def check(program: Program, backend: str) -> str:
    with config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return difference(program, lambda f: dynamo.compile(f, backend=backend), exact=backend == "eager")
        except Exception as error:
            return f"the check raises {type(error).__name__}: {str(error)[:500]}"


def shrunk(program: Program, backend: str) -> Program:
    """The smallest program found that differs too."""
    while found := next((p for p in smaller(program) if check(p, backend)), None):
        program = found
    return program


def report(seed: int, program: Program, backend: str) -> None:
    small = shrunk(program, backend)
    print(f"=== seed {seed}\n{small}\n{check(small, backend)}\n", flush=True)


def main() -> int:
    parser = fuzz_parser(__doc__, "eager", 60)
    parser.add_argument("--one", action="store_true", help="only this seed")
    options = parser.parse_args()
    if options.one:
        report(options.seed, generate(options.seed, options.backend == "eager"), options.backend)
        return 0
    seed, wrong, end = options.seed, 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        program = generate(seed, options.backend == "eager")
        if check(program, options.backend):
            wrong += 1
            report(seed, program, options.backend)
        seed += 1
    print(f"{seed - options.seed} programs, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
