"""Losses over vocabularies, pairs and distributions, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_programs.program import Compile, Place, Step, program


def differentiate(compile: Compile, loss: Callable[..., Tensor], *inputs: Tensor) -> Step:
    """The loss and its gradients; of a large gradient only the norm is a result."""
    compiled = compile(loss)
    wanted = [leaf for leaf in inputs if leaf.requires_grad]

    def step() -> Any:
        value = compiled(*inputs)
        value.backward()
        grads = [leaf.grad for leaf in wanted]
        for leaf in wanted:
            leaf.grad = None
        return value.detach(), [g if g.numel() < 2**24 else g.float().norm() for g in grads]

    return step


def matrix(place: Place, rows: int, columns: int) -> Tensor:
    return (place.normal(rows, columns) * columns**-0.5).requires_grad_()


@program
def loss_smoothed_z(compile: Compile, place: Place) -> Step:
    """Cross entropy with smoothing and a z-loss, behind the head's matrix."""
    rows, width, words = place.of((16, 32, 101), (4096, 2048, 50304))
    targets = place.integers(words, rows)

    def loss(hidden: Tensor, head: Tensor) -> Tensor:
        logits = (hidden @ head.t()).float()
        z = logits.logsumexp(-1).square().mean()
        return F.cross_entropy(logits, targets, label_smoothing=0.1) + 1e-4 * z

    hidden = place.normal(rows, width, grad=True)
    return differentiate(compile, loss, hidden, matrix(place, words, width))


