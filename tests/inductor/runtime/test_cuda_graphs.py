"""When calls are recorded as CUDA graphs, and whose memory they write, without a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from inductor.runtime._launch import Replay, Slots
from recorded_memory import FakeRecorder

from inductor.runtime import cuda_graphs
from inductor.runtime.cuda_graphs import (
    ENOUGH_RUNS,
    MOST_CROWDED,
    MOST_RECORDINGS,
    MOST_SIZES,
    MOST_STRAYS,
    WARM_UP_CALLS,
    GraphedCall,
    Graphing,
)
from inductor.runtime.recorder import CudaRecorder, Pools
from tests.seeds import some

Tensor = torch.Tensor


def graphed(call: Callable[..., Any], recorder: FakeRecorder, **fields: Any) -> GraphedCall:
    fields.setdefault("pools", Pools())
    return GraphedCall(call, recorder, **fields)


def program(weight: Tensor, x: Tensor) -> tuple[Any, ...]:
    return weight @ x, (x * 2).sum(0).expand(3, -1), 5, (x + 1).t()


def check(call: GraphedCall, *inputs: Tensor) -> tuple[Any, ...]:
    got, want = call(*inputs), program(*inputs)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        if isinstance(other, Tensor):
            assert torch.equal(one, other) and one.stride() == other.stride()
        else:
            assert one == other
    return got


def warmed_up(recorder: FakeRecorder, weight: Tensor) -> tuple[GraphedCall, list[Tensor]]:
    call = graphed(program, recorder)
    alive = [torch.randn(4, 4) for _ in range(WARM_UP_CALLS)]  # no address twice
    for x in alive:
        check(call, weight, x)
    assert recorder.recorded == 0
    return call, alive


def test_inputs_on_the_host_are_not_recorded() -> None:
    """As long as one of them lies there, the call runs as it is; that is no reason to give up."""
    recorder, weight = FakeRecorder(), torch.nn.Parameter(torch.randn(4, 4))
    call, alive = warmed_up(recorder, weight)
    recorder.here = False
    for _ in range(MOST_STRAYS + 2):
        alive.append(torch.randn(4, 4))
        check(call, weight, alive[-1])
    assert recorder.recorded == 0
    recorder.here = True
    check(call, weight, alive[0])
    assert recorder.recorded == 1


def test_the_recorder_takes_tensors_of_its_device() -> None:
    recorder = CudaRecorder(torch.device("cuda:0"))
    assert not recorder.takes([torch.zeros((), dtype=torch.int64)])
    assert recorder.takes([])


def test_moving_inputs_are_copied_others_read_in_place() -> None:
    recorder, weight = FakeRecorder(), torch.nn.Parameter(torch.randn(4, 4))
    call, alive = warmed_up(recorder, weight)
    for _ in range(5):
        alive.append(torch.randn(4, 4))
        with torch.no_grad():
            weight.add_(0.5)  # the same address: seen by the next call
        check(call, weight, alive[-1])
    assert recorder.recorded == 1 and recorder.replayed == 5


def test_results_outlive_later_calls() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    results = []
    for _ in range(4):
        alive.append(torch.randn(4, 4))
        results.append((alive[-1], check(call, weight, alive[-1])))
    for x, got in results:
        assert torch.equal(got[0], weight @ x) and torch.equal(got[3], (x + 1).t())


def test_an_input_at_another_address_is_copied_from_then_on() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    weights = [torch.randn(4, 4) for _ in range(4)]
    for other in weights:
        check(call, other, alive[0])
    assert recorder.recorded == 2 and call.moving == {0, 1}


def test_strides_with_gaps_and_repeats() -> None:
    call = graphed(lambda x: (x[:, 0] * 2, x.sum()), FakeRecorder())
    for _ in range(4):
        for x in (torch.randn(3, 1).expand(3, 4), ):
            got = call(x)
            assert torch.equal(got[0], x[:, 0] * 2) and torch.equal(got[1], x.sum())


def test_recordings_end(monkeypatch: Any) -> None:
    """Each of many inputs moves for the first time in another call."""
    recorder = FakeRecorder()
    fixed = [torch.randn(2) for _ in range(MOST_RECORDINGS + 3)]
    call = graphed(lambda *xs: (torch.stack(xs),), recorder)
    alive = []
    for n in range(WARM_UP_CALLS + len(fixed)):
        if n > WARM_UP_CALLS:
            alive.append(fixed[n - WARM_UP_CALLS])
            fixed[n - WARM_UP_CALLS] = torch.randn(2)
        (got,) = call(*fixed)
        assert torch.equal(got, torch.stack(fixed))
    assert call.off and recorder.recorded == MOST_RECORDINGS


def test_elsewhere_it_runs_as_it_is() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    for stream in (None, 8):
        recorder.stream = stream
        check(call, weight, alive[1])
    assert recorder.replayed == 1
    recorder.stream = 7
    check(call, weight, alive[1])
    assert recorder.replayed == 2 and recorder.recorded == 1


def test_a_recording_that_fails_is_the_last() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    recorder.error = RuntimeError("operation not permitted when stream is capturing")
    call, alive = warmed_up(recorder, weight)
    for _ in range(2):
        check(call, weight, alive[0])
    assert call.off and not recorder.recorded


@pytest.mark.parametrize("result", [
    lambda y: y.conj(), lambda y: y.conj().imag, lambda y: y.to_sparse(),
])  # fmt: skip
def test_results_that_are_no_plain_memory(result: Any) -> None:
    """These can't be given again as tensors over the same memory."""
    x = torch.randn(3, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="no plain tensor"):
        Replay(Slots(), print, (x,), {}, (x,), (result(x * 2),), (), 1, [])


