"""Sequences: state spaces, sound, recommendation, reinforcement learning, recurrent nets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train
from benchmarks.gpu_programs.vision import descend


def decays(x: Tensor) -> Tensor:
    """Sums of x between any two places of its last dimension, -inf above the diagonal."""
    total = x.cumsum(-1)
    apart = total[..., :, None] - total[..., None, :]
    lower = torch.ones(apart.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return apart.masked_fill(~lower, -math.inf)


class StateSpace(nn.Module):
    """Mamba 2's layer with its scan in chunks by matrix products, as the paper's listing."""

    def __init__(self, width: int, heads: int, state: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.state, self.chunk = heads, state, chunk
        self.norm, self.gate_norm = nn.RMSNorm(width), nn.RMSNorm(2 * width)
        self.enter = nn.Linear(width, 4 * width + 2 * state + heads, bias=False)
        channels = 2 * width + 2 * state
        self.conv = nn.Conv1d(channels, channels, 4, groups=channels, padding=3)
        self.log_rate, self.skip = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.ones(heads))
        self.bias = nn.Parameter(torch.randn(heads) - 2)
        self.out = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        wide, count = 2 * x.shape[-1], x.shape[1]
        parts = self.enter(self.norm(x)).split([wide, wide + 2 * self.state, self.heads], -1)
        gate, mixed, step = parts
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :count].transpose(1, 2))
        u, b, c = mixed.split([wide, self.state, self.state], -1)
        step = F.softplus(step.float() + self.bias)
        u = u.unflatten(-1, (self.heads, -1))
        y = self.scan((u * step[..., None]).to(u.dtype), -self.log_rate.float().exp() * step, b, c)
        y = (y + u * self.skip[:, None]).flatten(2)
        return x + self.out(self.gate_norm(y * F.silu(gate)).to(x.dtype))

    def scan(self, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        u, b, c = (each.unflatten(1, (-1, self.chunk)) for each in (u, b, c))
        a = a.unflatten(1, (-1, self.chunk)).permute(0, 3, 1, 2)
        total = a.cumsum(-1)
        inside = torch.einsum("bcln,bcsn->bcls", c, b)[:, None] * decays(a).exp()
        near = torch.einsum("bhcls,bcshp->bclhp", inside.to(u.dtype), u)
        left = (total[..., -1:] - total).exp().to(u.dtype)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, left, u)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        across = decays(F.pad(total[..., -1], (1, 0))).exp().to(u.dtype)
        states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
        far = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, total.exp().to(u.dtype))
        return (near + far).flatten(1, 2)


@program
def mamba2_plain_train(compile: Compile, place: Place) -> Step:
    """Mamba 2 without kernels of its own: segment sums, masks, products over chunks, trained."""
    width, heads, state, chunk, length = place.of((16, 2, 4, 4, 16), (768, 24, 64, 64, 2048))
    layers = [StateSpace(width, heads, state, chunk) for _ in range(place.of(1, 3))]
    model = nn.Sequential(*layers).to(place.device, place.half)
    return train(compile, model, place.normal(place.of(2, 4), length, width))


@program
def xlstm_matrix_train(compile: Compile, place: Place) -> Step:
    """xLSTM's matrix memory in its parallel form, gates stabilized in log space, trained."""
    count, heads, length, size = place.of((2, 2, 12, 8), (4, 8, 1024, 128))
    q, k, v = (place.normal(count, heads, length, size, grad=True) for _ in range(3))
    enter, forget = (place.normal(count, heads, length, grad=True) for _ in range(2))
    known = place.normal(count * length, heads, size)

    def loss(q: Tensor, k: Tensor, v: Tensor, enter: Tensor, forget: Tensor) -> Tensor:
        total = F.logsigmoid(forget.float()).cumsum(-1)
        weight = total[..., :, None] - total[..., None, :] + enter.float()[..., None, :]
        lower = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        weight = weight.masked_fill(~lower, -math.inf)
        most = weight.amax(-1, keepdim=True)
        scores = (q @ k.mT) * size**-0.5 * (weight - most).exp()
        norm = torch.maximum(scores.sum(-1, keepdim=True).abs(), (-most).exp())
        out = (scores / (norm + 1e-6)).to(v.dtype) @ v
        normed = F.group_norm(out.transpose(1, 2).flatten(0, 1), heads)
        return (normed - known).float().square().mean()

    return descend(compile, loss, q, k, v, enter, forget)


