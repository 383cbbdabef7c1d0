"""Mixtures of experts: routers, dispatch in the several ways that people write, whole models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, built, infer, program, train


def weights(place: Place, *size: int) -> nn.Parameter:
    made = torch.randn(size, device=place.device, dtype=place.half)
    return nn.Parameter(made * size[-2] ** -0.5)


class Experts(nn.Module):
    """The weights of gated experts, and how sorted tokens go through them."""

    def __init__(self, place: Place, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.count = count
        self.gate = weights(place, count, width, inner)
        self.up = weights(place, count, width, inner)
        self.down = weights(place, count, inner, width)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        gate = torch._grouped_mm(x, self.gate, offs=ends)
        up = torch._grouped_mm(x, self.up, offs=ends)
        return torch._grouped_mm(F.silu(gate) * up, self.down, offs=ends)


class Sorted(nn.Module):
    """Softmax, the k best, tokens sorted by expert, grouped products, and a weighted sum."""

    def __init__(self, place: Place, count: int, k: int, width: int, inner: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False, device=place.device, dtype=place.half)
        self.experts = Experts(place, count, width, inner)
        self.k = k

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = F.softmax(self.router(x), dim=-1, dtype=torch.float32)
        top, chosen = scores.topk(self.k, dim=-1)
        return top / top.sum(-1, keepdim=True), chosen, scores

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        x = x.reshape(-1, width)
        top, chosen, scores = self.route(x)
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.experts.count)
        ends = counts.cumsum(0).to(torch.int32)
        rows = order // self.k
        y = self.experts(x[rows], ends)
        y = y * top.reshape(-1)[order].unsqueeze(-1).to(y.dtype)
        out = torch.zeros_like(x).index_add(0, rows, y)
        share = counts.float() / flat.numel()
        auxiliary = self.experts.count * (share * scores.mean(0)).sum()
        return out.reshape(batch, length, width), auxiliary


@program
def experts_sorted_train(compile: Compile, place: Place) -> Step:
    """Training of a layer of 64 experts, 8 a token, with the loss that balances them."""
    count, k, width, inner = place.of((4, 2, 32, 48), (64, 8, 2048, 1024))
    model = Sorted(place, count, k, width, inner)
    return train(compile, model, place.normal(2, place.of(16, 4096), width))


@program
def experts_sorted_prefill(compile: Compile, place: Place) -> Step:
    count, k, width, inner = place.of((4, 2, 32, 48), (128, 8, 2048, 768))
    model = Sorted(place, count, k, width, inner)
    return infer(compile, model, place.normal(1, place.of(16, 8192), width))


class Balanced(Sorted):
    """Sigmoid scores in groups, a bias without gradient that keeps the load even, and an expert
    that all tokens share."""

    bias: Tensor
    load: Tensor

    def __init__(self, place: Place, count: int, k: int, width: int, inner: int) -> None:
        super().__init__(place, count, k, width, inner)
        self.register_buffer("bias", torch.zeros(count, device=place.device))
        self.register_buffer("load", torch.zeros(count, device=place.device))
        factory: dict[str, Any] = {"bias": False, "device": place.device, "dtype": place.half}
        self.shared_in = nn.Linear(width, 2 * inner, **factory)
        self.shared_out = nn.Linear(inner, width, **factory)
        self.groups, self.best = 4, 2

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.router(x).float().sigmoid()
        with torch.no_grad():
            biased = scores + self.bias
            grouped = biased.view(x.shape[0], self.groups, -1)
            of_group = grouped.topk(2, dim=-1).values.sum(-1)
            groups = of_group.topk(self.best, dim=-1, sorted=False).indices
            allowed = torch.zeros_like(of_group).scatter_(1, groups, 1).bool()
            masked = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
            chosen = masked.topk(self.k, dim=-1, sorted=False).indices
        top = scores.gather(1, chosen)
        top = top / (top.sum(-1, keepdim=True) + 1e-20) * 2.5
        if self.training:
            with torch.no_grad():
                count = self.load.numel()
                self.load.add_(torch.histc(chosen.float(), count, min=0, max=count - 1))
        return top, chosen, scores

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = self.shared_in(x).chunk(2, dim=-1)
        routed, auxiliary = super().forward(x)
        return routed + self.shared_out(F.silu(gate) * up), auxiliary


@program
def experts_balanced_train(compile: Compile, place: Place) -> Step:
    """A layer as DeepSeek-V3's, with the bias moved against the load after each step."""
    count, k, width, inner = place.of((8, 2, 32, 48), (64, 6, 2048, 1024))
    model = Balanced(place, count, k, width, inner)
    inner_step = train(compile, model, place.normal(2, place.of(16, 2048), width))

    @torch.no_grad()
    def rebalance() -> None:
        model.bias.add_(torch.sign(model.load.mean() - model.load), alpha=1e-3)
        model.load.zero_()

    after = compile(rebalance)

    def step() -> Any:
        result = inner_step()
        after()
        return result, model.bias.clone()

    return step


