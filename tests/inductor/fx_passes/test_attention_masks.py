"""What is read from masks of attention: the parts give the mask again, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor.fx_passes.attention.calls import SDPA
from inductor.fx_passes.attention.masks import MaskParts, parts_of
from inductor.operators import attention_ops

B, H, Q, K, D = 2, 3, 7, 7, 4
Given = tuple[torch.Tensor, ...]


def positions(first: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As transformers makes them: batches, queries, keys."""
    b = torch.arange(B)[:, None, None, None]
    q = (torch.arange(Q) + first)[None, None, :, None]
    k = (torch.arange(K) + first)[None, None, None, :]
    return b, q, k


def causal_and_padding(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = positions()
    return (q.new_ones((), dtype=torch.bool) & (k <= q) & padding[b, k]).expand(B, -1, Q, K)


def padding_of_keys(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = positions()
    return (q.new_ones((), dtype=torch.bool) & (q >= 0) & padding[b, k]).expand(B, -1, Q, K)


def causal(padding: torch.Tensor) -> torch.Tensor:
    _, q, k = positions(3)
    return q >= k


def everything(padding: torch.Tensor) -> torch.Tensor:
    _, q, k = positions()
    return (q >= 0) & (k < K)


def window(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = positions()
    return (k <= q) & (k > q - 3) & padding[b, k]


def two_windows(padding: torch.Tensor) -> torch.Tensor:
    _, q, k = positions()
    return torch.logical_and(torch.logical_and(q - 4 < k, k > q - 3), torch.ge(q, k))


def wide_window(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = positions()
    return (k > q - 4096) & (k <= q) & padding[b, k]


def shifted(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = positions()
    return (k <= q + 1) & padding[b, k]


def ahead(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = positions()
    return (k >= q) & padding[b, k]


def turned(padding: torch.Tensor) -> torch.Tensor:
    """Queries and keys are exchanged: what looks causal is not."""
    i = torch.arange(Q)
    return (i[:, None] <= i[None, :]) & padding[:, None, None, :]


def unsqueezed(padding: torch.Tensor) -> torch.Tensor:
    i = torch.arange(Q)
    return (i.unsqueeze(-1) >= i.unsqueeze(0))[None, None] & padding[:, None, None, :]


def written(padding: torch.Tensor) -> torch.Tensor:
    """The padding is written after the mask was made of it."""
    b, q, k = positions()
    mask = (k <= q) & padding[:, None, None, :]
    padding.fill_(True)
    return mask


def written_positions(padding: torch.Tensor) -> torch.Tensor:
    i = torch.arange(Q)
    q, k = i[:, None], torch.arange(K)
    i.add_(2)
    return (k <= q) & padding[:, None, None, :]


def one_query(padding: torch.Tensor) -> torch.Tensor:
    b, q, k = torch.arange(B)[:, None, None, None], torch.arange(1)[None, None, :, None], positions()[2]
    return ((k <= q) & padding[b, k]).expand(B, 1, Q, K)


def alone(padding: torch.Tensor) -> torch.Tensor:
    return padding[:, None, None, :].expand(B, 1, Q, K)


KNOWN: dict[Callable[..., Any], tuple[bool, int, int] | None] = {
    causal_and_padding: (True, 0, 1), padding_of_keys: (False, 0, 1), causal: (True, 0, 0),
    everything: (False, 0, 0), window: (True, 3, 1), two_windows: (True, 3, 0),
    wide_window: (True, 0, 1), shifted: (False, 0, 2), ahead: (False, 1, 1), turned: (False, 1, 1),
    unsqueezed: (True, 0, 1), written: None, written_positions: None, one_query: (False, 0, 2),
    alone: (False, 0, 1),
}  # fmt: skip


def captured(mask_of: Callable[..., Any], given: Given) -> torch.fx.GraphModule:
    found: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        found.append(gm)
        return gm.forward

    def program(padding: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(padding)).transpose(1, 2)

    dynamo.compile(program, backend=backend, fullgraph=True)(*given)
    return found[0]


def values(gm: torch.fx.GraphModule, wanted: list[torch.fx.Node], given: Given) -> list[torch.Tensor]:
    """What nodes of the graph are, where the attention reads them."""
    by_name = {"padding": given[0], "q": given[1], "k": given[2], "v": given[3]}
    kept: dict[torch.fx.Node, torch.Tensor] = {}

    class Run(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            kept[n] = super().run_node(n)
            return kept[n]

    places = [node.name.rpartition("_")[2] for node in gm.graph.nodes if node.op == "placeholder"]
    Run(gm).run(*[by_name[place] for place in places])
    return [kept[node] for node in wanted]


@pytest.mark.parametrize("mask_of", KNOWN, ids=lambda f: f.__name__)
def test_the_parts_are_the_mask(mask_of: Callable[..., Any]) -> None:
    given = (torch.rand(B, K) > 0.4, torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D))
    gm = captured(mask_of, (given[0].clone(), *given[1:]))
    node = next(n for n in gm.graph.nodes if n.target is SDPA)
    mask = node.kwargs["attn_mask"]
    parts = parts_of(mask, node)
    wanted = KNOWN[mask_of]
    if wanted is None:
        assert parts is None
        return
    assert parts is not None
    assert (parts.causal, parts.window, len(parts.rest)) == wanted
    whole, *rest = values(gm, [mask, *parts.rest], given)
    assert torch.equal(again(parts, rest), whole.expand(B, 1, Q, K))


def again(parts: MaskParts, rest: list[torch.Tensor]) -> torch.Tensor:
    behind = torch.arange(Q)[:, None] - torch.arange(K)
    made = torch.ones(B, 1, Q, K, dtype=torch.bool)
    if parts.causal:
        made &= behind >= 0
    if parts.window:
        made &= behind < parts.window
    for mask in rest:
        made &= mask
    return made


def test_a_mask_of_which_nothing_is_known_is_left() -> None:
    given = (torch.rand(B, 1, Q, K) > 0.4, torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D))
    gm = captured(lambda mask: mask, given)
    node = next(n for n in gm.graph.nodes if n.target is SDPA)
    assert parts_of(node.kwargs["attn_mask"], node) is None


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("allowed", [True, False])
def test_dropout_and_chosen_backends_keep_the_mask(
    dropout: float, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mask, torch would choose another kernel, which drops other elements."""
    seen: list[Any] = []
    monkeypatch.setattr(attention_ops, "sdpa", lambda q, k, v, mask, *rest, **facts: seen.append((mask, rest)))
    monkeypatch.setattr(attention_ops, "all_backends_allowed", lambda: allowed)
    q, k, v = (torch.randn(B, H, Q, D) for _ in range(3))
    mask = torch.ones(Q, K, dtype=torch.bool).tril()
    attention_ops.attention_with_parts(((), True, 0), q, k, v, mask, dropout)
    ((given, (rate, causal)),) = seen
    assert rate == dropout
    assert (given is None and causal) if allowed and not dropout else (given is mask and not causal)


MADE_WHEN_TRACED = torch.ones(8, 1, dtype=torch.bool).expand(8, 8)


@pytest.mark.parametrize(("parts", "mask", "kept"), [
    (((), False, 0), MADE_WHEN_TRACED, False), (((), False, 0), torch.ones(8, 8, dtype=torch.bool), True),
    (((), True, 0), MADE_WHEN_TRACED, True), (((), False, 4), MADE_WHEN_TRACED, True),
    (((torch.ones(1, 1, 1, 8, dtype=torch.bool),), False, 0), MADE_WHEN_TRACED, True),
])  # fmt: skip
def test_dropout_goes_without_a_mask_that_hides_nothing(parts, mask, kept, monkeypatch) -> None:
    """One that a program has filled in memory stays: with it, torch's kernel drops other elements."""
    given = []

    def sdpa(q, k, v, mask, *more, **options):
        given.append(mask)
        return SDPA(q, k, v, mask, *more, **options)

    monkeypatch.setattr(attention_ops, "sdpa", sdpa)
    q, k, v = (torch.randn(2, 2, 8, 4) for _ in range(3))
    torch.manual_seed(0)
    found = attention_ops.attention_with_parts(parts, q, k, v, mask, 0.5)
    assert [each is not None for each in given] == [kept]
    torch.manual_seed(0)
    torch.testing.assert_close(found, SDPA(q, k, v, mask, 0.5))