def test_large_moving_inputs_are_not_copied(monkeypatch: Any) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_COPIED", 32)
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    assert call.off and not recorder.recorded


def test_inference_mode_and_gradients() -> None:
    recorder, weight = FakeRecorder(), torch.nn.Parameter(torch.randn(4, 4))
    call, alive = warmed_up(recorder, weight)
    with torch.inference_mode():
        assert check(call, weight, torch.randn(4, 4))[0].is_inference()
    with torch.no_grad():
        got = check(call, weight, torch.randn(4, 4).requires_grad_())
    assert not got[0].requires_grad and not got[0].is_inference()
    with torch.inference_mode():
        assert check(call, weight, torch.randn(4, 4))[0].is_inference()


def addresses(results: Any) -> list[int]:
    return [x.data_ptr() for x in results if isinstance(x, Tensor)]


def test_nothing_is_copied_out_while_nobody_holds_it() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    first = addresses(check(call, weight, alive[0]))
    memory = call.recordings[0].pool.handle
    assert all(0 <= at - memory.bytes.data_ptr() < memory.most for at in first)
    for _ in range(3):
        assert addresses(check(call, weight, alive[1])) == first
    held = check(call, weight, alive[0])
    assert addresses(held) == first
    assert addresses(check(call, weight, alive[1])) == first
    assert set(addresses(held)).isdisjoint(first)  # moved


def test_views_of_what_is_held_follow() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    for _ in range(3):
        row = call(weight, alive[0])[0][1:3, 2]
        written = call(weight, alive[1])[3]
        written[0] = 7.0
        check(call, weight, alive[0])
        assert torch.equal(row, (weight @ alive[0])[1:3, 2])
        assert torch.equal(written[1:], (alive[1] + 1).t()[1:]) and bool((written[0] == 7).all())


def test_results_outlive_their_recording() -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    got = check(call, weight, alive[0])
    memory = call.recordings[0].pool.handle.bytes
    del call
    memory.fill_(1)
    assert torch.equal(got[0], weight @ alive[0]) and torch.equal(got[3], (alive[0] + 1).t())


def test_a_result_that_is_resized_is_left_alone() -> None:
    recorder = FakeRecorder()
    call = graphed(lambda x: (x + 1,), recorder)
    x = torch.arange(4.0)
    for _ in range(WARM_UP_CALLS + 1):
        call(x)
    (got,) = call(x)
    got.resize_(1000)
    got.fill_(3)
    call(x)
    assert bool((got == 3).all()) and recorder.replayed == 3


