"""Other processes do jobs: all of them, once each, and what has an end or an error is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from dynamo.base.processes import Failed, Processes


@pytest.fixture
def two() -> Iterator[Processes]:
    with Processes("math:sqrt", 2) as made:
        yield made


def test_each_job_is_done_once(two):
    jobs = [float(n * n) for n in range(20)]
    assert sorted(two.results(jobs)) == [(n, float(n)) for n in range(20)]
    assert list(two.results([4.0])) == [(0, 2.0)]
    assert list(two.results([])) == []


def test_an_error_is_the_result_of_its_job_alone(two):
    found = dict(two.results([1.0, -1.0, 9.0]))
    assert found[0] == 1.0 and found[2] == 3.0
    assert isinstance(found[1], Failed) and "math domain error" in found[1].text


def test_this_process_does_jobs_until_another_is_ready(two):
    here = []

    def do(number):
        here.append(number)
        time.sleep(0.05)
        return "here"

    jobs = [1.0] * 1000
    found = dict(two.results(jobs, do))
    assert here and all(found[number] == "here" for number in here)
    assert sorted(found) == list(range(1000))
    assert 1.0 in found.values()
    assert all(value == 1.0 for _, value in two.results(jobs, do))  # they are ready by now


def test_a_process_that_ends_takes_its_job_along_and_no_other():
    with Processes("os:_exit", 2) as made:
        found = list(made.results([3, 4, 5]))
    assert sorted(number for number, _ in found) == [0, 1, 2]
    assert all(isinstance(result, Failed) for _, result in found)


def test_others_are_started_where_they_have_ended(two):
    assert list(two.results([4.0])) == [(0, 2.0)]
    two.stop()
    assert list(two.results([9.0])) == [(0, 3.0)]


def test_others_are_started_where_what_they_had_has_changed(monkeypatch):
    monkeypatch.setenv("A_SETTING", "1")
    with Processes("os:getenv", 1, lambda: os.environ["A_SETTING"]) as made:
        assert list(made.results(["A_SETTING"])) == [(0, "1")]
        monkeypatch.setenv("A_SETTING", "2")
        assert list(made.results(["A_SETTING"])) == [(0, "2")]


def test_whoever_stops_asking_leaves_no_results_for_the_next(two):
    for _ in two.results([4.0] * 50):
        break
    assert sorted(two.results([9.0, 16.0])) == [(0, 3.0), (1, 4.0)]


def test_a_fork_has_its_own(two):
    assert list(two.results([4.0])) == [(0, 2.0)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if list(two.results([9.0])) == [(0, 3.0)] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(two.results([16.0])) == [(0, 4.0)]


def test_they_end_with_the_process_that_started_them():
    program = """if True:
        import os, signal
        from dynamo.base.processes import Processes
        made = Processes("os:getpgid", 2)
        print(*[group for _, group in made.results([0, 0])], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (group,) = {int(word) for word in done.stdout.split()}
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"processes of the group {group} live on")




def test_modules_without_their_package(tmp_path, monkeypatch):
    """And what is prepared before the processes are forked, they all have."""
    package = tmp_path / "heavy"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not needed')")
    (package / "light.py").write_text(
        "prepared = []\n"
        "def prepare(given): prepared.append(given)\n"
        "def tell(job): return job, prepared\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Processes("heavy.light:tell", 2, bare=("heavy",), given=("x", 1)) as made:
        assert sorted(made.results([1, 2])) == [(0, (1, [("x", 1)])), (1, (2, [("x", 1)]))]
    with Processes("heavy.light:tell", 2) as made:
        ((_, result),) = made.results([1])
    assert isinstance(result, Failed)
