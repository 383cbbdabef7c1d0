"""Work that a compile does while it waits."""

from __future__ import annotations

import contextvars
import threading
import weakref

import pytest
import torch

import dynamo
from dynamo.base.waiting import in_threads, while_waiting, work_now
from dynamo.frames import entries
from inductor.runtime import build


def test_work_is_done_once_in_the_first_wait() -> None:
    done: list[str] = []
    with while_waiting(lambda: done.append("work")):
        assert done == []
        work_now()
        assert done == ["work"]
        work_now()
    assert done == ["work"]
    work_now()
    assert done == ["work"]


def test_work_is_done_behind_a_block_without_a_wait() -> None:
    done: list[str] = []
    with while_waiting(lambda: done.append("work")):
        pass
    assert done == ["work"]


def test_a_copy_of_the_context_does_not_keep_the_work() -> None:
    def held() -> None:
        done.append("work")

    done: list[str] = []
    gone = weakref.ref(held)
    with while_waiting(held):
        copy = contextvars.copy_context()  # as a backward does that compiles later
    del held
    assert done == ["work"] and gone() is None
    copy.run(work_now)
    assert done == ["work"]


def test_another_thread_that_waits_does_nothing() -> None:
    done: list[str] = []
    with while_waiting(lambda: done.append("work")):
        thread = threading.Thread(target=work_now)
        thread.start()
        thread.join()
        assert done == []


def test_an_inner_block_has_its_own_work() -> None:
    done: list[str] = []
    with while_waiting(lambda: done.append("outer")):
        with while_waiting(lambda: done.append("inner")):
            work_now()
            assert done == ["inner"]
        work_now()
    assert done == ["inner", "outer"]


def test_work_is_not_done_where_the_block_raises() -> None:
    done: list[str] = []
    with pytest.raises(KeyError), while_waiting(lambda: done.append("work")):
        raise KeyError
    assert done == []


def test_its_error_comes_behind_the_block() -> None:
    def fail() -> None:
        raise ValueError("of the work")

    reached = False
    with pytest.raises(ValueError, match="of the work"):
        with while_waiting(fail):
            work_now()
            reached = True
    assert reached


def test_guards_are_written_while_the_compiler_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told: list[str] = []
    make_checks = entries.make_checks
    popen = build.subprocess.Popen

    class Watched(popen):  # type: ignore[misc, valid-type]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            told.append("compiler started")

        def communicate(self, *args: object, **kwargs: object) -> object:
            told.append("waits for the compiler")
            return super().communicate(*args, **kwargs)

    def watched(*args: object) -> object:
        told.append("guards")
        return make_checks(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(entries, "make_checks", watched)
    monkeypatch.setattr(build.subprocess, "Popen", Watched)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * x + 0.375

    x = torch.randn(67)
    with dynamo.config.patch(cache_dir=str(tmp_path_factory.mktemp("cache"))):
        torch.testing.assert_close(dynamo.compile(f)(x), f(x))
    assert told.count("guards") == 1
    began = told.index("guards")
    assert told[began - 1: began + 2] == ["compiler started", "guards", "waits for the compiler"]


def test_threads_keep_the_order_and_leave_time_for_the_work() -> None:
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        assert begun.wait(60.0)
        done.set()

    def follow(number: int) -> int:
        begun.set()
        assert done.wait(60.0)
        return 10 // number

    with while_waiting(work):
        assert in_threads(follow, [5, 2], 2) == [2, 5]
        with pytest.raises(ZeroDivisionError):
            in_threads(follow, [1, 0], 0)
