"""Gradients of the default backend on models of `transformers`, against eager in float64.

    python benchmarks/gradients.py            # all models, in training mode and in evaluation
    python benchmarks/gradients.py t5 swin

Small configurations with random weights and no dropout. For the loss and for every parameter's
gradient the error of the compiled float32 model against eager in float64 is compared with the error
of eager in float32. A row ends with `ok` where the largest ratio is below `MOST`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from dynamo.testing import assert_compiled

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 67,
}  # fmt: skip
# Models that have gradients in training mode only.
ONLY_TRAINING = frozenset({"reformer"})
# The error may be this many times that of float32 eager.
MOST = 8.0
# Of the largest value of a tensor: errors below it are rounding of another order of sums.
FLOOR = 1e-6


def ids(size: int = 12) -> dict[str, Any]:
    given = torch.randint(3, 67, (2, size))
    mask = torch.ones_like(given)
    mask[1, size - 3 :] = 0
    return {"input_ids": given, "attention_mask": mask}


def image(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def text_to_text() -> dict[str, Any]:
    return {**ids(), "labels": torch.randint(3, 67, (2, 7))}


Row = tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]
# Module, model class, settings of its configuration, inputs.
MODELS: dict[str, Row] = {
    "albert": ("albert", "AlbertModel", {**SMALL, "embedding_size": 16}, ids),
    "electra": ("electra", "ElectraModel", {**SMALL, "embedding_size": 16}, ids),
    "mobilebert": ("mobilebert", "MobileBertModel", {
        **SMALL, "embedding_size": 16, "intra_bottleneck_size": 32,
        "num_feedforward_networks": 2}, ids),
    "deberta_v2": ("deberta_v2", "DebertaV2Model", {
        **SMALL, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "max_relative_positions": 16}, ids),
    "t5": ("t5", "T5ForConditionalGeneration", {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 67,
        "decoder_start_token_id": 0, "pad_token_id": 0}, text_to_text),
    "funnel": ("funnel", "FunnelModel", {
        "vocab_size": 67, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32,
        "n_head": 4, "d_head": 8, "d_inner": 48}, ids),
    "xlnet": ("xlnet", "XLNetModel", {
        "vocab_size": 67, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, ids),
    "reformer": ("reformer", "ReformerModel", {
        "vocab_size": 67, "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
        "feed_forward_size": 48, "attn_layers": ["local", "local"], "axial_pos_shape": [4, 4],
        "axial_pos_embds_dim": [16, 16], "local_attn_chunk_length": 4, "is_decoder": False},
        lambda: ids(16)),
    "segformer": ("segformer", "SegformerModel", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 16,
        "num_attention_heads": [1, 2, 2, 4], "drop_path_rate": 0.0}, image),
    "swin": ("swin", "SwinModel", {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4, "drop_path_rate": 0.0}, image),
    "wav2vec2": ("wav2vec2", "Wav2Vec2Model", {
        **SMALL, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
        "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0,
        "apply_spec_augment": False, "num_feat_extract_layers": 2},
        lambda: {"input_values": torch.randn(2, 400)}),
    "vits": ("vits", "VitsTextEncoder", {
        **SMALL, "ffn_dim": 48, "flow_size": 32, "layerdrop": 0.0},
        lambda: {"input_ids": ids()["input_ids"], "padding_mask": torch.ones(2, 12, 1)}),
}  # fmt: skip


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model with random weights, without dropout, and its inputs."""
    module, cls, settings, inputs = MODELS[name]
    package = importlib.import_module(f"transformers.models.{module}")
    config_class = next(item for item in dir(package) if item.endswith("Config"))
    torch.manual_seed(0)
    config = getattr(package, config_class)(**settings)
    for key, value in vars(config).items():
        if ("dropout" in key or key.endswith("_drop")) and isinstance(value, float):
            setattr(config, key, 0.0)
    home = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    model = getattr(home, cls)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms are made with ones and zeros
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model, inputs()


def as_double(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs in float64, where they are no indices."""
    return {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The floating point tensors of a model's result that have a gradient."""
    if isinstance(result, torch.Tensor):
        return [result] if result.requires_grad else []
    if isinstance(result, dict):
        return tensors_of(list(result.values()))
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in tensors_of(part)]
    return []


def run(model: Any, call: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The loss and the gradients."""
    model.zero_grad()
    torch.manual_seed(1)
    results = tensors_of(call(**inputs))
    loss = torch.stack([value.tanh().square().mean() for value in results]).sum()
    loss.backward()
    found = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach().double(), **found}


def worst_ratio(exact: Any, eager: Any, found: Any) -> tuple[float, str]:
    """How many times larger the error is than eager's, and where."""
    assert exact.keys() == eager.keys() == found.keys(), set(eager) ^ set(found)
    largest = max(float(value.abs().max()) for value in exact.values())
    worst = (0.0, "")
    for name, value in exact.items():
        floor = FLOOR * max(float(value.abs().max()), 1e-3 * largest)
        error, allowed = ((other[name] - value).abs().max() for other in (found, eager))
        worst = max(worst, (float(error) / max(float(allowed), floor), name))
    return worst


def check(name: str, training: bool) -> tuple[float, str, int]:
    """The worst ratio, where it is, and the number of graphs."""
    model, inputs = build(name)
    model.train(training or name in ONLY_TRAINING)
    double = copy.deepcopy(model).double()
    exact = run(double, double, as_double(inputs))
    eager = run(model, model, inputs)
    dynamo.reset()
    before = dynamo.counters["stats"]["graphs"]
    compiled = dynamo.compile(model)
    run(model, compiled, inputs)
    found = run(model, compiled, inputs)
    assert_compiled()
    ratio, where = worst_ratio(exact, eager, found)
    return ratio, where, dynamo.counters["stats"]["graphs"] - before


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    failed = 0
    for name in parser.parse_args().models or MODELS:
        for training in (True, False):
            start = time.perf_counter()
            try:
                ratio, where, graphs = check(name, training)
                good = ratio < MOST
                text = f"error {ratio:6.2f} x eager's ({where}), {graphs} graphs"
            except Exception as error:  # one model must not end the others
                good, text = False, f"{type(error).__name__}: {str(error)[:300]}"
            failed += not good
            mode, end = ("evaluation", "training")[training], ("FAILS", "ok")[good]
            seconds = time.perf_counter() - start
            print(f"{name:12} {mode:10} {text} {seconds:.0f} s {end}", flush=True)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
