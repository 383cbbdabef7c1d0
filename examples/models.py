"""The demo's models: three transformers with random weights, a ResNet-50, a branch on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SIZES = dict(hidden=768, layers=4, heads=12, batch=2, length=128, vocabulary=30000)


class Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3, 1x1 convolutions and a shortcut (stride on the 3x3)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm1(self.conv1(x)))
        h = self.relu(self.norm2(self.conv2(h)))
        h = self.norm3(self.conv3(h))
        return self.relu(h + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50(nn.Module):
    """Images (batch, 3, height, width) to class scores (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        channels, blocks = 64, []
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(channels, width, stride if i == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def branch(a: Tensor, b: Tensor) -> Tensor:
    """A branch that only the data decides: the graph breaks and resumes."""
    c = a - b
    if c.sum() < 0:
        c = -c
    else:
        c = c * 2
    return c + 1


def transformer(name: str, config: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A HuggingFace model by class name, with random weights and one batch of token ids."""
    import transformers

    s = SIZES
    settings: dict[str, Any] = dict(vocab_size=s["vocabulary"], use_cache=False)
    if config == "GPT2Config":
        settings.update(
            n_embd=s["hidden"],
            n_layer=s["layers"],
            n_head=s["heads"],
            bos_token_id=1,
            eos_token_id=2,
        )
    else:
        settings.update(
            hidden_size=s["hidden"],
            num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"],
            intermediate_size=4 * s["hidden"],
        )
    model = getattr(transformers, name)(getattr(transformers, config)(**settings)).eval()
    return model, (), dict(input_ids=torch.randint(3, s["vocabulary"], (s["batch"], s["length"])))


def resnet() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return ResNet50().eval(), (torch.randn(4, 3, 224, 224),), {}


MODELS: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "BertForMaskedLM": lambda: transformer("BertForMaskedLM", "BertConfig"),
    "GPT2LMHeadModel": lambda: transformer("GPT2LMHeadModel", "GPT2Config"),
    "LlamaForCausalLM": lambda: transformer("LlamaForCausalLM", "LlamaConfig"),
    "ResNet50": resnet,
    "branch": lambda: (branch, (torch.randn(1000), torch.randn(1000)), {}),
}
