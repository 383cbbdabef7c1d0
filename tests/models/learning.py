"""Programs in which the way of learning is the point: reinforcement, adversaries, inner loops, averages."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.models.research import Research, mlp


class DeepQ(Research):
    """Double Q-learning with a target network, Huber loss, clipping and a soft update."""

    gamma, tau = 0.99, 0.05

    def build(self) -> None:
        self.model = mlp(6, 32, 32, 4)

    def prepare(self) -> None:
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, amsgrad=True)

    def batch(self) -> tuple[Any, ...]:
        n = 16
        return self.normal(n, 6), self.ints(4, n, 1), self.normal(n), self.normal(n, 6), self.uniform(n) > 0.8

    def step(self, state: Tensor, action: Tensor, reward: Tensor, following: Tensor, done: Tensor) -> Any:
        taken = self.model(state).gather(1, action).squeeze(1)
        with torch.no_grad():
            best = self.model(following).argmax(1, keepdim=True)
            value = self.target(following).gather(1, best).squeeze(1)
            value[done] = 0.0
        loss = F.smooth_l1_loss(taken, reward + self.gamma * value)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.model.parameters(), strict=True):
                old.mul_(1 - self.tau).add_(new, alpha=self.tau)
        return loss.detach(), taken.detach()


class ActorCritic(Research):
    """Proximal policy: distributions, advantages by a reversed loop, epochs over minibatches."""

    def build(self) -> None:
        self.body, self.actor, self.critic = mlp(5, 24, 24, act=nn.Tanh), nn.Linear(24, 3), nn.Linear(24, 1)

    parts = ("body", "actor", "critic")

    def prepare(self) -> None:
        weights = [p for m in self.modules().values() for p in m.parameters()]
        self.weights, self.optimizer = weights, torch.optim.Adam(weights, lr=3e-4, eps=1e-5)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(12, 5), self.ints(3, 12), self.normal(12), self.uniform(12) > 0.9

    def evaluate(self, states: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        hidden = self.body(states)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)

    def advantages(self, values: Tensor, rewards: Tensor, done: Tensor) -> Tensor:
        found, last = [], torch.zeros((), dtype=values.dtype)
        for t in reversed(range(rewards.shape[0])):
            following = values[t + 1] if t + 1 < rewards.shape[0] else torch.zeros_like(last)
            alive = 1.0 - done[t].to(values.dtype)
            last = rewards[t] + 0.99 * following * alive - values[t] + 0.99 * 0.95 * alive * last
            found.insert(0, last)
        return torch.stack(found)

    def step(self, states: Tensor, actions: Tensor, rewards: Tensor, done: Tensor) -> Any:
        with torch.no_grad():
            policy, values = self.evaluate(states)
            before = policy.log_prob(actions)
            advantage = self.advantages(values, rewards, done)
        losses = []
        for _ in range(2):
            for part in torch.arange(12).split(6):
                policy, value = self.evaluate(states[part])
                ratio = (policy.log_prob(actions[part]) - before[part]).exp()
                gain = advantage[part]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                error = F.mse_loss(value, advantage[part] + values[part])
                loss = -surrogate + 0.5 * error - 0.01 * policy.entropy().mean()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.weights, 0.5)
                self.optimizer.step()
                losses.append(loss.detach())
        return losses


class Adversaries(Research):
    """A GAN: two optimizers, a detached fake batch, spectral norm, labels that are smoothed."""

    parts = ("generator", "critic")

    def build(self) -> None:
        self.generator = nn.Sequential(
            nn.Linear(8, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())
        self.critic = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(8, 8, 4, 2, 1), nn.InstanceNorm2d(8),
            nn.LeakyReLU(0.2, True), nn.Flatten(), nn.Linear(128, 1))

    def prepare(self) -> None:
        self.first = torch.optim.Adam(self.generator.parameters(), 2e-4, (0.5, 0.999))
        self.second = torch.optim.RMSprop(self.critic.parameters(), 1e-4, momentum=0.5)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(4, 1, 16, 16), self.normal(4, 8)

    def step(self, real: Tensor, noise: Tensor) -> Any:
        judge = F.binary_cross_entropy_with_logits
        true, false = torch.full((4, 1), 0.9, dtype=real.dtype), torch.zeros(4, 1, dtype=real.dtype)
        self.second.zero_grad()
        fake = self.generator(noise)
        loss = judge(self.critic(real), true) + judge(self.critic(fake.detach()), false)
        loss.backward()
        self.second.step()
        self.first.zero_grad()
        fooled = judge(self.critic(fake), true)
        fooled.backward()
        self.first.step()
        return loss.detach(), fooled.detach(), fake.detach()


class GradientPenalty(Research):
    """A critic whose gradient with respect to its input is pushed towards norm one (create_graph)."""

    def build(self) -> None:
        self.model = mlp(10, 32, 32, 1, act=nn.SiLU)

    def prepare(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3, (0.0, 0.9))

    def batch(self) -> tuple[Any, ...]:
        return self.normal(8, 10), self.normal(8, 10), self.uniform(8, 1)

    def step(self, real: Tensor, fake: Tensor, share: Tensor) -> Any:
        between = torch.lerp(real, fake, share).requires_grad_()
        slope, = torch.autograd.grad(self.model(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        loss = self.model(fake).mean() - self.model(real).mean() + 10 * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), penalty.detach()


class LearnToLearn(Research):
    """MAML: an inner step by torch.func.grad, vmap over tasks, an outer optimizer."""

    def build(self) -> None:
        self.model = mlp(1, 20, 20, 1, act=nn.Tanh)

    def prepare(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-2, momentum=0.9, nesterov=True)

    def batch(self) -> tuple[Any, ...]:
        return tuple(self.normal(3, 5, 1) for _ in range(4))

    def step(self, x: Tensor, y: Tensor, x_after: Tensor, y_after: Tensor) -> Any:
        weights = dict(self.model.named_parameters())

        def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(functional_call(self.model, weights, (x,)), y)

        def adapted(x: Tensor, y: Tensor, x_after: Tensor, y_after: Tensor) -> Tensor:
            slopes = grad(loss_of)(weights, x, y)
            return loss_of({k: w - 0.1 * slopes[k] for k, w in weights.items()}, x_after, y_after)

        loss = vmap(adapted)(x, y, x_after, y_after).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
