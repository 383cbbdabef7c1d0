"""How the new bytecode fetches a value by its `Source`: one row per kind of source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dynamo._C import read_dict, read_item
from dynamo.base.errors import Break
from dynamo.base.instances import own_dict, thread_dict
from dynamo.bytecode.emit import Emitter
from dynamo.guards import sources as s
from dynamo.guards.sources import Source
from dynamo.guards.states import state_of, upcoming


class Fetcher:
    """Emits the fetching of sources in one frame.

    globals, builtins: the real dicts of the frame.
    """

    def __init__(self, emitter: Emitter, globals: dict[str, Any], builtins: dict[str, Any]):
        self.emitter = emitter
        self.globals = globals
        self.builtins = builtins
        self.stored: dict[Source, str] = {}

    def load(self, source: Source) -> None:
        """Pushes the value at the source."""
        stored = self.stored.get(source)
        if stored is not None:
            self.emitter.load_fast(stored)
            return
        row = ROWS.get(type(source))
        if row is None:
            raise Break("rebuild_unknown", source.text())
        row(self, source)

    def store(self, source: Source) -> None:
        """Fetches now and keeps the value in a local, because its place may change soon."""
        if source not in self.stored and not isinstance(source, STABLE):
            self.load(source)
            self.stored[source] = self.emitter.store_fresh("kept")


PLAIN_ATTRS = frozenset({"__closure__", "__defaults__", "__kwdefaults__"})


def _item(fetcher: Fetcher, source: Any) -> None:
    base = source.base
    if isinstance(base, s.AttrSource) and base.name in PLAIN_ATTRS:
        fetcher.load(base)
        fetcher.emitter.load_const(source.key)
        fetcher.emitter.subscript()
        return
    fetcher.emitter.start_call_const(read_item)
    fetcher.load(base)
    fetcher.emitter.load_const(source.key)
    fetcher.emitter.call(2)


def _dict(fetcher: Fetcher, source: Any) -> None:
    """The instance dict without running a `__getattribute__` of the program."""
    fetcher.emitter.start_call_const(own_dict if source.hidden else read_dict)
    fetcher.load(source.base)
    fetcher.emitter.call(1)


def _attr(name: str) -> Callable[[Fetcher, Any], None]:
    def row(fetcher: Fetcher, source: Any) -> None:
        fetcher.load(source.base)
        fetcher.emitter.load_attr(name or source.name)

    return row


def _call(function: Any) -> Callable[[Fetcher, Any], None]:
    def row(fetcher: Fetcher, source: Any) -> None:
        fetcher.emitter.start_call_const(function)
        fetcher.load(source.base)
        index = getattr(source, "index", None)
        if index is not None:
            fetcher.emitter.load_const(index)
        fetcher.emitter.call(1 if index is None else 2)

    return row


def _result(fetcher: Fetcher, source: Any) -> None:
    fetcher.emitter.start_call(lambda: fetcher.load(source.base))
    fetcher.emitter.call(0)


def _array(fetcher: Fetcher, source: Any) -> None:
    fetcher.emitter.start_call_const(s.as_tensor)
    fetcher.load(source.base)
    fetcher.emitter.load_const(source.kind)
    fetcher.emitter.call(2)


def _builtin(fetcher: Fetcher, source: Any) -> None:
    fetcher.emitter.load_const(fetcher.builtins)
    fetcher.emitter.load_const(source.name)
    fetcher.emitter.subscript()


ROWS: dict[type[Source], Callable[[Fetcher, Any], None]] = {
    s.LocalSource: lambda fetcher, source: fetcher.emitter.load_fast(source.name),
    s.CellSource: lambda fetcher, source: fetcher.emitter.load_closure(source.name),
    s.GlobalsSource: lambda fetcher, source: fetcher.emitter.load_const(fetcher.globals),
    s.GlobalSource: lambda fetcher, source: fetcher.emitter.load_global(source.name),
    s.BuiltinSource: _builtin,
    s.ModuleSource: lambda fetcher, source: fetcher.emitter.load_const(sys.modules[source.name]),
    s.ObjectSource: lambda fetcher, source: fetcher.emitter.load_const(source.value),
    s.AttrSource: _attr(""),
    s.DictSource: _dict,
    s.ItemSource: _item,
    s.DictKeySource: _call(s.nth_key),
    s.DictValueSource: _call(s.nth_value),
    s.CellContentsSource: _attr("cell_contents"),
    s.TypeSource: _call(type),
    s.WeakRefSource: _result,
    s.StateSource: _call(state_of),
    s.AsPlain: _call(s.as_plain),
    s.CallSource: _result,
    s.ThreadDictSource: _call(thread_dict),
    s.UpcomingSource: _call(upcoming),
    s.ArraySource: _array,
}
# Places that nothing in the new code changes.
STABLE = (s.LocalSource, s.CellSource, s.GlobalsSource, s.ModuleSource, s.ObjectSource)