class Choosing(nn.Module):
    """Each expert takes its favourite tokens (expert choice)."""

    def __init__(self, place: Place, count: int, width: int, inner: int, factor: int = 2) -> None:
        super().__init__()
        self.router = weights(place, width, count)
        self.first = weights(place, count, width, inner)
        self.second = weights(place, count, inner, width)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = x.shape
        count = self.router.shape[1]
        scores = (x @ self.router).float().softmax(-1)
        top, rows = scores.t().topk(tokens * self.factor // count, dim=-1)
        taken = x[rows]
        y = torch.bmm(F.gelu(torch.bmm(taken, self.first)), self.second)
        y = y * top.unsqueeze(-1).to(y.dtype)
        return torch.zeros_like(x).index_add_(0, rows.flatten(), y.flatten(0, 1))


@program
def experts_choice_train(compile: Compile, place: Place) -> Step:
    count, width, inner = place.of((4, 32, 64), (32, 2048, 4096))
    model = Choosing(place, count, width, inner)
    return train(compile, model, place.normal(place.of(32, 8192), width))


class Capacity(nn.Module):
    """Switch and GShard: one-hot tensors dispatch and combine; what is over the capacity drops."""

    def __init__(self, place: Place, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.router = weights(place, width, count)
        self.first = weights(place, count, width, inner)
        self.second = weights(place, count, inner, width)
        self.count = count

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        groups, tokens, _ = x.shape
        capacity = int(1.25 * 2 * tokens / self.count)
        logits = torch.einsum("gtd,de->gte", x, self.router).float()
        scores = logits.softmax(-1)
        top, chosen = scores.topk(2, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        picked = F.one_hot(chosen, self.count)
        # first choices come before second ones in the queue of an expert
        queue = picked.transpose(1, 2).reshape(groups, 2 * tokens, self.count)
        position = (queue.cumsum(1) - 1).view(groups, 2, tokens, self.count).transpose(1, 2)
        kept = picked * (position < capacity)
        place_of = (position * kept).sum(-1)
        slots = F.one_hot(place_of, capacity).to(x.dtype)
        kept = kept.to(x.dtype)
        dispatch = torch.einsum("gtke,gtkc->gtec", kept, slots)
        combine = torch.einsum("gtk,gtke,gtkc->gtec", top.to(x.dtype), kept, slots)
        inputs = torch.einsum("gtec,gtd->egcd", dispatch, x)
        hidden = torch.einsum("egcd,edf->egcf", inputs, self.first).relu()
        outputs = torch.einsum("egcf,efd->egcd", hidden, self.second)
        y = torch.einsum("gtec,egcd->gtd", combine, outputs)
        density = picked[:, :, 0].float().mean(1)
        balance = (density * scores.mean(1)).mean() * self.count**2
        return y, balance, logits.logsumexp(-1).square().mean() * 1e-3


@program
def experts_capacity_train(compile: Compile, place: Place) -> Step:
    groups, tokens, count, width, inner = place.of((2, 16, 4, 32, 64), (16, 512, 16, 1024, 4096))
    model = Capacity(place, count, width, inner)
    return train(compile, model, place.normal(groups, tokens, width))


class Looped(nn.Module):
    """The loop over experts of the first Mixtral: `torch.where` and `index_add_`."""

    def __init__(self, place: Place, count: int, width: int, inner: int) -> None:
        super().__init__()
        factory: dict[str, Any] = {"bias": False, "device": place.device, "dtype": place.half}
        self.gate = nn.Linear(width, count, **factory)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner, **factory), nn.SiLU(),
                          nn.Linear(inner, width, **factory)) for _ in range(count)
        )  # fmt: skip

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        hidden = hidden.view(-1, width)
        routing = F.softmax(self.gate(hidden), dim=1, dtype=torch.float)
        routing, selected = torch.topk(routing, 2, dim=-1)
        routing = (routing / routing.sum(dim=-1, keepdim=True)).to(hidden.dtype)
        final = torch.zeros_like(hidden)
        mask = F.one_hot(selected, num_classes=len(self.experts)).permute(2, 1, 0)
        for index, expert in enumerate(self.experts):
            k, rows = torch.where(mask[index])
            current = expert(hidden[None, rows].reshape(-1, width)) * routing[rows, k, None]
            final.index_add_(0, rows, current.to(hidden.dtype))
        return final.view(batch, length, width)


@program
def experts_loop_infer(compile: Compile, place: Place) -> Step:
    count, width, inner = place.of((4, 32, 64), (8, 4096, 8192))
    model = Looped(place, count, width, inner)
    return infer(compile, model, place.normal(2, place.of(8, 1024), width))


