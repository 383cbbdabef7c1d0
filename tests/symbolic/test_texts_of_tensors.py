# ruff: noqa: UP031
"""What breaks the graph although a built-in function would answer while tracing."""

import torch

import dynamo


def test_a_tensor_in_a_text():
    def f(x):
        return x + 1, "%s" % x.sum(), "<%5.1f|%r>" % (x[0], x), "%s" % (x.sum(),)

    x = torch.ones(2)
    assert dynamo.compile(f, backend="eager")(x)[1:] == f(x)[1:]


def test_map_without_iterables():
    def f(x):
        try:
            return x + 1, list(map(len))
        except TypeError as error:
            return x + 1, str(error)

    x = torch.ones(2)
    assert dynamo.compile(f, backend="eager")(x)[1] == f(x)[1]
