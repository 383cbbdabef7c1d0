"""transformers and accelerate with this compiler, in a line: Trainer, Accelerator, `generate`.

In: a Trainer or an Accelerator. Out: the same, and each model that it prepares from then on is
compiled in place. Exists because both know backends of torch.compile by a closed list of names;
what they were told of compiling (`TrainingArguments(torch_compile=True, torch_compile_mode=...)`,
`Accelerator(dynamo_backend=...)`) holds here instead.

Or in: a model with `generate`. Out: the same, what runs for each token compiled. Exists because the
loop around `forward` computes positions and masks with some twenty small operators a token, which
on a GPU take as long to start as a small model takes to run. No library is imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from dynamo.api import compile, compile_in_place

Host = TypeVar("Host")
Model = TypeVar("Model")
# What calls torch.compile; the first also shards a model, which comes before compiling.
PREPARING = ("prepare", "prepare_model")


def compile_prepared(host: Host, **arguments: Any) -> Host:
    """Has this compiler compile what a Trainer or an Accelerator prepares; to be said once, before
    that.

    arguments: those of `dynamo.compile`; they win over what the host was told of torch.compile. A
    model is compiled as a whole, `use_regional_compilation` or not. Returns the host. Errors:
    TypeError for what prepares no models; those of `dynamo.compile` when a model is prepared.

    ```python
    trainer = compile_prepared(Trainer(model=model, args=args, train_dataset=data))
    accelerator = compile_prepared(Accelerator(), mode="max-autotune")
    ```
    """
    accelerator: Any = getattr(host, "accelerator", host)
    if not all(callable(getattr(accelerator, name, None)) for name in PREPARING):
        raise TypeError(f"compile_prepared takes a Trainer or an Accelerator, not {host!r}")
    plugin = accelerator.state.dynamo_plugin
    for name in PREPARING:
        prepare = functools.partial(_prepare, getattr(accelerator, name), plugin, arguments)
        setattr(accelerator, name, prepare)
    return host


# What `generate` calls for each token beside `forward`.
AROUND_FORWARD = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")


def compile_generation(model: Model, **arguments: Any) -> Model:
    """Compiles what `model.generate` of transformers runs for each token: `forward`, and what makes
    its inputs of the last token.

    arguments: for `forward`, those of `dynamo.compile`; where they say nothing of a mode, options
    or a backend, the mode is "reduce-overhead". The rest is compiled in the default mode, by the
    same backend. torch.compile, which `generate` may call itself for static caches, is turned off
    (`generation_config.disable_compile`). To be said once for a model; returns it.
    Errors: TypeError for what does not generate; those of `dynamo.compile`.

    ```python
    model = compile_generation(AutoModelForCausalLM.from_pretrained(name).cuda())
    model.generate(**inputs, cache_implementation="static")
    ```
    """
    generating: Any = model
    if not callable(getattr(generating, "generate", None)):
        raise TypeError(f"compile_generation takes a model with generate(), not {type(model)!r}")
    if arguments.keys().isdisjoint(("mode", "options", "backend")):
        arguments["mode"] = "reduce-overhead"
    generating.forward = compile(generating.forward, **arguments)
    backend = {"backend": arguments["backend"]} if "backend" in arguments else {}
    for name in AROUND_FORWARD:
        if hasattr(generating, name):
            setattr(generating, name, compile(getattr(generating, name), **backend))
    settings = getattr(generating, "generation_config", None)
    if settings is not None:
        settings.disable_compile = True
    return model


def _prepare(
    function: Callable[..., Any], plugin: Any, arguments: dict[str, Any], /,
    *args: Any, **kwargs: Any,
) -> Any:
    """What the host's own function gives, its models compiled by us."""
    settings = {**_settings_of(plugin), **arguments}
    with _without_theirs(plugin):
        prepared = function(*args, **kwargs)
    for each in prepared if isinstance(prepared, tuple) else (prepared,):
        if isinstance(each, torch.nn.Module) and each._compiled_call_impl is None:
            compile_in_place(each, **settings)
    return prepared


def _settings_of(plugin: Any) -> dict[str, Any]:
    """What the host was told of torch.compile. `to_kwargs` would leave out what variables of the
    environment say, which the Trainer sets."""
    if not _is_on(plugin):
        return {}
    names = ("mode", "fullgraph", "dynamic", "options", "disable")
    settings = {name: getattr(plugin, name) for name in names if getattr(plugin, name) is not None}
    if settings.get("mode") == "default":
        del settings["mode"]
    return {"backend": plugin.backend.value.lower(), **settings}


def _is_on(plugin: Any) -> bool:
    return bool(plugin.backend.value != "NO")


@contextlib.contextmanager
def _without_theirs(plugin: Any) -> Iterator[None]:
    """For a while, the host has no backend to compile with: all accelerators share its settings."""
    before = plugin.backend
    plugin.backend = type(before)("NO")
    try:
        yield
    finally:
        plugin.backend = before