@program
def experts_loop_train(compile: Compile, place: Place) -> Step:
    count, width, inner = place.of((4, 32, 64), (8, 2048, 4096))
    model = Looped(place, count, width, inner)
    return train(compile, model, place.normal(2, place.of(8, 1024), width))


class Gathered(nn.Module):
    """Decoding of few tokens: the weights of the chosen experts are gathered."""

    def __init__(self, place: Place, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, device=place.device, dtype=place.half)
        self.gate = nn.Linear(width, count, bias=False, device=place.device, dtype=place.half)
        self.w1 = weights(place, count, inner, width)
        self.w2 = weights(place, count, width, inner)
        self.w3 = weights(place, count, inner, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        top, chosen = F.softmax(self.gate(normed), dim=-1).topk(2, dim=-1)
        top = top / top.sum(dim=-1, keepdim=True)
        w1, w2, w3 = self.w1[chosen], self.w2[chosen], self.w3[chosen]
        first = F.silu(torch.einsum("ti,taoi->tao", normed, w1))
        third = torch.einsum("ti,taoi->tao", normed, w3)
        outs = torch.einsum("tao,taio->tai", first * third, w2)
        return x + torch.einsum("tai,ta->ti", outs, top)


@program
def experts_gathered_decode(compile: Compile, place: Place) -> Step:
    """Four layers of eight experts, one token, in a CUDA graph."""
    count, width, inner = place.of((4, 32, 48), (8, 4096, 7168))
    model = nn.Sequential(*(Gathered(place, count, width, inner) for _ in range(place.of(2, 4))))
    return infer(compile, model, place.normal(1, width), mode="reduce-overhead")


@program
def experts_gathered_batch(compile: Compile, place: Place) -> Step:
    """The same for eight sequences at once."""
    count, width, inner = place.of((4, 32, 48), (64, 2048, 1024))
    model = nn.Sequential(*(Gathered(place, count, width, inner) for _ in range(place.of(2, 6))))
    return infer(compile, model, place.normal(8, width), mode="reduce-overhead")


class Depths(nn.Module):
    """A mixture of depths: a block takes an eighth of the tokens, the rest pass by."""

    def __init__(self, place: Place, width: int, heads: int) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": place.device, "dtype": place.half}
        self.router = nn.Linear(width, 1, **factory)
        self.norms = nn.ModuleList(nn.LayerNorm(width, **factory) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, **factory)
        self.out = nn.Linear(width, width, **factory)
        self.up = nn.Linear(width, 4 * width, **factory)
        self.down = nn.Linear(4 * width, width, **factory)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        logits = self.router(x).squeeze(-1)
        top, chosen = logits.topk(length // 8, dim=1, sorted=False)
        chosen, order = chosen.sort(dim=1)
        top = top.gather(1, order)
        index = chosen.unsqueeze(-1).expand(-1, -1, width)
        taken = x.gather(1, index)
        q, k, v = (part.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norms[0](taken)).chunk(3, dim=-1))  # fmt: skip
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = taken + self.out(y.transpose(1, 2).reshape(batch, -1, width))
        y = y + self.down(F.gelu(self.up(self.norms[1](y)), approximate="tanh"))
        return x.scatter_add(1, index, (y - taken) * top.sigmoid().unsqueeze(-1))


@program
def experts_depths_train(compile: Compile, place: Place) -> Step:
    width, heads, layers = place.of((32, 2, 2), (2048, 16, 6))
    model = nn.Sequential(*(Depths(place, width, heads) for _ in range(layers)))
    return train(compile, model, place.normal(place.of(2, 4), place.of(32, 4096), width))


class Adapted(nn.Module):
    """A frozen linear layer and a routed mixture of LoRA adapters, computed densely."""

    def __init__(self, place: Place, width: int, count: int, rank: int) -> None:
        super().__init__()
        factory: dict[str, Any] = {"bias": False, "device": place.device, "dtype": place.half}
        self.base = nn.Linear(width, width, **factory).requires_grad_(False)
        self.router = nn.Linear(width, count, **factory)
        self.a = weights(place, count, width, rank)
        self.b = weights(place, count, rank, width)

    def forward(self, x: Tensor) -> Tensor:
        top, chosen = self.router(x).softmax(-1, dtype=torch.float32).topk(2, dim=-1)
        share = torch.zeros(*x.shape[:-1], self.a.shape[0], device=x.device)
        share = share.scatter(-1, chosen, top / top.sum(-1, keepdim=True)).to(x.dtype)
        low = torch.einsum("bti,eir->bter", x, self.a) * share.unsqueeze(-1)
        return F.silu(self.base(x) + torch.einsum("bter,ero->bto", low, self.b) * 2.0) + x


@program
def experts_lora_train(compile: Compile, place: Place) -> Step:
    width, count, rank, layers = place.of((32, 4, 4, 2), (4096, 8, 16, 6))
    model = nn.Sequential(*(Adapted(place, width, count, rank) for _ in range(layers)))
    return train(compile, model, place.normal(2, place.of(8, 2048), width))


@program
def experts_soft_train(compile: Compile, place: Place) -> Step:
    """Soft mixtures: slots are averages of tokens, tokens averages of slots; no choice at all."""
    count, slots, width, inner = place.of((4, 4, 32, 64), (32, 64, 1024, 4096))

    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phi = nn.Parameter(place.normal(width, count, slots) * width**-0.5)
            self.scale = nn.Parameter(torch.ones((), device=place.device, dtype=place.half))
            self.first = weights(place, count, width, inner)
            self.second = weights(place, count, inner, width)

        def forward(self, x: Tensor) -> Tensor:
            phi = self.scale * F.normalize(self.phi, dim=0)
            logits = torch.einsum("btd,des->btes", F.normalize(x, dim=-1), phi)
            dispatch = logits.softmax(1)
            combine = logits.flatten(2).softmax(-1).view_as(logits)
            inputs = torch.einsum("btd,btes->besd", x, dispatch)
            hidden = F.gelu(torch.einsum("besd,edf->besf", inputs, self.first))
            outputs = torch.einsum("besf,efd->besd", hidden, self.second)
            return torch.einsum("besd,btes->btd", outputs, combine)

    return train(compile, Soft(), place.normal(place.of(2, 8), place.of(16, 1024), width))


def transformer(place: Place, kind: str, large: dict[str, Any], small: dict[str, Any]) -> nn.Module:
    """A model of transformers for text, with random weights."""
    import transformers

    common = place.of(
        {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2},
        {"vocab_size": 32768, "hidden_size": 2048, "num_hidden_layers": 2,
         "num_attention_heads": 16, "num_key_value_heads": 4},
    )  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**common | place.of(small, large))
    model: nn.Module = built(place, getattr(transformers, f"{kind}ForCausalLM"), config)
    return model


