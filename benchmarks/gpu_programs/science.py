"""Science: graphs and molecules, operators over fields, solvers, flows, kernels, physics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train
from benchmarks.gpu_programs.vision import descend


def edges_of(place: Place, nodes: int, degree: int) -> Tensor:
    return place.integers(nodes, 2, nodes * degree)


class Layer(nn.Module):
    """A layer of a graph attention network with softmax over a node's incoming edges."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Parameter(torch.randn(heads, width // heads) * 0.1)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        left = self.left(x).view(len(x), self.heads, -1)
        right = self.right(x).view(len(x), self.heads, -1)
        sent = left[source]
        score = (F.leaky_relu(sent + right[target], 0.2) * self.score).sum(-1).float()
        index = target[:, None].expand(-1, self.heads)
        most = score.new_full((len(x), self.heads), -math.inf)
        most = most.scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - most[target]).exp()
        total = weight.new_zeros(len(x), self.heads).index_add(0, target, weight)
        weight = (weight / (total[target] + 1e-9)).to(x.dtype)
        mixed = torch.zeros_like(left).index_add(0, target, sent * weight[..., None])
        return self.norm(x + F.elu(mixed.flatten(1)))


class Graph(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x)


@program
def graph_attention_train(compile: Compile, place: Place) -> Step:
    """GATv2 with a softmax over edges by scatter_reduce and index_add, trained."""
    nodes, width = place.of((30, 16), (50000, 256))
    model = Graph(width, 4, place.of(2, 3)).to(place.device, place.half)
    return train(compile, model, place.normal(nodes, width), edges_of(place, nodes, 8))


@program
def graph_library_train(compile: Compile, place: Place) -> Step:
    """A stack of torch_geometric's layers of three kinds with a pool over graphs, trained."""
    from torch_geometric import nn as layers

    nodes, width, graphs = place.of((30, 16, 3), (60000, 256, 1024))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            perceptron = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            self.sage, self.gin = layers.SAGEConv(width, width), layers.GINConv(perceptron)
            self.gcn = layers.GCNConv(width, width)

        def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
            x = self.sage(x, edges).relu()
            x = x + self.gin(x, edges).relu()
            x = x + self.gcn(x, edges)
            return layers.global_mean_pool(x, batch, size=graphs)

    batch = place.integers(graphs, nodes).sort().values
    edges = edges_of(place, nodes, 8)
    return train(compile, Net().to(place.device), place.normal(nodes, width).float(), edges, batch)


@program
def molecule_forces_train(compile: Compile, place: Place) -> Step:
    """SchNet: an energy from distances, forces as its gradient, and a loss of both."""
    atoms, width, degree = place.of((12, 16, 4), (20000, 128, 24))

    class Potential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds = nn.Embedding(20, width)
            self.filters = nn.ModuleList(
                nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
                for _ in range(3)
            )
            self.enter = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
            self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

        def forward(self, kinds: Tensor, places: Tensor, edges: Tensor) -> Tensor:
            source, target = edges
            distance = ((places[source] - places[target]).square().sum(-1) + 1e-6).sqrt()
            centers = torch.linspace(0, 5, 32, device=places.device)
            basis = (-10 * (distance[:, None] - centers) ** 2).exp()
            cutoff = 0.5 * ((distance * math.pi / 5).cos() + 1) * (distance < 5)
            x = self.kinds(kinds)
            for filters, enter in zip(self.filters, self.enter, strict=True):
                sent = enter(x)[source] * filters(basis) * cutoff[:, None]
                x = x + F.silu(torch.zeros_like(x).index_add(0, target, sent))
            return self.out(x).sum()

    model = Potential().to(place.device)
    kinds, edges = place.integers(20, atoms), edges_of(place, atoms, degree)
    places = torch.randn(atoms, 3, device=place.device)
    known = torch.randn(atoms, 3, device=place.device)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, places: Tensor, known: Tensor) -> Tensor:
            places = places.detach().requires_grad_()
            energy = self.net(kinds, places, edges)
            (slope,) = torch.autograd.grad(energy, places, create_graph=True)
            return (energy / atoms) ** 2 + 10 * (slope + known).square().mean()

    return train(compile, Loss(), places, known)