def log_probabilities(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Of the labels of each sequence, summed where the mask is set."""
    taken = logits[:, :-1].float().log_softmax(-1).gather(2, labels[:, 1:].unsqueeze(2)).squeeze(2)
    return (taken * mask[:, 1:]).sum(-1)


@program
def loss_dpo(compile: Compile, place: Place) -> Step:
    """Chosen and rejected answers in one batch, against a frozen reference, with the metrics."""
    pairs, length, width, words = place.of((2, 12, 32, 101), (2, 1024, 2048, 50304))
    labels = place.integers(words, 2 * pairs, length)
    mask = (place.integers(4, 2 * pairs, length) > 0).float()

    def loss(hidden: Tensor, head: Tensor, reference: Tensor, frozen: Tensor) -> Tensor:
        policy = log_probabilities(hidden @ head.t(), labels, mask)
        with torch.no_grad():
            other = log_probabilities(reference @ frozen.t(), labels, mask)
        chosen, rejected = (policy - other).chunk(2)
        margin = chosen - rejected
        value = -F.logsigmoid(0.1 * margin) * 0.95 - F.logsigmoid(-0.1 * margin) * 0.05
        return value.mean()

    hidden = place.normal(2 * pairs, length, width, grad=True)
    reference, frozen = place.normal(2 * pairs, length, width), matrix(place, words, width).detach()
    return differentiate(compile, loss, hidden, matrix(place, words, width), reference, frozen)


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """Row by row, which holds the peak of memory down."""
    each = []
    for row, labels in zip(logits, index, strict=True):
        each.append(row.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1))
    return torch.stack(each)


@program
def loss_grpo(compile: Compile, place: Place) -> Step:
    """Groups of answers of one prompt, over 128k words; the rows of logits one after the other."""
    groups, each, length, words = place.of((2, 2, 6, 101), (2, 4, 256, 128256))
    tokens = place.integers(words, groups * each, length)
    mask = (place.integers(5, groups * each, length) > 0).float()
    old, reference = (place.normal(groups * each, length).float() - 11 for _ in range(2))
    rewards = place.normal(groups * each).float()

    def loss(logits: Tensor) -> Tensor:
        by_group = rewards.view(groups, each)
        centred = by_group - by_group.mean(1, keepdim=True)
        advantages = (centred / (by_group.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        new = selective_log_softmax(logits / 0.9, tokens)
        ratio = torch.exp(new - old)
        clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
        per_token = -torch.min(ratio * advantages, clipped * advantages)
        apart = reference - new
        per_token = per_token + 0.04 * (apart.exp() - apart - 1)
        return (per_token * mask).sum() / mask.sum().clamp(min=1.0)

    return differentiate(compile, loss, place.normal(groups * each, length, words, grad=True))


@program
def loss_ppo(compile: Compile, place: Place) -> Step:
    """Advantages by a loop from the end, clipped ratios and values, and an entropy bonus."""
    batch, length, words = place.of((2, 6, 101), (32, 32, 50304))
    tokens = place.integers(words, batch, length)
    old, rewards, before = (place.normal(batch, length).float() for _ in range(3))

    def loss(logits: Tensor, values: Tensor) -> Tensor:
        with torch.no_grad():
            last, backwards = torch.zeros_like(before[:, 0]), []
            for t in reversed(range(length)):
                following = before[:, t + 1] if t < length - 1 else 0.0
                last = rewards[:, t] + 0.99 * following - before[:, t] + 0.99 * 0.95 * last
                backwards.append(last)
            advantages = torch.stack(backwards[::-1], dim=1)
            returns = advantages + before
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        logs = F.log_softmax(logits.float(), dim=-1)
        new = logs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        ratio = (new - old - 11).exp()
        policy = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
        held = before + (values - before).clamp(-0.2, 0.2)
        value = 0.5 * torch.max((values - returns) ** 2, (held - returns) ** 2).mean()
        return policy + 0.5 * value - 0.01 * entropy.mean()

    logits = place.normal(batch, length, words, grad=True)
    values = place.normal(batch, length, dtype=torch.float32, grad=True)
    return differentiate(compile, loss, logits, values)


@program
def loss_orpo(compile: Compile, place: Place) -> Step:
    """Odds ratios, without a reference."""
    pairs, length, words = place.of((2, 8, 101), (4, 512, 50304))
    labels = place.integers(words, 2 * pairs, length)
    mask = labels != 0

    def loss(logits: Tensor) -> Tensor:
        logs = logits.float().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        mean = (logs * mask).sum(-1) / mask.sum(-1)
        chosen, rejected = mean.split(pairs)
        odds = chosen - rejected - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
        return (-chosen - 0.1 * F.logsigmoid(odds)).mean()

    return differentiate(compile, loss, place.normal(2 * pairs, length, words, grad=True))


@program
def loss_distill_kl(compile: Compile, place: Place) -> Step:
    """Hinton's: a teacher's distribution at a temperature and the true words."""
    rows, words = place.of((16, 101), (4096, 50304))
    teacher, targets = place.normal(rows, words) * 2, place.integers(words, rows)

    def loss(student: Tensor) -> Tensor:
        soft = F.kl_div(F.log_softmax(student.float() / 2, dim=-1),
                        F.log_softmax(teacher.float() / 2, dim=-1),
                        reduction="batchmean", log_target=True)  # fmt: skip
        return 0.5 * 4 * soft + 0.5 * F.cross_entropy(student.float(), targets)

    return differentiate(compile, loss, place.normal(rows, words, grad=True))


@program
def loss_distill_jsd(compile: Compile, place: Place) -> Step:
    """A generalized Jensen-Shannon divergence, with words that do not count."""
    rows, words, beta = place.of((16, 101, 0.3), (4096, 32000, 0.3))
    teacher, labels = place.normal(rows, words), place.integers(words, rows)
    labels[::4] = -100

    def loss(student: Tensor) -> Tensor:
        p, q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
        weights = torch.tensor([beta, 1 - beta], device=p.device).log()
        middle = torch.logsumexp(torch.stack([p + weights[0], q + weights[1]]), dim=0)
        left = F.kl_div(middle, p, reduction="none", log_target=True)
        right = F.kl_div(middle, q, reduction="none", log_target=True)
        both = (beta * left + (1 - beta) * right)[labels != -100]
        return both.sum() / both.shape[0]

    return differentiate(compile, loss, place.normal(rows, words, grad=True))


@program
def loss_chunked_ce(compile: Compile, place: Place) -> Step:
    """Chunks of rows, each recomputed in backward, so that no logits are held."""
    rows, width, words, chunks = place.of((16, 32, 101, 4), (8192, 2048, 128256, 8))
    targets = place.integers(words, rows)
    targets[::7] = -100

    def of_chunk(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden, head).float()
        return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")

    def loss(hidden: Tensor, head: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        for part, labels in zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True):
            total = total + checkpoint(of_chunk, part, head, labels, use_reentrant=False)
        return total / (targets != -100).sum()

    hidden = place.normal(rows, width, grad=True)
    return differentiate(compile, loss, hidden, matrix(place, words, width))


@program
def loss_capped_weighted(compile: Compile, place: Place) -> Step:
    """Gemma's soft cap, weights of words, and rows that are ignored."""
    rows, width, words = place.of((16, 32, 101), (4096, 2304, 65536))
    weight = torch.rand(words, device=place.device) + 0.5
    targets = place.integers(words, rows)
    targets[::3] = -100

    def loss(hidden: Tensor, head: Tensor) -> Tensor:
        logits = hidden @ head.t()
        logits = torch.tanh(logits / 30.0) * 30.0
        return F.cross_entropy(logits.float(), targets, weight=weight, ignore_index=-100)

    hidden = place.normal(rows, width, grad=True)
    return differentiate(compile, loss, hidden, matrix(place, words, width))


@program
def loss_multi_token(compile: Compile, place: Place) -> Step:
    """Four heads predict the next four words, through one unembedding."""
    batch, length, width, words = place.of((2, 12, 32, 101), (2, 1024, 1024, 32000))
    ids = place.integers(words, batch, length)

    def loss(hidden: Tensor, heads: Tensor, table: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        for ahead in range(4):
            state = F.rms_norm(hidden[:, : -ahead - 1] @ heads[ahead], (width,))
            logits = state @ table.t()
            labels = ids[:, ahead + 1 :]
            each = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
            total = total + 0.5**ahead * each.mean()
        return total

    hidden = place.normal(batch, length, width, grad=True)
    heads = (place.normal(4, width, width) * width**-0.5).requires_grad_()
    return differentiate(compile, loss, hidden, heads, matrix(place, words, width))


@program
def loss_focal_boxes(compile: Compile, place: Place) -> Step:
    """A detector's: focal loss of classes and generalized IoU of boxes, over all anchors."""
    batch, anchors, classes = place.of((2, 20, 5), (16, 65472, 80))
    labels = place.integers(classes + 1, batch, anchors)
    corners = torch.rand(batch, anchors, 4, device=place.device).sort(-1).values[..., [0, 1, 2, 3]]

    def areas(x: Tensor) -> Tensor:
        return (x[..., 2] - x[..., 0]).clamp(min=0) * (x[..., 3] - x[..., 1]).clamp(min=0)

    def loss(logits: Tensor, boxes: Tensor) -> Tensor:
        positive = labels < classes
        count = positive.sum().clamp(min=1)
        target = F.one_hot(labels, classes + 1)[..., :classes].float()
        p = logits.float().sigmoid()
        each = F.binary_cross_entropy_with_logits(logits.float(), target, reduction="none")
        true = p * target + (1 - p) * (1 - target)
        each = each * (1 - true) ** 2.0 * (0.25 * target + 0.75 * (1 - target))
        low, high = boxes[..., :2], boxes[..., :2] + boxes[..., 2:].exp()
        guess = torch.cat([low, high], -1).float()
        start = torch.max(guess[..., :2], corners[..., :2])
        end = torch.min(guess[..., 2:], corners[..., 2:])
        common = areas(torch.cat([start, end], -1))
        union = areas(guess) + areas(corners) - common
        hull = areas(torch.cat([torch.min(guess[..., :2], corners[..., :2]),
                                torch.max(guess[..., 2:], corners[..., 2:])], -1))  # fmt: skip
        giou = common / (union + 1e-7) - (hull - union) / (hull + 1e-7)
        return each.sum() / count + (torch.where(positive, 1 - giou, 0.0)).sum() / count

    logits = place.normal(batch, anchors, classes, grad=True)
    return differentiate(compile, loss, logits, place.normal(batch, anchors, 4, grad=True))


@program
def loss_dice_ce(compile: Compile, place: Place) -> Step:
    """Segmentation: dice over the classes and cross entropy with a border that is ignored."""
    batch, classes, side = place.of((2, 4, 8), (8, 32, 512))
    target = place.integers(classes, batch, side, side)
    target[:, :2] = 255

    def loss(logits: Tensor) -> Tensor:
        entropy = F.cross_entropy(logits.float(), target, ignore_index=255)
        valid = target != 255
        truth = F.one_hot(target.masked_fill(~valid, 0), classes).permute(0, 3, 1, 2).float()
        truth = truth * valid.unsqueeze(1)
        p = logits.float().softmax(1) * valid.unsqueeze(1)
        common = (p * truth).sum((0, 2, 3))
        dice = (2 * common + 1) / (p.sum((0, 2, 3)) + truth.sum((0, 2, 3)) + 1)
        return entropy + 1 - dice.mean()

    return differentiate(compile, loss, place.normal(batch, classes, side, side, grad=True))


@program
def loss_ctc(compile: Compile, place: Place) -> Step:
    frames, batch, letters, most = place.of((12, 2, 9, 4), (1024, 32, 1024, 128))
    targets = place.integers(letters - 1, batch, most) + 1
    lengths = torch.full((batch,), frames, device=place.device)
    of_targets = place.integers(most // 2, batch) + most // 2

    def loss(logits: Tensor) -> Tensor:
        logs = logits.float().log_softmax(-1)
        return F.ctc_loss(logs, targets, lengths, of_targets, zero_infinity=True)

    return differentiate(compile, loss, place.normal(frames, batch, letters, grad=True))


@program
def loss_crf(compile: Compile, place: Place) -> Step:
    """A linear chain: the score of the true tags less the sum over all, by a loop in time."""
    batch, length, tags = place.of((2, 6, 5), (512, 48, 64))
    truth = place.integers(tags, batch, length)
    mask = place.integers(8, batch, length) > 0

    def loss(emissions: Tensor, transitions: Tensor) -> Tensor:
        emissions = emissions.float()
        alpha = emissions[:, 0]
        for t in range(1, length):
            scores = alpha.unsqueeze(2) + transitions + emissions[:, t].unsqueeze(1)
            alpha = torch.where(mask[:, t, None], scores.logsumexp(1), alpha)
        taken = emissions.gather(2, truth.unsqueeze(2)).squeeze(2)
        moves = transitions[truth[:, :-1], truth[:, 1:]]
        score = taken[:, 0] + ((taken[:, 1:] + moves) * mask[:, 1:]).sum(1)
        return (alpha.logsumexp(1) - score).mean()

    emissions = place.normal(batch, length, tags, grad=True)
    transitions = place.normal(tags, tags, dtype=torch.float32, grad=True)
    return differentiate(compile, loss, emissions, transitions)


@program
def loss_clip(compile: Compile, place: Place) -> Step:
    pairs, width = place.of((16, 32), (8192, 768))

    def loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
        images = images / images.norm(dim=-1, keepdim=True)
        texts = texts / texts.norm(dim=-1, keepdim=True)
        logits = scale.exp() * images @ texts.T
        labels = torch.arange(pairs, device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    scale = torch.tensor(math.log(1 / 0.07), device=place.device).requires_grad_()
    images, texts = (place.normal(pairs, width, grad=True) for _ in range(2))
    return differentiate(compile, loss, images, texts, scale)


@program
def loss_siglip(compile: Compile, place: Place) -> Step:
    pairs, width = place.of((16, 32), (8192, 768))

    def loss(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        images, texts = F.normalize(images, dim=-1), F.normalize(texts, dim=-1)
        logits = images @ texts.T * scale.exp() + bias
        signs = 2 * torch.eye(pairs, device=logits.device) - 1
        return -F.logsigmoid(signs * logits).sum() / pairs

    scale = torch.tensor(math.log(10.0), device=place.device).requires_grad_()
    bias = torch.tensor(-10.0, device=place.device).requires_grad_()
    images, texts = (place.normal(pairs, width, grad=True) for _ in range(2))
    return differentiate(compile, loss, images, texts, scale, bias)


@program
def loss_info_nce(compile: Compile, place: Place) -> Step:
    """SimCLR: two views of each image, all others are negatives, oneself is masked."""
    images, width = place.of((8, 16), (4096, 128))

    def loss(left: Tensor, right: Tensor) -> Tensor:
        z = F.normalize(torch.cat([left, right]), dim=1)
        similar = z @ z.t() / 0.1
        itself = torch.eye(2 * images, dtype=torch.bool, device=z.device)
        similar = similar.masked_fill(itself, torch.finfo(similar.dtype).min)
        positive = torch.arange(2 * images, device=z.device).roll(images)
        return F.cross_entropy(similar, positive)

    return differentiate(compile, loss, *(place.normal(images, width, grad=True) for _ in range(2)))


@program
def loss_supervised_contrast(compile: Compile, place: Place) -> Step:
    rows, width, classes = place.of((16, 16, 3), (8192, 128, 100))
    labels = place.integers(classes, rows)

    def loss(features: Tensor) -> Tensor:
        z = F.normalize(features, dim=-1)
        logits = (z @ z.T / 0.07).float()
        logits = logits - logits.max(dim=1, keepdim=True).values.detach()
        other = ~torch.eye(rows, dtype=torch.bool, device=z.device)
        same = (labels[:, None] == labels[None, :]) & other
        logs = logits - torch.log((logits.exp() * other).sum(1, keepdim=True))
        return -((same * logs).sum(1) / same.sum(1).clamp(min=1)).mean()

    return differentiate(compile, loss, place.normal(rows, width, grad=True))


@program
def loss_triplet_hard(compile: Compile, place: Place) -> Step:
    """The farthest of one's own class and the nearest of the others."""
    rows, width, classes = place.of((16, 16, 4), (4096, 512, 64))
    labels = place.integers(classes, rows)

    def loss(features: Tensor) -> Tensor:
        features = features.float()
        squared = features.square().sum(1)
        distance = (squared[:, None] - 2 * features @ features.t() + squared[None]).clamp(min=0)
        distance = torch.where(distance == 0, 1e-16, distance).sqrt()
        same = labels[:, None] == labels[None]
        far = (distance * same).amax(1)
        near = (distance + distance.max().detach() * same).amin(1)
        hard = F.relu(far - near + 0.3)
        return hard.sum() / (hard > 0).sum().clamp(min=1)

    return differentiate(compile, loss, place.normal(rows, width, grad=True))


@program
def loss_arcface(compile: Compile, place: Place) -> Step:
    """An angular margin on the true class, of many identities."""
    rows, width, classes = place.of((16, 16, 50), (1024, 512, 100000))
    labels = place.integers(classes, rows)

    def loss(features: Tensor, table: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(features), F.normalize(table)).float().clamp(-1, 1)
        rows_of = torch.arange(rows, device=cosine.device)
        true = cosine[rows_of, labels]
        moved = torch.cos(torch.acos(true.clamp(-1 + 1e-7, 1 - 1e-7)) + 0.5)
        moved = torch.where(true > math.cos(math.pi - 0.5), moved, true - 0.5 * math.sin(0.5))
        logits = cosine.clone()
        logits[rows_of, labels] = moved
        return F.cross_entropy(logits * 64.0, labels)

    features = place.normal(rows, width, grad=True)
    return differentiate(compile, loss, features, matrix(place, classes, width))


@program
def loss_vicreg(compile: Compile, place: Place) -> Step:
    rows, width = place.of((8, 16), (2048, 8192))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        def spread(z: Tensor) -> tuple[Tensor, Tensor]:
            z = z - z.mean(0)
            std = torch.sqrt(z.var(0) + 1e-4)
            covariance = z.T @ z / (rows - 1)
            off = covariance.flatten()[:-1].view(width - 1, width + 1)[:, 1:].flatten()
            return F.relu(1 - std).mean() / 2, off.pow(2).sum() / width

        (deviation_x, covariance_x), (deviation_y, covariance_y) = spread(x), spread(y)
        alike = 25 * F.mse_loss(x, y)
        return alike + 25 * (deviation_x + deviation_y) + covariance_x + covariance_y

    return differentiate(compile, loss, *(place.normal(rows, width, grad=True) for _ in range(2)))


@program
def loss_sinkhorn(compile: Compile, place: Place) -> Step:
    """DINO's and SwAV's: prototypes given out evenly by a few scalings, and cross entropy."""
    rows, prototypes, width = place.of((16, 8, 16), (4096, 8192, 256))

    def loss(student: Tensor, teacher: Tensor, table: Tensor) -> Tensor:
        with torch.no_grad():
            q = torch.exp(F.normalize(teacher, dim=-1) @ F.normalize(table, dim=-1).t() / 0.05).t()
            q = q / q.sum()
            for _ in range(3):
                q = q / q.sum(dim=1, keepdim=True) / prototypes
                q = q / q.sum(dim=0, keepdim=True) / rows
            q = (q * rows).t()
        logits = F.normalize(student, dim=-1) @ F.normalize(table, dim=-1).t()
        return -(q * F.log_softmax(logits / 0.1, dim=-1)).sum(-1).mean()

    student, teacher = place.normal(rows, width, grad=True), place.normal(rows, width)
    return differentiate(compile, loss, student, teacher, matrix(place, prototypes, width))


@program
def loss_rank_list(compile: Compile, place: Place) -> Step:
    """A reward model's pairs and a ranker's list: the likelihood of an order, of sorted scores."""
    lists, length = place.of((2, 8), (16384, 256))
    relevance, bad = place.normal(lists, length).float(), place.integers(9, lists, length) == 0

    def loss(scores: Tensor) -> Tensor:
        order = relevance.sort(descending=True, dim=-1).indices
        by_truth = scores.float().gather(1, order).masked_fill(bad.gather(1, order), float("-inf"))
        highest = by_truth.max(dim=1, keepdim=True).values
        tail = (by_truth - highest).exp().flip(1).cumsum(1).flip(1)
        each = torch.log(tail + 1e-10) - (by_truth - highest)
        each = each.masked_fill(bad.gather(1, order), 0.0)
        pairs = -F.logsigmoid(scores[:, 0] - scores[:, 1] - 0.1)
        return each.sum(1).mean() + pairs.mean()

    return differentiate(compile, loss, place.normal(lists, length, grad=True))


@program
def loss_mixture_density(compile: Compile, place: Place) -> Step:
    """The likelihood of a mixture of normal distributions, through torch.distributions."""
    rows, parts = place.of((16, 3), (262144, 32))
    target = place.normal(rows).float()

    def loss(raw: Tensor) -> Tensor:
        logits, mean, scale = raw.float().chunk(3, dim=-1)
        parts_of = torch.distributions.Normal(mean, F.softplus(scale) + 1e-3, validate_args=False)
        choice = torch.distributions.Categorical(logits=logits, validate_args=False)
        mixture = torch.distributions.MixtureSameFamily(choice, parts_of, validate_args=False)
        return -mixture.log_prob(target).mean() - 0.01 * choice.entropy().mean()

    return differentiate(compile, loss, place.normal(rows, 3 * parts, grad=True))
