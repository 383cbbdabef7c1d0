"""Programs over structures: trees, graphs, points, tables of categories, experts, adapters, solvers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.research import Research, mlp


@dataclass
class Tree:
    word: int
    children: list[Tree] = field(default_factory=list)


class TreeCell(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(12, width)
        self.gates, self.hidden = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width, bias=False)
        self.forget, self.head = nn.Linear(2 * width, width), nn.Linear(width, 3)

    def forward(self, tree: Tree) -> tuple[Tensor, Tensor]:
        x = self.words.weight[tree.word]
        below = [self(child) for child in tree.children]
        total = sum((h for h, _ in below), torch.zeros_like(x))
        i, o, u = (self.gates(x) + self.hidden(total)).chunk(3)
        c = i.sigmoid() * u.tanh()
        for h, cell in below:
            c = c + torch.sigmoid(self.forget(torch.cat([x, h]))) * cell
        return o.sigmoid() * c.tanh(), c


class Trees(Research):
    """A tree-LSTM that calls itself over Python objects."""

    def build(self) -> None:
        self.model = TreeCell()

    def prepare(self) -> None:
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), 0.1)

    def batch(self) -> tuple[Any, ...]:
        tree = Tree(1, [Tree(2, [Tree(3), Tree(4)]), Tree(5, [Tree(6)])])
        return tree, self.ints(3, 1)

    def step(self, tree: Tree, label: Tensor) -> Any:
        loss = F.cross_entropy(self.model.head(self.model(tree)[0])[None], label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Solver(Research):
    """A neural differential equation: Runge-Kutta steps in a while loop over a Python time."""

    def build(self) -> None:
        self.model = mlp(3, 16, 2, act=nn.Tanh)

    def prepare(self) -> None:
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), 1e-3)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(4, 2), self.normal(4, 2)

    def slope(self, y: Tensor, t: float) -> Tensor:
        return self.model(torch.cat([y, torch.full_like(y[:, :1], t)], 1))

    def step(self, y: Tensor, target: Tensor) -> Any:
        t, h, steps = 0.0, 0.25, 0
        while t < 1.0:
            k1 = self.slope(y, t)
            k2 = self.slope(y + h / 2 * k1, t + h / 2)
            k3 = self.slope(y + h / 2 * k2, t + h / 2)
            k4 = self.slope(y + h * k3, t + h)
            y, t, steps = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), t + h, steps + 1
        loss = F.mse_loss(y, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), steps


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(n, 6, mode="sum") for n in (10, 20, 30)])
        self.bottom, self.top = mlp(4, 12, 6), mlp(6 + 6, 16, 1)

    def forward(self, dense: Tensor, ids: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        every = [x, *[bag(i, o) for bag, i, o in zip(self.bags, ids, offsets, strict=True)]]
        stacked = torch.stack(every, 1)
        product = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, product[:, rows, columns]], 1)).squeeze(1)


class Recommender(Research):
    """Embedding bags with offsets, and products of all pairs of features."""

    def build(self) -> None:
        self.model = Tables()

    def prepare(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def batch(self) -> tuple[Any, ...]:
        ids = [self.ints(n, 12) for n in (10, 20, 30)]
        return self.normal(4, 4), ids, [torch.tensor([0, 3, 5, 9])] * 3, self.uniform(4).round()

    def step(self, dense: Tensor, ids: list[Tensor], offsets: list[Tensor], label: Tensor) -> Any:
        loss = F.binary_cross_entropy_with_logits(self.model(dense, ids, offsets), label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Messages(nn.Module):
    """Two rounds of attention over the edges of a graph, by index_add and scatter_reduce."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.rounds = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(2)])
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for layer in self.rounds:
            message = layer(torch.cat([x[source], x[target]], 1)).relu()
            score = self.score(message).squeeze(1)
            top = score.new_full((x.shape[0],), float("-inf")).scatter_reduce(0, target, score, "amax")
            weight = (score - top.detach()[target]).exp()
            total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, weight)
            weight = weight / total[target]
            x = x + torch.zeros_like(x).index_add_(0, target, message * weight[:, None])
        return x


class Graphs(Research):
    """Message passing, then a pooled loss over parts of the graph."""

    def build(self) -> None:
        self.model = Messages()

    def prepare(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(9, 8), self.ints(9, 2, 20), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]), self.normal(3)

    def step(self, x: Tensor, edges: Tensor, part: Tensor, wanted: Tensor) -> Any:
        found = self.model(x, edges)
        pooled = torch.zeros(3, 8, dtype=x.dtype).scatter_add(0, part[:, None].expand(-1, 8), found)
        loss = F.l1_loss(pooled.mean(1), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), pooled.detach()


class Points(Research):
    """A PointNet: shared layers over points, batch norms, a learned transform, a maximum."""

    def build(self) -> None:
        self.turn = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
                                  nn.Flatten(), nn.Linear(8, 9))
        self.model = nn.Sequential(nn.Conv1d(3, 12, 1), nn.BatchNorm1d(12), nn.ReLU(), nn.Conv1d(12, 12, 1))
        self.head = mlp(12, 12, 4)

    parts = ("turn", "model", "head")

    def prepare(self) -> None:
        weights = [p for m in self.modules().values() for p in m.parameters()]
        self.optimizer = torch.optim.Adam(weights, 1e-3)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(4, 3, 10), self.ints(4, 4)

    def step(self, x: Tensor, label: Tensor) -> Any:
        eye = torch.eye(3, dtype=x.dtype)
        turn = self.turn(x).view(-1, 3, 3) + eye
        scores = self.head(self.model(torch.bmm(turn, x)).max(2).values)
        apart = (eye - turn @ turn.transpose(1, 2)).norm(dim=(1, 2)).mean()
        loss = F.cross_entropy(scores, label) + 1e-3 * apart
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), scores.detach()


class Averaged(Research):
    """An exponential average of the weights, accumulated gradients, GradScaler, clipping, a schedule."""

    def build(self) -> None:
        self.model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))

    def prepare(self) -> None:
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1.0, (n + 1) / 4))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(8, 6), self.ints(3, 8)

    def step(self, x: Tensor, label: Tensor) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for part, wanted in zip(x.split(4), label.split(4), strict=True):
            loss = F.cross_entropy(self.model(part), wanted) / 2
            self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        with torch.no_grad():
            for old, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                old.lerp_(new, 0.1)
        return sum(losses), norm, self.scaler.get_scale(), self.schedule.get_last_lr()