def tokens(place: Place, batch: int, length: int) -> Tensor:
    return place.integers(place.of(101, 32768), place.of(2, batch), place.of(16, length))


def train_words(compile: Compile, place: Place, model: nn.Module) -> Step:
    """The model's own loss, with the loss of the router where it has one."""
    ids = tokens(place, 2, 2048)
    model.train()
    return train(compile, model, criterion=lambda out: out.loss, input_ids=ids, labels=ids,
                 use_cache=False)  # fmt: skip


@program
def mixtral_train(compile: Compile, place: Place) -> Step:
    few = {"num_local_experts": 4, "output_router_logits": True}
    many = few | {"num_local_experts": 8, "intermediate_size": 4096}
    return train_words(compile, place, transformer(place, "Mixtral", many, few))


@program
def qwen3_moe_prefill(compile: Compile, place: Place) -> Step:
    few = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    many = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "head_dim": 128, "intermediate_size": 6144}  # fmt: skip
    model = transformer(place, "Qwen3Moe", many, few)
    return infer(compile, model, input_ids=tokens(place, 2, 2048), use_cache=False)


@program
def deepseek_v3_train(compile: Compile, place: Place) -> Step:
    few = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
           "moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 16,
           "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
           "num_key_value_heads": 4}  # fmt: skip
    many = {"n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1024,
            "first_k_dense_replace": 1, "q_lora_rank": 768, "kv_lora_rank": 512,
            "intermediate_size": 8192, "num_key_value_heads": 16}  # fmt: skip
    return train_words(compile, place, transformer(place, "DeepseekV3", many, few))


@program
def olmoe_train(compile: Compile, place: Place) -> Step:
    few = {"num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    many = few | {"num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 1024}
    return train_words(compile, place, transformer(place, "Olmoe", many, few))


@program
def gpt_oss_prefill(compile: Compile, place: Place) -> Step:
    """Sinks, windows in every other layer, and experts with clamped gates and biases."""
    few = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 8}
    many = {"num_local_experts": 32, "num_experts_per_tok": 4, "head_dim": 64,
            "num_attention_heads": 32, "sliding_window": 128,
            "intermediate_size": 2048}  # fmt: skip
    model = transformer(place, "GptOss", many, few)
    return infer(compile, model, input_ids=tokens(place, 2, 1024), use_cache=False)


@program
def granite_moe_train(compile: Compile, place: Place) -> Step:
    few = {"num_local_experts": 4, "num_experts_per_tok": 2}
    many = few | {"num_local_experts": 32, "num_experts_per_tok": 8, "intermediate_size": 512}
    return train_words(compile, place, transformer(place, "GraniteMoe", many, few))
