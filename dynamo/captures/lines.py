"""Which source line of a function is not what it was when its trace was cached.

In: a code object. Out: a text of it that lies beside a cached trace, and the sentence that tells
its difference to the code of today. It decides nothing: the digest of the code is part of the key.
"""

from __future__ import annotations

import dis
import hashlib
import linecache
from collections.abc import Iterator
from types import CodeType

from dynamo.captures.fingerprints import NoFingerprint, digest_of_code


def text_of_lines(code: CodeType) -> str:
    """The line in which the function begins, and a row for each line below it: its distance, and a
    digest of its instructions.

    >>> text_of_lines(compile("x = 1\\ny = x", "file", "exec")).split()[0]
    '1'
    """
    rows: dict[int, list[str]] = {}
    for number, instruction in _with_lines(code):
        rows.setdefault(number, []).append(instruction)
    first = code.co_firstlineno
    digests = [f"{number - first} {hashlib.blake2b(repr(row).encode(), digest_size=6).hexdigest()}"
            for number, row in sorted(rows.items())]  # fmt: skip
    return "\n".join([str(first), *digests])


def _with_lines(code: CodeType) -> Iterator[tuple[int, str]]:
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = (instruction.positions and instruction.positions.lineno) or line
        value = instruction.argval
        if type(value) is CodeType:
            try:
                value = digest_of_code(value)
            except NoFingerprint:
                value = value.co_qualname
        if instruction.opcode not in dis.hasjrel:  # they name distances to lines behind
            yield line, f"{instruction.opname} {value!r}"


def difference(there: str, code: CodeType) -> str:
    """What is said behind the word `code`. there: the text of the code that was cached.

    >>> code = compile("x = 1", "file", "exec")
    >>> difference(text_of_lines(compile("x = 2", "file", "exec")), code)
    ' (line 1 of file)'
    """
    first, *rows = there.split("\n")
    now = text_of_lines(code).split("\n")
    if rows == now[1:]:
        if first == now[0]:
            return ""
        return f" (it began in line {first}, now in line {now[0]})"
    same = {row for row in now[1:] if row in rows}
    changed = [row for row in now[1:] if row not in same] or now[-1:]
    number = code.co_firstlineno + int(changed[0].split()[0]) if len(now) > 1 else 0
    text = linecache.getline(code.co_filename, number).strip()
    return f" (line {number} of {code.co_filename}{': ' if text else ''}{text})"
