"""Programs whose length depends on values: greedy decoding, and loops until a value is reached."""

from __future__ import annotations

import pytest
import torch

from dynamo import lazy


@pytest.mark.parametrize("name", [pytest.param("GPT2", marks=pytest.mark.long), "Llama"])
def test_greedy_decoding_gives_eagers_tokens(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2} if name == "GPT2" else {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64}  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        **sizes, vocab_size=99, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    of = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[name]
    model = getattr(transformers, of)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # tokens that differ from each other
            parameter.mul_(4)
    ids = torch.randint(3, 99, (2, 5))
    given = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    wanted = model.generate(ids, **given)
    assert len(set(wanted[0].tolist())) > 3
    with lazy.mode("cpu", backend="eager"):
        found = lazy.eager(model.generate(ids, **given))
    assert torch.equal(found, wanted)
    metrics = lazy.metrics()
    assert metrics.operations > 100 and metrics.failures == 0
    with lazy.mode("cpu", backend="eager"):  # the same tokens again
        again = lazy.eager(model.generate(ids, **given))
    assert torch.equal(again, wanted) and lazy.metrics().hits > metrics.hits


def collatz(number: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A loop whose length and branches are values."""
    steps = 0
    while number.item() != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return number, steps


def newton(x: torch.Tensor) -> torch.Tensor:
    root = torch.ones_like(x)
    while (root * root - x).abs().max() > 1e-6:
        root = 0.5 * (root + x / root)
    return root


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_loops_until_a_value_is_reached(backend: str) -> None:
    numbers = torch.rand(4, 8).double() + 0.1
    start = int(torch.randint(5, 30, ()))
    wanted = newton(numbers)
    with lazy.mode("cpu", backend=backend):
        found = newton(numbers)
        _, steps = collatz(torch.tensor(start))
    torch.testing.assert_close(lazy.eager(found), wanted)
    assert steps == collatz(torch.tensor(start))[1]
    assert lazy.metrics().looks > 2
