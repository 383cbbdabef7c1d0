"""Agents and learning to learn: world models, actors and critics, tasks with inner steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, built, program, train


class World(nn.Module):
    """Dreamer's world model: a recurrent state with discrete parts, priors and posteriors."""

    def __init__(self, actions: int, width: int, kinds: int, seen: int) -> None:
        super().__init__()
        self.kinds, self.width = kinds, width
        self.enter = nn.Linear(kinds * kinds + actions, width)
        self.gru = nn.Linear(2 * width, 3 * width)
        self.norm = nn.LayerNorm(3 * width)
        self.prior = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, kinds**2))
        self.post = nn.Sequential(nn.Linear(width + seen, width), nn.SiLU(),
                                  nn.Linear(width, kinds**2))  # fmt: skip
        self.out = nn.Linear(width + kinds * kinds, seen)

    def logits(self, x: Tensor) -> Tensor:
        p = x.unflatten(-1, (self.kinds, self.kinds)).float().softmax(-1)
        return (0.99 * p + 0.01 / self.kinds).log()

    def draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        p = logits.softmax(-1)
        hard = F.one_hot((logits + noise).argmax(-1), self.kinds).to(p.dtype)
        return (hard + p - p.detach()).flatten(-2)

    def forward(self, seen: Tensor, acts: Tensor, first: Tensor, noise: Tensor) -> Tensor:
        h = seen.new_zeros(len(seen), self.width)
        z = seen.new_zeros(len(seen), self.kinds**2)
        total = seen.new_zeros((), dtype=torch.float32)
        for t in range(seen.shape[1]):
            keep = (1 - first[:, t])[:, None]
            h, z = h * keep, z * keep
            x = F.silu(self.enter(torch.cat([z, acts[:, t] * keep], -1)))
            reset, new, update = self.norm(self.gru(torch.cat([x, h], -1))).chunk(3, -1)
            update = (update - 1).sigmoid()
            h = update * (reset.sigmoid() * new).tanh() + (1 - update) * h
            prior, post = self.logits(self.prior(h)), self.logits(
                self.post(torch.cat([h, seen[:, t]], -1)))
            z = self.draw(post, noise[:, t]).to(h.dtype)
            wrong = (self.out(torch.cat([h, z], -1)) - seen[:, t]).square().mean(-1).float()
            apart = lambda a, b: (a.exp() * (a - b)).sum((-2, -1)).clamp(min=1)  # noqa: E731
            total = total + (wrong + 0.5 * apart(post.detach(), prior)
                             + 0.1 * apart(post, prior.detach())).mean()  # fmt: skip
        return total / seen.shape[1]


@program
def world_model_train(compile: Compile, place: Place) -> Step:
    batch, steps, width, kinds, seen = place.of((2, 3, 8, 4, 6), (64, 16, 512, 32, 256))
    model = built(place, World, 6, width, kinds, seen)
    first = (torch.rand(batch, steps, device=place.device) < 0.1).to(place.half)
    noise = -torch.empty(batch, steps, kinds, kinds, device=place.device).exponential_().log()
    return train(compile, model, place.normal(batch, steps, seen), place.normal(batch, steps, 6),
                 first, noise)  # fmt: skip


@program
def actor_critic_step(compile: Compile, place: Place) -> Step:
    """SAC: critics, an actor with squashed noise, a temperature; three optimizers, one step."""
    batch, seen, acts, width = place.of((4, 5, 2, 16), (4096, 64, 8, 512))

    def net(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(a, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                             nn.Linear(width, b)).to(place.device)  # fmt: skip

    actor = net(seen, 2 * acts)
    critics, targets = ([net(seen + acts, 1) for _ in range(2)] for _ in range(2))
    for critic, target in zip(critics, targets, strict=True):
        target.load_state_dict(critic.state_dict())
    log_alpha = torch.zeros((), device=place.device, requires_grad=True)
    rates = {"lr": 3e-4, "capturable": place.device == "cuda"}
    of_critics = torch.optim.Adam([p for c in critics for p in c.parameters()], **rates)
    of_actor = torch.optim.Adam(actor.parameters(), **rates)
    of_alpha = torch.optim.Adam([log_alpha], **rates)

    def act(x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(x).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        raw = mean + log_std.exp() * noise
        logp = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1, keepdim=True)
        logp = logp - (2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1, keepdim=True)
        return raw.tanh(), logp

    @compile
    def update(x: Tensor, a: Tensor, r: Tensor, x2: Tensor, done: Tensor, noise: Tensor) -> Tensor:
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = act(x2, noise[0])
            both = torch.min(*(target(torch.cat([x2, a2], -1)) for target in targets))
            wanted = r + 0.99 * (1 - done) * (both - alpha * logp2)
        here = torch.cat([x, a], -1)
        of_q = sum(F.mse_loss(critic(here), wanted) for critic in critics)
        of_critics.zero_grad()
        of_q.backward()
        of_critics.step()
        a1, logp = act(x, noise[1])
        q = torch.min(*(critic(torch.cat([x, a1], -1)) for critic in critics))
        of_a = (alpha * logp - q).mean()
        of_actor.zero_grad()
        of_a.backward()
        of_actor.step()
        of_t = -(log_alpha * (logp.detach() - acts)).mean()
        of_alpha.zero_grad()
        of_t.backward()
        of_alpha.step()
        with torch.no_grad():
            for critic, target in zip(critics, targets, strict=True):
                for new, old in zip(critic.parameters(), target.parameters(), strict=True):
                    old.lerp_(new, 0.005)
        return torch.stack([of_q.detach(), of_a.detach(), of_t.detach()])

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, device=place.device)

    given = (
        numbers(batch, seen), numbers(batch, acts).tanh(), numbers(batch, 1), numbers(batch, seen),
        (numbers(batch, 1) > 1).float(), numbers(2, batch, acts))  # fmt: skip
    return lambda: update(*given)


