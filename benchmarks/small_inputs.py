"""Guessed inputs of a model, by the names that its `forward` takes and the sizes it has."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Arguments = dict[str, torch.Tensor]
TOKENS = 12  # in a text


def guesses(model: nn.Module) -> Iterator[Arguments]:
    """Inputs to try, the most telling of a grid of patches first, then the commonest."""
    taken = inspect.signature(model.forward).parameters
    yield from with_grid(model.config, taken)
    yield from (guess for guess in common() if all(name in taken for name in guess))
    for names in TOGETHER:
        if all(name in taken for name in names) and covers(names, taken):
            yield from named(model.config, names)


def common() -> Iterator[Arguments]:
    ids = text()
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    image = torch.randn(2, 3, 32, 32)
    yield {"input_ids": ids, "attention_mask": mask}
    yield {"input_ids": ids}
    yield {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :7]}
    yield {"pixel_values": image}
    yield {"pixel_values": torch.randn(2, 3, 64, 64)}
    yield {"pixel_values": torch.randn(1, 3, 224, 224)}
    yield {"input_ids": ids, "attention_mask": mask, "pixel_values": image}
    yield {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(2, 3, 224, 224)}
    yield {"input_values": torch.randn(2, 1600)}
    yield {"input_values": torch.randn(2, 16000)}
    yield {"input_features": torch.randn(2, 80, 64), "decoder_input_ids": ids[:, :7]}
    yield {"input_features": torch.randn(2, 64, 80)}
    yield {"pixel_values": torch.randn(2, 4, 3, 32, 32)}
    yield {"inputs_embeds": torch.randn(2, TOKENS, 32)}
    yield {"past_values": torch.randn(2, 32, 2)}


def text(length: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, 90, (2, length))


def covers(names: tuple[str, ...], taken: Any) -> bool:
    """Whether the names are all that a function needs."""
    needed = (
        name
        for name, one in taken.items()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    )
    return set(needed) <= set(names)


def find(config: Any, names: str, otherwise: Any = None) -> Any:
    """The value of the first of the names that a configuration, or one inside it, has."""
    from transformers import PretrainedConfig

    for name in names.split():
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    for inside in vars(config).values():
        if isinstance(inside, PretrainedConfig):
            value = find(inside, names)
            if value is not None:
                return value
    return otherwise


# -- patches in a grid ----------------------------------------------------------------------------


GRID = (1, 4, 4)  # frames, rows, columns


def with_grid(config: Any, taken: Any) -> Iterator[Arguments]:
    """Patches of one image, alone or with a text that has a place for each group of them."""
    if "grid_thw" not in taken and "image_grid_thw" not in taken:
        return
    vision = getattr(config, "vision_config", config)
    side = find(vision, "patch_size", 8)
    frames = find(vision, "temporal_patch_size", 1)
    width = find(vision, "in_channels in_chans num_channels", 3) * side * side * frames
    count = GRID[0] * GRID[1] * GRID[2]
    grid = torch.tensor([GRID])
    if "grid_thw" in taken:
        key = "hidden_states" if "hidden_states" in taken else "pixel_values"
        yield {key: torch.randn(2 * count, width), "grid_thw": torch.cat([grid, grid])}
        yield {key: torch.randn(2 * count, 3, side, side), "grid_thw": torch.cat([grid, grid])}
        return
    merged = find(vision, "spatial_merge_size merge_size", 2)
    merged = merged if isinstance(merged, int) else merged[0]
    places = count // merged**2
    ids = text(TOKENS + places)[:1]
    ids[0, 3 : 3 + places] = find(config, "image_token_id image_token_index", 90)
    kinds = torch.zeros_like(ids)
    kinds[0, 3 : 3 + places] = 1
    for pixels in (torch.randn(count, width), torch.randn(count, 3, side, side)):
        made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        made |= {"pixel_values": pixels, "image_grid_thw": grid}
        if "mm_token_type_ids" in taken:
            made["mm_token_type_ids"] = kinds
        yield made


# -- by name --------------------------------------------------------------------------------------

TOGETHER: tuple[tuple[str, ...], ...] = tuple(
    tuple(line.split())
    for line in """
    past_values past_time_features past_observed_mask future_values future_time_features
    past_values past_observed_mask
    input_ids attention_mask bbox
    input_ids attention_mask visual_feats visual_pos
    input_ids attention_mask input_features
    input_ids attention_mask pixel_values decoder_input_ids
    input_ids attention_mask pixel_values qformer_input_ids qformer_attention_mask
    input_ids attention_mask pixel_values
    states actions rewards returns_to_go timesteps attention_mask
    input_features decoder_input_ids
    input_features
    input_features input_values
    input_values decoder_input_values
    input_values decoder_input_ids
    input_values
    pixel_values input_points
    pixel_values
    query_embeds encoder_hidden_states
    """.strip().splitlines()
)
Made = Iterator[torch.Tensor]


def named(config: Any, names: tuple[str, ...]) -> Iterator[Arguments]:
    """All ways to make inputs of these names."""
    ways = [list(MAKERS[name](config)) for name in names]
    for values in itertools.product(*ways):
        yield dict(zip(names, values, strict=True))


def ids_of(length: int) -> Callable[[Any], Made]:
    def make(config: Any) -> Made:
        yield text(length)

    return make


def mask_of(length: int) -> Callable[[Any], Made]:
    def make(config: Any) -> Made:
        mask = torch.ones(2, length, dtype=torch.int64)
        mask[1, length - length // 4 :] = 0
        yield mask

    return make


def of_shape(*shape: int) -> Callable[[Any], Made]:
    def make(config: Any) -> Made:
        yield torch.randn(shape)

    return make


def images(config: Any) -> Made:
    side = find(config, "image_size", 32)
    side = side if isinstance(side, int) else side[0]
    channels = find(config, "num_channels in_channels", 3)
    yield torch.randn(2, channels, side, side)
    yield torch.randn(2, channels, 64, 64)


def spectra(config: Any) -> Made:
    bins = find(config, "num_mel_bins num_mel_channels input_feat_size feature_size n_mels", 80)
    for length in (64, 2 * find(config, "max_source_positions", 32), 256):
        yield torch.randn(2, length, bins)
        yield torch.randn(2, bins, length)


def sounds(config: Any) -> Made:
    yield torch.randn(2, 1600)
    yield torch.randn(2, 1, 1920)
    yield torch.randn(2, 1, 16000)
    yield torch.randn(2, find(config, "max_length", 64), find(config, "num_mel_bins", 128))


def boxes(config: Any) -> Made:
    corner = torch.randint(0, 16, (2, TOKENS, 2))
    yield torch.cat([corner, corner + torch.randint(1, 16, (2, TOKENS, 2))], -1)
    yield torch.rand(2, TOKENS, 8)


def series(config: Any) -> Made:
    """Past values: the context and what the longest lag needs."""
    lags = max(getattr(config, "lags_sequence", None) or [0])
    length = find(config, "context_length", 32) + lags
    many = find(config, "num_input_channels", 1)
    yield torch.rand(2, length) if many == 1 else torch.rand(2, length, many)
    yield torch.rand(2, length, many)


def times(key: str) -> Callable[[Any], Made]:
    """Features of as many steps as another input has."""

    def make(config: Any) -> Made:
        length = next(series(config)).shape[1] if key == "past" else config.prediction_length
        yield torch.rand(2, length, max(config.num_time_features, 1))

    return make


def observed(config: Any) -> Made:
    for values in series(config):
        yield torch.ones_like(values)


def tokens_of(names: str, otherwise: int) -> Callable[[Any], Made]:
    """Vectors of a width that the configuration names."""

    def make(config: Any) -> Made:
        yield torch.randn(2, TOKENS, find(config, names, otherwise))

    return make


MAKERS: dict[str, Callable[[Any], Made]] = {
    "input_ids": ids_of(TOKENS),
    "attention_mask": mask_of(TOKENS),
    "decoder_input_ids": ids_of(7),
    "qformer_input_ids": ids_of(5),
    "qformer_attention_mask": mask_of(5),
    "bbox": boxes,
    "visual_feats": tokens_of("visual_feat_dim", 2048),
    "visual_pos": of_shape(2, TOKENS, 4),
    "pixel_values": images,
    "input_features": spectra,
    "input_values": sounds,
    "decoder_input_values": tokens_of("num_mel_bins", 80),
    "past_values": series,
    "past_observed_mask": observed,
    "past_time_features": times("past"),
    "future_time_features": times("future"),
    "future_values": lambda config: iter([torch.rand(2, config.prediction_length)]),
    "states": tokens_of("state_dim", 17),
    "actions": tokens_of("act_dim", 4),
    "rewards": of_shape(2, TOKENS, 1),
    "returns_to_go": of_shape(2, TOKENS, 1),
    "timesteps": lambda config: iter([torch.arange(TOKENS).expand(2, TOKENS)]),
    "query_embeds": tokens_of("hidden_size", 32),
    "encoder_hidden_states": tokens_of("encoder_hidden_size", 32),
    "input_points": of_shape(2, 1, 3, 2),
}
