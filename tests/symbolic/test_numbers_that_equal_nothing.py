"""NaN in containers, where its identity decides."""

import torch

import dynamo
from dynamo.testing import CompileCounter

NAN = float("nan")


def test_containers_find_it_by_its_identity(monkeypatch):
    def f(x, other, seen):
        seen[NAN] = 1
        return (x + 1, NAN in [NAN], [NAN] == [NAN], [NAN].count(other), other in (NAN,),
                {NAN: 1}.get(NAN), seen.get(NAN), len(seen))

    compiled = dynamo.compile(f, backend="eager")
    seen, wanted = {}, {}
    for other in (NAN, float("nan")):
        for value in (NAN, NAN, float("nan")):
            monkeypatch.setitem(globals(), "NAN", value)
            got = compiled(torch.zeros(1), other, seen)[1:]
            assert got == f(torch.zeros(1), other, wanted)[1:]


def test_a_fresh_one_per_call_is_no_new_value() -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(lambda x, v: (x * v, v, [v], float(v)), backend=counter)
    for _ in range(3):
        value = float("nan")
        result, same, (held,), made = compiled(torch.ones(1), value)
        assert result.isnan() and same is held is made is value
    assert len(counter.graphs) == 1


def test_what_an_identity_has_decided_holds_for_it_alone() -> None:
    def f(x, a, b):
        return x + 1, a is b, [a] == [b], a in (b,), (a,) == (b,), {a: 1}.get(b), max(a, 1.0) is a

    compiled = dynamo.compile(f, backend="eager")
    one, other = float("nan"), float("nan")
    for pair in ((one, one), (one, other), (other, one), (float("nan"), one), (other, other)):
        assert compiled(torch.ones(1), *pair)[1:] == f(torch.ones(1), *pair)[1:]


def test_a_number_that_was_none_is_fixed_at_first() -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(lambda x, v: x * v, backend=counter)
    for value in (float("nan"), 1.0, float("nan"), 2.0, 3.0):
        assert torch.equal(compiled(torch.ones(1), value).nan_to_num(7.0), torch.ones(1).mul(value).nan_to_num(7.0))
