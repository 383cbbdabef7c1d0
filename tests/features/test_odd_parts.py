"""What few programs do to functions, enums and modules: keywords of any name, more defaults than
parameters, code put before a function's own, members and properties of one name, failing descriptors."""

from __future__ import annotations

import pytest

from tests.features.harness import check

DEFAULTS = """
def plain(a, b): return a, b
def more(a, *b): return a, b
def none(): return 7
def only(a, *, b=1): return a, b
for function in (plain, more, none, only): function.__defaults__ = (1, 2, 3)
"""


@pytest.mark.parametrize("call", [
    "plain()", "plain(5)", "plain(b=5)", "plain(5, 6)", "more()", "more(4, 5)", "none()", "only()",
    "none(1)", "plain(1, 2, 3)", "only(b=2)",
])
def test_more_defaults_than_parameters(call: str) -> None:
    check(f"return x + 1, {call}", DEFAULTS, graphs=None)


def test_code_that_its_table_of_lines_does_not_cover() -> None:
    check("return x + 1, Items([1, 2])[1]", """
        import dis, types
        def item(self, at): return super().__getitem__(at) + 10
        def cells(__class__): return (lambda: __class__).__closure__
        class Items(list): pass
        first = bytes([dis.opmap["COPY_FREE_VARS"], 1])
        code = item.__code__
        code = code.replace(co_freevars=("__class__",), co_code=first + code.co_code)
        Items.__getitem__ = types.FunctionType(code, globals(), "item", None, cells(Items))
    """, graphs=None)
