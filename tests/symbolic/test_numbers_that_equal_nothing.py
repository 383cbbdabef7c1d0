"""NaN in containers, where its identity decides."""

import torch

import dynamo

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
