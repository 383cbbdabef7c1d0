"""Types of the C++ extension (`dynamo/csrc`)."""

from collections.abc import Callable
from types import CellType, CodeType, FunctionType, TracebackType
from typing import Any

Place = tuple[CodeType, dict[str, Any] | None, int, int]

SKIP: Any
SKIP_RECURSIVE: Any
OPCODES: dict[str, int]
STATE_NAMES: tuple[str, ...]
torch_version: str

class FrameState:
    code: CodeType
    function: FunctionType
    globals: dict[str, Any]
    builtins: dict[str, Any]
    locals: dict[str, Any]
    cells: dict[str, CellType]

class Program:
    payload: Any
    local_names: tuple[str, ...]
    cell_names: tuple[str, ...]
    runs_python: bool
    python_steps: list[int]
    plan: tuple[Any, ...] | None
    alive: bool
    def __init__(
        self,
        instructions: list[tuple[int, int, int, int, Any, int]],
        registers: int,
        local_names: tuple[str, ...],
        cell_names: tuple[str, ...],
        collect: tuple[int, ...],
        payload: Any = None,
    ) -> None: ...
    def run(
        self,
        locals: dict[str, Any],
        globals: dict[str, Any],
        builtins: dict[str, Any],
        cells: dict[str, CellType] = ...,
        /,
    ) -> tuple[tuple[Any, ...] | None, int, Any]: ...
    def dump(self) -> list[tuple[Any, ...]]: ...

class Entry:
    code: CodeType
    program: Program
    keepalive: Any
    note: Any
    callee: Any
    hits: int
    valid: bool
    def __init__(
        self, code: CodeType, program: Program, keepalive: Any = None, note: Any = None,
        direct: tuple[Any, int, int | tuple[int, ...]] | None = None,
    ) -> None: ...
    def invalidate(self) -> None: ...

class Region:
    callback: Callable[[FrameState], Any]
    def __init__(
        self, callback: Callable[[FrameState], Any], on_guard_defect: Any = None
    ) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *exception: Any) -> None: ...
    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] = ..., /
    ) -> Any: ...
    def entries(self, code: CodeType, /) -> list[Entry]: ...
    def add(self, code: CodeType, entry: Entry, /) -> None: ...
    def codes(self) -> list[CodeType]: ...
    def reset(self) -> None: ...

class Compiled:
    region: Region | None
    function: Callable[..., Any]
    __wrapped__: Callable[..., Any]
    def __init__(self, region: Region | None, function: Callable[..., Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Disabled:
    region: None
    function: Callable[..., Any]
    __wrapped__: Callable[..., Any]
    def __init__(self, function: Callable[..., Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def counters() -> dict[str, int]: ...
def current_region() -> Region | None: ...
def enter_disabled() -> None: ...
def entry_count(code: CodeType, /) -> int: ...
def forget(code: CodeType, /) -> None: ...
def global_state() -> tuple[int, ...]: ...
def leave() -> None: ...
def call_last(function: Callable[..., Any], /, *args: Any) -> Any: ...
def call_moving(function: Callable[..., Any], /, *args: Any) -> Any: ...
def hide_subclass(base: type, cls: type, /) -> None: ...
def traceback(
    following: TracebackType | None, places: tuple[Place, ...], /
) -> TracebackType | None: ...
def pass_on(error: BaseException, places: tuple[Place, ...], /) -> None: ...
def mark_compiled(code: CodeType, /) -> None: ...
def set_all_eager(eager: bool, /) -> None: ...
def set_skip(code: CodeType, region: Region, mark: int, /) -> None: ...
def tensor_facts(tensor: Any, /) -> tuple[int, ...]: ...