def test_results_that_share_memory_still_do() -> None:
    recorder = FakeRecorder()

    def shared(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y, y[1:], y, x

    call = graphed(shared, recorder)
    x = torch.arange(4.0)
    for _ in range(WARM_UP_CALLS + 3):
        whole, part, repeatable, given = call(x)
        assert repeatable is whole or recorder.recorded == 0
        assert given.data_ptr() == x.data_ptr()
        before = whole._version
        part.zero_()
        assert whole._version == before + 1 and whole[1:].sum() == 0


def test_constants_are_no_memory_of_a_pool() -> None:
    recorder, constant = FakeRecorder(), torch.arange(3.0)
    call = graphed(lambda x: (constant, x * 2), recorder, constants=(constant,))
    held = [call(torch.ones(3) * n)[0] for n in range(6)]
    assert all(torch.equal(x, torch.arange(3.0)) for x in held)


def test_a_result_is_the_next_input() -> None:
    recorder = FakeRecorder()
    call = graphed(lambda x: (x * 2 + 1,), recorder)
    x = want = torch.arange(4.0)
    for _ in range(8):
        (x,), want = call(x), want * 2 + 1
        assert torch.equal(x, want)
    assert recorder.recorded == 1 and recorder.replayed == 6


def test_pieces_read_each_other_in_place() -> None:
    pools, recorders = Pools(), [FakeRecorder() for _ in range(3)]
    first = graphed(lambda x: (x + 1, x * 2), recorders[0], pools=pools)
    second = graphed(lambda a, b: (a * b, a - b), recorders[1], pools=pools)
    third = graphed(lambda a, c, d: (a + c, d.sum()), recorders[2], pools=pools)
    x = torch.arange(6.0)
    for _ in range(7):
        x = x.clone()
        a, b = first(x)
        c, d = second(a, b)
        e, f = third(a, c, d)
        assert torch.equal(e, x + 1 + (x + 1) * (x * 2)) and f == (1 - x).sum()
        del a, b, c, d, e, f
    assert [r.recorded for r in recorders] == [1, 1, 1]
    assert [r.replayed for r in recorders] == [5, 5, 5]
    assert [r.copied for r in recorders[1:]] == [[], []]
    assert len(pools.at(("test", 7))) == 1


def test_inputs_that_come_from_elsewhere_for_good() -> None:
    pools, recorders = Pools(), [FakeRecorder() for _ in range(2)]
    first = graphed(lambda x: (x + 1,), recorders[0], pools=pools)
    second = graphed(lambda a: (a * 2,), recorders[1], pools=pools)
    alive = [torch.full((3,), float(n)) for n in range(MOST_STRAYS + 6)]
    for x in alive[:4]:
        assert torch.equal(second(*first(x))[0], (x + 1) * 2)
    assert recorders[1].copied == []
    for x in alive[4:]:
        assert torch.equal(second(x)[0], x * 2)
        replayed = recorders[1].replayed
    assert recorders[1].recorded == 2 and recorders[1].copied == [0] and replayed == 4
    assert torch.equal(second(*first(x))[0], (x + 1) * 2)
    assert recorders[1].replayed == 5


def test_functions_share_memory() -> None:
    pools, recorders = Pools(), [FakeRecorder() for _ in range(2)]
    calls = [graphed(lambda x, k=k: ((x + k).repeat(500),), r, pools=pools)
             for k, r in enumerate(recorders)]  # fmt: skip
    x = torch.arange(4.0)
    for call in calls:
        for _ in range(4):
            call(x)
    (pool,) = pools.at(("test", 7))
    assert pool.handle.most < 2 * 500 * x.nbytes
    for _ in range(3):  # each moves what is held of the other
        one, two = calls[0](x)[0], calls[1](x)[0]
        assert torch.equal(one, x.repeat(500)) and torch.equal(two, (x + 1).repeat(500))


def test_in_the_way_again_and_again(monkeypatch: Any) -> None:
    """Two functions of which one is recorded while nobody holds a result of the other."""
    pools, recorders = Pools(), [FakeRecorder() for _ in range(2)]
    one, two = [graphed(lambda x, k=k: ((x + k).repeat(75_000),), r, pools=pools)
                for k, r in enumerate(recorders)]  # fmt: skip
    monkeypatch.setattr("recorded_memory.SIZE", 1 << 22)
    x = torch.arange(4.0)
    for call in (one, two):
        for _ in range(4):
            call(x)
    for _ in range(MOST_CROWDED + 4):
        held = one(x)[0]
        assert torch.equal(two(x)[0], (x + 1).repeat(75_000))
        assert torch.equal(held, x.repeat(75_000))
    assert [r.recorded for r in recorders] == [1, 2]
    place = held.data_ptr()
    two(x)
    assert held.data_ptr() == place and len(pools.at(("test", 7))) == 2


def test_recordings_take_turns_where_large_results_are_held(monkeypatch: Any) -> None:
    monkeypatch.setattr("recorded_memory.SIZE", 1 << 23)
    recorder = FakeRecorder()
    call = graphed(lambda x: ((x + 1).repeat(75_000),), recorder)
    out, places = (), []
    for n in range(MOST_CROWDED + 12):
        x = torch.full((4,), float(n))
        out, before = call(x), [(y, y[0].item()) for y in out]  # the last one, as in a loop
        assert torch.equal(out[0], (x + 1).repeat(75_000))
        assert all(bool((y == value).all()) for y, value in before)
        places.append(out[0].data_ptr())
        before.clear()
    assert recorder.recorded == 2 and len(set(places[-6:])) == 2
    assert places[-6:] == [*places[-2:]] * 3
    held = []
    for n in range(8):  # more than recordings can spare
        x = torch.full((4,), float(n))
        held.append((call(x)[0], x))
        assert all(torch.equal(y, (x + 1).repeat(75_000)) for y, x in held)
    assert recorder.recorded == 3 and not call.off


def test_a_reader_of_recordings_that_take_turns(monkeypatch: Any) -> None:
    monkeypatch.setattr("recorded_memory.SIZE", 1 << 23)
    pools, recorders = Pools(), [FakeRecorder() for _ in range(2)]
    first = graphed(lambda x: ((x + 1).repeat(75_000),), recorders[0], pools=pools)
    second = graphed(lambda a: (a * 2,), recorders[1], pools=pools)
    last: Any = None
    for n in range(40):
        x = torch.full((4,), float(n))
        a = first(x)[0]
        b = second(a)[0]
        assert bool((b == 2 * n + 2).all()) and bool((a == n + 1).all())
        assert last is None or bool((last == n).all())
        last = a
        if n == 30:
            before = [recorder.replayed for recorder in recorders]
    assert [recorder.replayed - n for recorder, n in zip(recorders, before)] == [9, 9]
    assert [recorder.copied for recorder in recorders] == [[0], []]


def test_no_memory_for_another_recording(monkeypatch: Any) -> None:
    monkeypatch.setattr("recorded_memory.SIZE", 1 << 22)
    recorder = FakeRecorder()
    call = graphed(lambda x: ((x + 1).repeat(75_000),), recorder)
    out: Any = None
    for n in range(MOST_CROWDED + 12):
        x = torch.full((4,), float(n))
        last, out = out, call(x)
        assert last is None or bool((last[0] == n).all())
        if recorder.recorded:
            recorder.error = torch.OutOfMemoryError("CUDA out of memory")
    assert recorder.recorded == 1 and call.full and not call.off and recorder.replayed > 10


def test_inputs_are_written_in_place() -> None:
    recorder, state, others = FakeRecorder(), torch.zeros(4), []

    def step(state: Tensor, x: Tensor) -> tuple[Any, ...]:
        state += x
        return (state * 2, None)

    call = graphed(step, recorder, written=frozenset({0}), repeatable=False)
    want = torch.zeros(4)
    for n in range(6):
        others.append(torch.full((4,), float(n)))
        want += n
        got, nothing = call(state, others[-1])
        assert nothing is None and torch.equal(got, want * 2) and torch.equal(state, want)
    assert recorder.recorded == 1 and recorder.replayed == 4
    other = torch.ones(4)
    assert torch.equal(call(other, torch.ones(4))[0], torch.full((4,), 4.0))
    assert recorder.replayed == 4 and torch.equal(other, torch.full((4,), 2.0)) and torch.equal(state, want)


def caches(lengths: list[int]) -> tuple[FakeRecorder, GraphedCall]:
    """Turns of so many calls, each with a cache of its own."""
    def step(cache: Tensor, x: Tensor) -> tuple[Any, ...]:
        cache.add_(x)
        return (cache * 2,)

    recorder, alive = FakeRecorder(), []
    call = graphed(step, recorder, written=frozenset({0}), repeatable=False)
    for length in lengths:
        cache, total = torch.zeros(4), torch.zeros(4)
        alive.append(cache)
        for _ in range(length):
            x = torch.randn(4)
            alive.append(x)
            total += x
            (got,) = call(cache, x)
            assert torch.equal(got, total * 2) and torch.equal(cache, total)
    return recorder, call


def test_a_written_input_has_a_new_place_after_many_calls() -> None:
    recorder, call = caches([ENOUGH_RUNS + 3] * 6)
    assert recorder.recorded == 6 and not call.off


def test_turns_of_few_calls_run_without_a_recording_and_later_ones_with() -> None:
    recorder, call = caches([ENOUGH_RUNS - 3] * 6)
    assert recorder.recorded == 1 and not call.off
    recorder, call = caches([ENOUGH_RUNS - 3] * 6 + [3 * ENOUGH_RUNS] * 4)
    assert recorder.recorded == 5
    assert recorder.replayed == ENOUGH_RUNS - 5 + 2 * ENOUGH_RUNS + 1 + 3 * 3 * ENOUGH_RUNS


def test_recordings_that_do_not_pay_get_fewer() -> None:
    recorder, call = caches([ENOUGH_RUNS + 4] * 50)
    assert recorder.recorded == 50, "each runs often"
    recorder, call = caches([4, *[ENOUGH_RUNS + 4] * 50])
    assert recorder.recorded <= 2, "the second was left after four calls"


@pytest.mark.parametrize("before", [[], [4]])
def test_a_written_input_that_is_elsewhere_in_each_call(before: list[int]) -> None:
    recorder, call = caches([*before, *[1] * 100])
    assert call.off and recorder.recorded == len(before)


def test_a_written_input_moves_while_the_first_calls_run() -> None:
    recorder, call = caches([1, 1, 1, 6])
    assert recorder.recorded == 1 and recorder.replayed == 6 - WARM_UP_CALLS


def test_out_of_memory_for_what_is_held(monkeypatch: Any) -> None:
    recorder, weight = FakeRecorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    full.runs = 0  # it has not been replayed
    (recording,) = call.recordings
    monkeypatch.setattr(call, "recordings", (cuda_graphs.Recording(
        full, recording.pool, recording.place, recording.resident),))
    check(call, weight, alive[1])
    assert recorder.replayed == 1 and not call.off


def test_a_limit_of_sizes() -> None:
    recorder = FakeRecorder()
    graphing = Graphing(recorder, None, frozenset(), True)
    calls = [graphing(lambda x: (x + 1,), ()) for _ in range(MOST_SIZES + 2)]
    for n, call in enumerate(calls):
        x = torch.zeros(n + 1)
        for _ in range(WARM_UP_CALLS + 1):
            assert torch.equal(call(x)[0], x + 1)
    assert recorder.recorded == MOST_SIZES and [call.off for call in calls[-3:]] == [False, True, True]


@pytest.mark.parametrize("seed", some(range(8), 3))
def test_any_order(seed: int) -> None:
    """Functions that share memory, of whose results some are held, used as inputs, or written."""
    chance, pools = random.Random(seed), Pools()
    torch.manual_seed(seed)
    programs = [
        lambda w, x: (w @ x, (w + x).t()),
        lambda w, x: ((x * 2)[1:], x.sum(0), w),
        lambda w, x: (x.cos(), (x + w).expand(2, 4, 4), x - 1),
    ]
    calls = [graphed(program, FakeRecorder(), pools=pools) for program in programs]
    weight = torch.randn(4, 4) / 4
    held: list[tuple[Tensor, Tensor]] = []
    for _ in range(120):
        at = chance.randrange(len(calls))
        squares = [pair for pair in held if pair[0].shape == (4, 4)]
        if squares and chance.random() < 0.5:
            x, kept = chance.choice(squares)
            assert torch.equal(x, kept)
        else:
            x = torch.randn(4, 4)
        want = [value.clone() for value in programs[at](weight, x.clone())]
        got = calls[at](weight, x)
        for one, other in zip(got, want, strict=True):
            assert torch.allclose(one, other)
            one, other = one, one.clone()
            if chance.random() < 0.4 and one.data_ptr() != weight.data_ptr():
                held.append((one, other))
                if chance.random() < 0.3 and one.dim() < 3:
                    one.add_(1)
                    other.add_(1)
        del got, one, x
        while len(held) > 6:
            held.pop(chance.randrange(len(held)))
        assert all(torch.equal(one, other) for one, other in held)
    assert sum(call.recorder.replayed for call in calls) > 60