class Conformer(nn.Module):
    """Half a feed-forward, attention with relative positions, a convolution, the other half."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.position = nn.Linear(width, width, bias=False)
        self.content, self.place = (nn.Parameter(torch.randn(heads, 1, width // heads) * 0.1)
                                    for _ in range(2))  # fmt: skip
        self.enter, self.leave = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)

    def attend(self, x: Tensor, positions: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = self.position(positions).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        moved = (q + self.place) @ p.mT
        moved = F.pad(moved, (1, 0)).view(n, self.heads, -1, length)[:, :, 1:]
        moved = moved.reshape(n, self.heads, length, -1)[..., :length]
        scores = ((q + self.content) @ k.mT + moved) * q.shape[-1] ** -0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + 0.5 * self.mlps[0](self.norms[0](x))
        x = x + self.attend(self.norms[1](x), positions)
        h = F.glu(self.enter(self.norms[2](x).transpose(1, 2)), dim=1)
        x = x + self.leave(F.silu(self.batch_norm(self.depth(h)))).transpose(1, 2)
        return self.norms[4](x + 0.5 * self.mlps[1](self.norms[3](x)))


@program
def conformer_train(compile: Compile, place: Place) -> Step:
    """From a wave: STFT, a mel filter, log, subsampling, masks in time and pitch, conformers."""
    count, samples, width, mels = place.of((2, 2048, 16, 8), (8, 160000, 512, 80))
    size, hop = place.of((64, 32), (512, 160))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(size))
            self.register_buffer("filters", torch.rand(size // 2 + 1, mels))
            self.first = nn.Conv2d(1, width, 3, 2, 1)
            self.second = nn.Conv2d(width, width, 3, 2, 1)
            self.enter = nn.Linear(width * (mels // 4), width)
            self.layers = nn.ModuleList(Conformer(width, 4) for _ in range(place.of(1, 4)))
            self.head = nn.Linear(width, 100)

        def forward(self, wave: Tensor, cuts: Tensor) -> Tensor:
            seen = torch.stft(wave, size, hop, window=self.window.float(), return_complex=True)
            power = seen.abs().square().transpose(1, 2) @ self.filters.float()
            x = (power + 1e-6).log()
            x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
            line = torch.arange(x.shape[1], device=x.device)
            begin = (cuts * x.shape[1]).long()[:, None]
            x = x.masked_fill(((line >= begin) & (line < begin + 10))[..., None], 0.0)
            x = x[:, None].to(self.head.weight.dtype)
            x = F.relu(self.second(F.relu(self.first(x))))
            x = self.enter(x.transpose(1, 2).flatten(2))
            line = torch.arange(1 - x.shape[1], x.shape[1], device=x.device).float()
            rates = (-torch.arange(0, width, 2, device=x.device) / width * 9.2).exp()
            angles = line.flip(0)[:, None] * rates
            positions = torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)
            for layer in self.layers:
                x = layer(x, positions)
            return self.head(x).float().log_softmax(-1)

    model = Net().to(place.device, place.half)
    wave = place.normal(count, samples, dtype=torch.float32)
    return train(compile, model, wave, torch.rand(count, device=place.device))


@program
def spectral_losses_train(compile: Compile, place: Place) -> Step:
    """A vocoder's losses: spectrograms of several sizes, in magnitude and logarithm."""
    count, samples = place.of((2, 1024), (32, 65536))
    made, real = (place.normal(count, samples, dtype=torch.float32) for _ in range(2))
    sizes = place.of((64, 128), (512, 1024, 2048))
    windows = [torch.hann_window(size, device=place.device) for size in sizes]

    def loss(made: Tensor, real: Tensor) -> Tensor:
        total = (made - real).abs().mean()
        for size, window in zip(sizes, windows, strict=True):
            a, b = (
                torch.stft(x, size, size // 4, window=window, return_complex=True).abs().clamp(1e-5)
                for x in (made, real)
            )
            total = total + (b - a).norm() / b.norm() + (a.log() - b.log()).abs().mean()
        return total

    return descend(compile, loss, made.requires_grad_(), real)


@program
def vocoder_snake(compile: Compile, place: Place) -> Step:
    """A GAN vocoder: transposed convolutions, dilated residuals of three kernels, snakes."""
    width, frames, mels = place.of((16, 8, 8), (512, 256, 80))

    class Snake(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.rate = nn.Parameter(torch.ones(width, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x + (self.rate * x).sin().square() / (self.rate + 1e-9)

    class Residual(nn.Module):
        def __init__(self, width: int, kernel: int) -> None:
            super().__init__()
            self.parts = nn.ModuleList(
                nn.Sequential(
                    Snake(width), nn.Conv1d(width, width, kernel, dilation=d, padding="same")
                )
                for d in (1, 3, 5)
            )

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts:
                x = x + part(x)
            return x

    class Vocoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Conv1d(mels, width, 7, padding=3)
            self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
            for number, rate in enumerate((8, 8, 2)):
                half = width // 2 ** (number + 1)
                self.ups.append(nn.ConvTranspose1d(2 * half, half, 2 * rate, rate, rate // 2))
                self.blocks.append(nn.ModuleList(Residual(half, k) for k in (3, 7, 11)))
            self.leave = nn.Conv1d(width // 8, 1, 7, padding=3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x)
            for up, blocks in zip(self.ups, self.blocks, strict=True):
                x = up(x)
                x = torch.stack([block(x) for block in blocks]).mean(0)
            return self.leave(x).tanh()

    model = Vocoder().to(place.device, place.half)
    return infer(compile, model, place.normal(place.of(1, 8), mels, frames))


@program
def codec_quantizers_train(compile: Compile, place: Place) -> Step:
    """A codec's residual quantizers: nearest code, straight through, codes by moving average."""
    count, length, width, codes, layers = place.of((2, 6, 8, 16, 2), (8, 1500, 128, 1024, 8))
    books = torch.randn(layers, codes, width, device=place.device)
    sizes, sums = torch.ones(layers, codes, device=place.device), books.clone()
    x = place.normal(count, length, width, dtype=torch.float32, grad=True)

    def quantize(x: Tensor, books: Tensor, sizes: Tensor, sums: Tensor) -> Tensor:
        rest, total, losses = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1), []
        for number in range(layers):
            book = books[number]
            distance = (
                rest.square().sum(1, keepdim=True) - 2 * rest @ book.t() + book.square().sum(1)
            )
            index = distance.argmin(1)
            code = F.embedding(index, book)
            losses.append(F.mse_loss(rest, code.detach()))
            with torch.no_grad():
                hits = torch.zeros_like(sizes[number]).index_add_(
                    0, index, torch.ones_like(rest[:, 0])
                )
                added = torch.zeros_like(book).index_add_(0, index, rest.detach())
                sizes[number].mul_(0.99).add_(hits, alpha=0.01)
                sums[number].mul_(0.99).add_(added, alpha=0.01)
                book.copy_(sums[number] / (sizes[number] + 1e-5)[:, None])
            code = rest + (code - rest).detach()
            rest, total = rest - code.detach(), total + code
        return F.mse_loss(total, x.flatten(0, 1).detach()) + 0.25 * torch.stack(losses).sum()

    return descend(compile, quantize, x, books, sizes, sums)


@program
def recommender_dlrm_train(compile: Compile, place: Place) -> Step:
    """DLRM: bags of embeddings, pairwise dots of features, two perceptrons, trained."""
    rows, tables, width, words = place.of((8, 3, 8, 20), (32768, 26, 64, 50000))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(
                nn.EmbeddingBag(words, width, mode="sum") for _ in range(tables)
            )
            self.low = nn.Sequential(
                nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
            )
            pairs = (tables + 1) * tables // 2
            self.high = nn.Sequential(nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 1))

        def forward(
            self, dense: Tensor, indices: Tensor, offsets: Tensor, clicked: Tensor
        ) -> Tensor:
            low = self.low(dense)
            bags = [table(i, offsets) for table, i in zip(self.tables, indices, strict=True)]
            stacked = torch.stack([low, *bags], 1)
            dots = stacked @ stacked.mT
            row, column = torch.tril_indices(tables + 1, tables + 1, offset=-1, device=dots.device)
            logits = self.high(torch.cat([low, dots[:, row, column]], 1)).squeeze(1)
            return F.binary_cross_entropy_with_logits(logits, clicked)

    indices = place.integers(words, tables, rows * 4)
    offsets = torch.arange(0, rows * 4, 4, device=place.device)
    clicked = (torch.rand(rows, device=place.device) < 0.3).float()
    dense = place.normal(rows, 13, dtype=torch.float32)
    return train(compile, Net().to(place.device), dense, indices, offsets, clicked)


@program
def ppo_advantages_train(compile: Compile, place: Place) -> Step:
    """PPO: generalized advantages by a loop back in time, clipped losses, an entropy."""
    length, count, seen, acts, width = place.of((6, 4, 5, 3, 16), (64, 4096, 64, 8, 256))
    net = nn.Sequential(nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                        nn.Linear(width, acts + 1)).to(place.device)  # fmt: skip
    states = place.normal(length + 1, count, seen, dtype=torch.float32)
    actions, rewards = place.integers(acts, length, count), torch.rand(length, count)
    rewards = rewards.to(place.device)
    done = torch.rand(length, count, device=place.device) < 0.05
    old = place.normal(length, count, dtype=torch.float32) - 2

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, states: Tensor, actions: Tensor, rewards: Tensor, done: Tensor) -> Tensor:
            logits, values = self.net(states).split([acts, 1], -1)
            values = values.squeeze(-1)
            with torch.no_grad():
                advantage, found = torch.zeros_like(values[0]), []
                for t in range(length - 1, -1, -1):
                    alive = (~done[t]).float()
                    delta = rewards[t] + 0.99 * values[t + 1] * alive - values[t]
                    advantage = delta + 0.99 * 0.95 * alive * advantage
                    found.append(advantage)
                gains = torch.stack(found[::-1])
                targets = gains + values[:-1]
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            policy = torch.distributions.Categorical(logits=logits[:-1])
            ratio = (policy.log_prob(actions) - old).exp()
            surrogate = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
            value = F.smooth_l1_loss(values[:-1], targets)
            return -surrogate + 0.5 * value - 0.01 * policy.entropy().mean()

    return train(compile, Loss(), states, actions, rewards, done)


@program
def critics_ensemble_train(compile: Compile, place: Place) -> Step:
    """SAC with critics stacked and called by vmap of functional_call; a squashed normal policy."""
    rows, seen, acts, width, critics = place.of((8, 5, 2, 16, 3), (8192, 64, 8, 512, 10))

    def perceptron(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(a, width), nn.SiLU(), nn.LayerNorm(width),
                             nn.Linear(width, width), nn.SiLU(), nn.Linear(width, b))  # fmt: skip

    policy = perceptron(seen, 2 * acts).to(place.device)
    nets = [perceptron(seen + acts, 1).to(place.device) for _ in range(critics)]
    weights, buffers = torch.func.stack_module_state(nets)
    names, values = list(weights), [w.detach().requires_grad_() for w in weights.values()]
    base = nets[0]
    state = place.normal(rows, seen, dtype=torch.float32)
    noise = place.normal(rows, acts, dtype=torch.float32)

    def loss(state: Tensor, noise: Tensor, *values: Tensor) -> Tensor:
        mean, log = policy(state).chunk(2, -1)
        log = log.clamp(-5, 2)
        raw = mean + noise * log.exp()
        action = raw.tanh()
        chance = -0.5 * noise.square() - log - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        both = torch.cat([state, action], -1)

        def call(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(base, (weights, buffers), (both,)).squeeze(-1)

        scores = torch.func.vmap(call)(dict(zip(names, values, strict=True)), buffers)
        return (0.2 * chance.sum(-1) - scores.amin(0)).mean() + scores.std(0).mean()

    return descend(compile, loss, state, noise, *values)


@program
def lstm_language_train(compile: Compile, place: Place) -> Step:
    """Two layers of LSTM and one of GRU over words, weights dropped, tied head, trained."""
    count, length, width, words = place.of((2, 5, 8, 30), (64, 128, 512, 20000))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
            self.gru = nn.GRU(width, width, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            x, state = self.lstm(self.words(tokens))
            x = x + self.gru(x, state[0][-1:].contiguous())[0]
            logits = x[:, :-1] @ self.words.weight.t()
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    model = Net().to(place.device, place.half)
    return train(compile, model, place.integers(words, count, length))