@program
def equivariant_train(compile: Compile, place: Place) -> Step:
    """PaiNN: scalars and vectors per atom, messages along edges, gated updates, trained."""
    atoms, width, degree = place.of((12, 16, 4), (20000, 128, 16))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message = nn.ModuleList(
                nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
                for _ in range(3)
            )
            self.filters = nn.ModuleList(nn.Linear(20, 3 * width) for _ in range(3))
            self.mix = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(3))
            self.update = nn.ModuleList(nn.Linear(2 * width, 3 * width) for _ in range(3))

        def forward(self, s: Tensor, places: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            source, target = edges
            apart = places[source] - places[target]
            distance = apart.norm(dim=-1, keepdim=True).clamp(min=1e-2)
            waves = torch.arange(1, 21, device=places.device) * math.pi / 5
            basis = (distance * waves).sin() / distance
            unit = (apart / distance)[..., None]
            v = s.new_zeros(len(s), 3, width)
            parts = zip(self.message, self.filters, self.mix, self.update, strict=True)
            for message, filters, mix, update in parts:
                scalar, gate, along = (message(s)[source] * filters(basis)).chunk(3, -1)
                s = s + torch.zeros_like(s).index_add(0, target, scalar)
                sent = v[source] * gate[:, None] + unit * along[:, None]
                v = v + torch.zeros_like(v).index_add(0, target, sent)
                first, second = mix(v).chunk(2, -1)
                length = (second.square().sum(1) + 1e-8).sqrt()
                a, b, c = update(torch.cat([s, length], -1)).chunk(3, -1)
                v = v + first * a[:, None]
                s = s + b + c * (first * second).sum(1)
            return s, v

    model = Net().to(place.device)
    places = torch.randn(atoms, 3, device=place.device) * 3
    scalars = place.normal(atoms, width, dtype=torch.float32)
    return train(compile, model, scalars, places, edges_of(place, atoms, degree))


@program
def equivariant_library(compile: Compile, place: Place) -> Step:
    """e3nn's spherical harmonics and a gated tensor product over edges, summed at nodes."""
    from e3nn import o3

    nodes, degree = place.of((10, 3), (40000, 16))
    copies = place.of(4, 32)
    features = o3.Irreps(f"{copies}x0e + {copies}x1o")
    product = o3.FullyConnectedTensorProduct(
        features, o3.Irreps("1x0e + 1x1o"), features, shared_weights=True
    ).to(place.device)
    edges = edges_of(place, nodes, degree)

    def convolve(x: Tensor, places: Tensor) -> Tensor:
        apart = places[edges[0]] - places[edges[1]]
        harmonics = o3.spherical_harmonics([0, 1], apart, True, normalization="component")
        sent = product(x[edges[0]], harmonics)
        return torch.zeros_like(x).index_add(0, edges[1], sent) / math.sqrt(degree)

    x = place.normal(nodes, features.dim, dtype=torch.float32)
    return infer(compile, convolve, x, torch.randn(nodes, 3, device=place.device))


class Spectral(nn.Module):
    """A Fourier layer: a complex matrix for each low frequency, and a pointwise path."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / width
        self.first = nn.Parameter(scale * torch.randn(width, width, modes, modes, 2))
        self.second = nn.Parameter(scale * torch.randn(width, width, modes, modes, 2))
        self.skip = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        modes, spectrum = self.modes, torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros_like(spectrum)
        low, high = spectrum[:, :, :modes, :modes], spectrum[:, :, -modes:, :modes]
        first, second = torch.view_as_complex(self.first), torch.view_as_complex(self.second)
        out[:, :, :modes, :modes] = torch.einsum("nihw,iohw->nohw", low, first)
        out[:, :, -modes:, :modes] = torch.einsum("nihw,iohw->nohw", high, second)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:], norm="ortho") + self.skip(x))


@program
def fourier_operator_train(compile: Compile, place: Place) -> Step:
    """FNO over a plane with the relative error in Sobolev's norm, trained."""
    width, modes, size, count = place.of((8, 3, 16, 2), (64, 16, 128, 16))
    layers = [Spectral(width, modes) for _ in range(place.of(2, 4))]
    model = nn.Sequential(nn.Conv2d(3, width, 1), *layers, nn.Conv2d(width, 1, 1))
    model.to(place.device)
    x, y = (place.normal(count, n, size, size, dtype=torch.float32) for n in (3, 1))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            waves = torch.fft.fftfreq(size, 1 / size, device=x.device).square()
            weight = (1 + waves[:, None] + waves[None, : size // 2 + 1]).sqrt()
            apart = torch.fft.rfft2(self.net(x) - y) * weight
            whole = torch.fft.rfft2(y) * weight
            sums = (each.abs().square().sum((1, 2, 3)) for each in (apart, whole))
            return torch.div(*sums).mean()

    return train(compile, Loss(), x, y)


@program
def neural_ode_train(compile: Compile, place: Place) -> Step:
    """torchdiffeq's Runge-Kutta of fixed steps through a perceptron, trained."""
    from torchdiffeq import odeint

    rows, width = place.of((8, 16), (16384, 512))

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                nn.Linear(width, width),
            )  # fmt: skip

        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            return self.net(x) * (1 - t)

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = Slope()
            self.register_buffer("times", torch.linspace(0, 1, 5))

        def forward(self, x: Tensor) -> Tensor:
            return odeint(self.slope, x, self.times, method="rk4")

    model = Flow().to(place.device)
    return train(compile, model, place.normal(rows, width, dtype=torch.float32))


@program
def gravity_steps(compile: Compile, place: Place) -> Step:
    """Leapfrog over bodies that all attract each other, a call for each step."""
    bodies, count = place.of((16, 1), (4096, 4))

    def advance(x: Tensor, v: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def pull(x: Tensor) -> Tensor:
            apart = x[:, None, :, :] - x[:, :, None, :]
            inverse = (apart.square().sum(-1) + 1e-2).rsqrt() ** 3
            return (apart * (inverse * mass[:, None, :])[..., None]).sum(2)

        v = v + 0.005 * pull(x)
        x = x + 0.01 * v
        v = v + 0.005 * pull(x)
        return x, v, 0.5 * (mass * v.square().sum(-1)).sum(-1)

    compiled = compile(advance)
    x, v = (place.normal(count, bodies, 3, dtype=torch.float32) for _ in range(2))
    mass = torch.rand(count, bodies, device=place.device) / bodies

    @torch.no_grad()
    def step() -> Any:
        now = (x, v)
        for _ in range(3):
            *now, energy = compiled(*now, mass)
        return now, energy

    return step


@program
def physics_informed_train(compile: Compile, place: Place) -> Step:
    """Burgers' equation at points: first and second derivatives by functional transforms."""
    points, width = place.of((16, 12), (65536, 256))
    model = nn.Sequential(
        nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1),
    ).to(place.device)  # fmt: skip
    where = torch.rand(points, 2, device=place.device)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, where: Tensor) -> Tensor:
            x, t = where[:, :1].detach().requires_grad_(), where[:, 1:].detach().requires_grad_()
            u = self.net(torch.cat([x, t], 1))
            one = torch.ones_like(u)
            along, later = torch.autograd.grad(u, (x, t), one, create_graph=True)
            (bent,) = torch.autograd.grad(along, x, one, create_graph=True)
            residual = later + u * along - 0.01 / math.pi * bent
            start = self.net(torch.cat([x, torch.zeros_like(t)], 1)) + (math.pi * x).sin()
            return residual.square().mean() + start.square().mean()

    return train(compile, Loss(), where)


class Coupling(nn.Module):
    """A rational-quadratic spline of half the coordinates, given the other half."""

    def __init__(self, size: int, width: int, bins: int) -> None:
        super().__init__()
        self.half, self.bins = size // 2, bins
        self.net = nn.Sequential(
            nn.Linear(self.half, width), nn.SiLU(), nn.Linear(width, self.half * (3 * bins - 1))
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fixed, moved = x[:, : self.half], x[:, self.half :]
        raw = self.net(fixed).view(len(x), self.half, -1)
        widths, heights, slopes = raw.split([self.bins, self.bins, self.bins - 1], dim=-1)
        inside = (moved >= -3) & (moved <= 3)
        y = moved.clamp(-3, 3)
        edges = F.pad(6 * widths.softmax(-1).cumsum(-1) - 3, (1, 0), value=-3.0)
        levels = F.pad(6 * heights.softmax(-1).cumsum(-1) - 3, (1, 0), value=-3.0)
        slope = F.pad(F.softplus(slopes) + 1e-3, (1, 1), value=1.0)
        at = (y[..., None] >= edges[..., 1:-1]).sum(-1, keepdim=True)

        def here(table: Tensor, more: int = 0) -> Tensor:
            return table.gather(-1, at + more).squeeze(-1)

        left, wide = here(edges), here(edges, 1) - here(edges)
        low, high = here(levels), here(levels, 1) - here(levels)
        first, second, mean = here(slope), here(slope, 1), high / wide
        t = (y - left) / wide
        below = mean + (first + second - 2 * mean) * t * (1 - t)
        out = low + high * (mean * t**2 + first * t * (1 - t)) / below
        rise = second * t**2 + 2 * mean * t * (1 - t) + first * (1 - t) ** 2
        log = 2 * mean.log() + rise.log() - 2 * below.log()
        moved = torch.where(inside, out, moved)
        return torch.cat([moved, fixed], 1), torch.where(inside, log, 0.0).sum(1)


@program
def spline_flow_train(compile: Compile, place: Place) -> Step:
    """A normalizing flow of splines: the density's logarithm, trained."""
    rows, size, width, bins = place.of((8, 4, 16, 4), (16384, 32, 256, 16))

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Coupling(size, width, bins) for _ in range(place.of(2, 4)))

        def forward(self, x: Tensor) -> Tensor:
            total = x.new_zeros(len(x))
            for part in self.parts:
                x, log = part(x)
                total = total + log
            return 0.5 * x.square().sum(1).mean() - total.mean()

    return train(compile, Flow().to(place.device), place.normal(rows, size, dtype=torch.float32))


@program
def gaussian_process_train(compile: Compile, place: Place) -> Step:
    """The marginal likelihood with a kernel per dimension, by a Cholesky factor."""
    points, size = place.of((12, 3), (4096, 16))
    x = place.normal(points, size, dtype=torch.float32)
    y = x.sin().sum(1)
    scales = torch.zeros(size, device=place.device, requires_grad=True)
    noise = torch.tensor(-1.0, device=place.device, requires_grad=True)

    def loss(scales: Tensor, noise: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scaled = x / scales.exp()
        square = scaled.square().sum(1)
        distance = (square[:, None] + square[None] - 2 * scaled @ scaled.t()).clamp(min=0)
        root = (5 * distance + 1e-8).sqrt()
        kernel = (1 + root + root**2 / 3) * (-root).exp()
        kernel = kernel + noise.exp() * torch.eye(points, device=x.device)
        factor = torch.linalg.cholesky(kernel)
        solved = torch.cholesky_solve(y[:, None], factor).squeeze(1)
        return 0.5 * y @ solved / points + factor.diagonal().log().sum() / points

    return descend(compile, loss, scales, noise, x, y)


@program
def kalman_filter_train(compile: Compile, place: Place) -> Step:
    """A bank of Kalman filters over a series, their likelihood, and gradients of the models."""
    count, size, seen, length = place.of((3, 3, 2, 5), (4096, 8, 4, 24))
    move = (torch.eye(size, device=place.device) * 0.9).expand(count, -1, -1).clone()
    move = (move + 0.01 * torch.randn_like(move)).requires_grad_()
    look = place.normal(count, seen, size, dtype=torch.float32, grad=True)
    series = place.normal(length, count, seen, dtype=torch.float32)

    def loss(move: Tensor, look: Tensor, series: Tensor) -> Tensor:
        eye = torch.eye(size, device=move.device)
        state, spread = series.new_zeros(count, size, 1), eye.expand(count, -1, -1)
        total = series.new_zeros(())
        for number in range(length):
            state = move @ state
            spread = move @ spread @ move.mT + 0.1 * eye
            error = series[number][..., None] - look @ state
            cover = look @ spread @ look.mT + 0.5 * torch.eye(seen, device=move.device)
            factor = torch.linalg.cholesky(cover)
            gain = torch.cholesky_solve(look @ spread, factor).mT
            state = state + gain @ error
            rest = eye - gain @ look
            spread = rest @ spread @ rest.mT + 0.5 * gain @ gain.mT
            whitened = torch.linalg.solve_triangular(factor, error, upper=False)
            half = factor.diagonal(dim1=-2, dim2=-1).log().sum()
            total = total + half + 0.5 * whitened.square().sum()
        return total / (count * length)

    return descend(compile, loss, move, look, series)
