"""Programs over sequences: text, speech, trees; loops over time, caches, beams, dynamic programs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.research import Research


class Translator(nn.Module):
    """A GRU encoder and an attending GRU decoder; greedy, forced or with a beam."""

    def __init__(self, words: int = 20, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell, self.query = nn.GRUCell(2 * width, width), nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, words)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        memory, last = self.encoder(self.words(source))
        return memory, last[0]

    def advance(self, word: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.einsum("bd,btd->bt", self.query(state), memory).softmax(-1)
        context = torch.einsum("bt,btd->bd", weight, memory)
        state = self.cell(torch.cat([self.words(word), context], -1), state)
        return F.log_softmax(self.head(state), -1), state

    def forward(self, source: Tensor, target: Tensor, forced: list[bool]) -> Tensor:
        memory, state = self.encode(source)
        word, found = target[:, 0], []
        for t in range(1, target.shape[1]):
            scores, state = self.advance(word, state, memory)
            found.append(scores)
            word = target[:, t] if forced[t] else scores.argmax(-1)
        return torch.stack(found, 1)


class Translate(Research):
    """Teacher forcing by a coin in training, then a beam search that keeps its hypotheses in tensors."""

    def build(self) -> None:
        self.model = Translator()

    def prepare(self) -> None:
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), 0.05)
        self.count = 0

    def batch(self) -> tuple[Any, ...]:
        return self.ints(20, 3, 6), self.ints(20, 3, 5)

    def beam(self, source: Tensor, width: int = 3, length: int = 4) -> tuple[Tensor, Tensor]:
        memory, state = self.model.encode(source)
        memory, state = memory.expand(width, -1, -1), state.expand(width, -1)
        words = torch.zeros(width, 1, dtype=torch.long)
        total = torch.full((width,), float("-inf"), dtype=memory.dtype)
        total[0] = 0.0
        for _ in range(length):
            scores, state = self.model.advance(words[:, -1], state, memory)
            every = (total[:, None] + scores).flatten()
            total, best = every.topk(width)
            row = best // scores.shape[-1]
            words, state = torch.cat([words[row], (best % scores.shape[-1])[:, None]], 1), state[row]
            if bool((words[0, 1:] == 1).any()):
                break
        return words, total

    def step(self, source: Tensor, target: Tensor) -> Any:
        self.count += 1
        forced = [(t * 7 + self.count) % 3 != 0 for t in range(target.shape[1])]
        found = self.model(source, target, forced)
        loss = F.nll_loss(found.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            return loss.detach(), *self.beam(source[:1])


class Truncated(Research):
    """A GRU language model that carries a detached state, with clipping and a schedule of the rate."""

    def build(self) -> None:
        self.words, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.model = nn.GRU(16, 16, 2, dropout=0.0)
        self.head.weight = self.words.weight

    parts = ("words", "model", "head")

    def prepare(self) -> None:
        self.weights = [p for m in (self.words, self.model, self.head) for p in m.parameters()]
        self.optimizer = torch.optim.SGD(self.weights, 0.5, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1.0, total_steps=10)
        self.state: Tensor | None = None

    def batch(self) -> tuple[Any, ...]:
        return (self.ints(30, 7, 4),)

    def step(self, text: Tensor) -> Any:
        if self.state is None:
            self.state = torch.zeros(2, 4, 16, dtype=self.dtype)
        out, state = self.model(self.words(text[:-1]), self.state.detach())
        self.state = state
        loss = F.cross_entropy(self.head(out).view(-1, 30), text[1:].reshape(-1), label_smoothing=0.1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.weights, 0.25)
        self.optimizer.step()
        self.schedule.step()
        return loss.item(), norm, self.schedule.get_last_lr()[0]


class Speech(Research):
    """A convolution, a two-way LSTM over packed lengths, connectionist temporal classification."""

    def build(self) -> None:
        self.model = nn.Conv1d(8, 12, 3, stride=2, padding=1)
        self.rnn, self.head = nn.LSTM(12, 10, bidirectional=True, batch_first=True), nn.Linear(20, 6)

    parts = ("model", "head")

    def prepare(self) -> None:
        weights = [p for m in self.modules().values() for p in m.parameters()]
        self.optimizer = torch.optim.Adam(weights, 1e-2)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(3, 8, 24), torch.tensor([24, 20, 16]), self.ints(5, 3, 4) + 1, torch.tensor([4, 3, 2])

    def step(self, sound: Tensor, lengths: Tensor, text: Tensor, sizes: Tensor) -> Any:
        x = F.hardtanh(self.model(sound), 0, 20).transpose(1, 2)
        lengths = (lengths + 1) // 2
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        scores = self.head(out).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(scores, text, lengths, sizes, zero_infinity=True)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), scores.detach().argmax(-1)