class Decisions(nn.Module):
    """Decision Transformer: returns, states and actions in turns, causal, actions are predicted."""

    def __init__(self, seen: int, acts: int, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.of_return, self.of_state = nn.Linear(1, width), nn.Linear(seen, width)
        self.of_action, self.of_time = nn.Linear(acts, width), nn.Embedding(1000, width)
        self.norm, self.heads = nn.LayerNorm(width), 4
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, acts)

    def forward(self, r: Tensor, s: Tensor, a: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        time = self.of_time(t)
        parts = [self.of_return(r) + time, self.of_state(s) + time, self.of_action(a) + time]
        x = torch.stack(parts, 1).permute(0, 2, 1, 3).flatten(1, 2)
        x = self.norm(x)
        seen = torch.stack([mask] * 3, 1).permute(0, 2, 1).flatten(1)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        allowed = causal & seen[:, None, None, :]
        for n, qkv in enumerate(self.qkv):
            q, k, v = qkv(self.norms[2 * n](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
            x = x + self.out[n](mixed.transpose(1, 2).flatten(2))
            x = x + self.down[n](F.gelu(self.up[n](self.norms[2 * n + 1](x))))
        predicted = self.head(x.unflatten(1, (-1, 3))[:, :, 1]).tanh()
        return ((predicted - a).square().mean(-1) * mask).sum() / mask.sum()


@program
def decisions_train(compile: Compile, place: Place) -> Step:
    batch, length, width = place.of((2, 4, 16), (64, 60, 256))
    model = built(place, Decisions, 17, 6, width, length, place.of(1, 4))
    mask = torch.arange(length, device=place.device) >= place.integers(length // 2, batch)[:, None]
    start = place.integers(900, batch)
    return train(
        compile, model, place.normal(batch, length, 1), place.normal(batch, length, 17),
        place.normal(batch, length, 6), start[:, None] + torch.arange(length, device=place.device),
        mask)  # fmt: skip


@program
def inner_steps_train(compile: Compile, place: Place) -> Step:
    """MAML: a few inner steps for each task by `torch.func`, all tasks by vmap, an outer loss."""
    tasks, shots, width = place.of((2, 3, 8), (64, 64, 256))
    net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                        nn.Linear(width, 1)).to(place.device)  # fmt: skip

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, y: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
            start = dict(self.net.named_parameters())

            def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
                return F.mse_loss(torch.func.functional_call(self.net, weights, (x,)), y)

            def adapted(x: Tensor, y: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
                weights = start
                for _ in range(3):
                    grads = torch.func.grad(loss)(weights, x, y)
                    weights = {name: weights[name] - 0.01 * grads[name] for name in weights}
                return loss(weights, x2, y2)

            return torch.func.vmap(adapted)(x, y, x2, y2).mean()

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, device=place.device)

    return train(compile, Outer(), numbers(tasks, shots, 8), numbers(tasks, shots, 1),
                 numbers(tasks, shots, 8), numbers(tasks, shots, 1))  # fmt: skip


@program
def quantile_agent_train(compile: Compile, place: Place) -> Step:
    """A distributional agent (QR-DQN): dueling heads over frames, Huber's loss of quantiles."""
    batch, acts, count, side = place.of((2, 3, 4, 36), (256, 18, 200, 84))

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = nn.Sequential(
                nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
            size = ((((side - 8) // 4 + 1) - 4) // 2 + 1 - 2) ** 2 * 64
            self.value, self.gain = (
                nn.Sequential(nn.Linear(size, 512), nn.ReLU(), nn.Linear(512, n * count))
                for n in (1, acts))

        def quantiles(self, frames: Tensor) -> Tensor:
            h = self.see(frames / 255)
            value = self.value(h).view(-1, 1, count)
            gain = self.gain(h).view(-1, acts, count)
            return value + gain - gain.mean(1, keepdim=True)

        def forward(self, x: Tensor, a: Tensor, r: Tensor, x2: Tensor, done: Tensor) -> Tensor:
            rows = torch.arange(len(x), device=x.device)
            with torch.no_grad():
                after = self.quantiles(x2)
                after = after[rows, after.mean(-1).argmax(1)]
                wanted = r[:, None] + 0.99 * (1 - done[:, None]) * after
            here = self.quantiles(x)[rows, a]
            apart = wanted[:, None, :] - here[:, :, None]
            taus = (torch.arange(count, device=x.device) + 0.5) / count
            huber = F.huber_loss(here[:, :, None].expand_as(apart),
                                 wanted[:, None, :].expand_as(apart), reduction="none")  # fmt: skip
            return (huber * (taus[:, None] - (apart.detach() < 0).float()).abs()).sum(1).mean()

    frames = [place.integers(256, batch, 4, side, side).to(place.half) for _ in range(2)]
    done = (torch.rand(batch, device=place.device) < 0.1).to(place.half)
    return train(compile, built(place, Agent), frames[0], place.integers(acts, batch),
                 place.normal(batch), frames[1], done)  # fmt: skip
