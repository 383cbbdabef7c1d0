"""`python -m tests.fuzz_snippets --count 10000`: programs out of snippets, plain and compiled, until some differ."""

from __future__ import annotations

import gc
import sys
import time
import traceback

from tests.common import fuzz_parser
from tests.fuzz.compare import shrink
from tests.fuzz_snippets.compare import differs
from tests.fuzz_snippets.compose import Program, generate

FROZEN_EACH = 200


def check(program: Program, backend: str) -> str | None:
    try:
        return differs(program, backend)
    except Exception:
        return "internal error\n" + traceback.format_exc(limit=-4)


def main() -> int:
    parser = fuzz_parser(__doc__, "eager")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--stop", type=int, default=5, help="stop after this many differences")
    parser.add_argument("--only", help="snippets whose names contain this")
    options = parser.parse_args()
    found, done, start = 0, 0, time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        if found >= options.stop or time.perf_counter() - start > options.seconds:
            break
        if done % FROZEN_EACH == 1:
            gc.freeze()
        done += 1
        program = generate(seed, options.only)
        if check(program, options.backend) is None:
            continue
        found += 1
        small = shrink(program, lambda p: check(p, options.backend) is not None)
        print(f"=== seed {seed} {small.parts}\n{small.source()}\n{check(small, options.backend)}\n", flush=True)
    print(f"{done} programs, {found} differences, {time.perf_counter() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
