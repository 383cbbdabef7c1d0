"""The service that `dynamo.aot` is for backends: compile a program's functional ATen graph.

In: a captured module, its example inputs, and a compiler of functional ATen graphs. Out: a callable
with the program's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dynamo.aot import fake_quantization
from dynamo.aot.capture import capture_forward, describe, refusals, with_symbols
from dynamo.aot.captured_backward import plan_backward, with_own_backward
from dynamo.aot.decompose import Chosen, decompose, each
from dynamo.aot.epilogue import counted_first, write_in_forward
from dynamo.aot.flat_programs import compile_flat, has_wrapped_ends
from dynamo.aot.joint import capture_joint
from dynamo.aot.min_cut import min_cut
from dynamo.aot.partition import Cutter, partition_joint
from dynamo.aot.pooling import POOLS, reads_places
from dynamo.aot.records import AtenGraph, Compiler, Keeping, NeedsGradients, Unsupported
from dynamo.aot.rows import ONE_HOTS, ROWS, has_tail, is_one_hot, merge_equal
from dynamo.aot.runtime import without_grad, wrap_compiled
from dynamo.aot.training import make_function
from dynamo.aot.worlds import capture_in_world
from dynamo.base.examples import real_examples


def _as_it_is(module: fx.GraphModule) -> fx.GraphModule:
    return module


def _compile_now(which: Any, compile_half: Callable[[], Any]) -> Any:
    return compile_half()


def compile_inference(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    compiler: Compiler,
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    epilogue_in_graph: bool = False,
    symbolic: bool = False,
) -> Callable[..., Any]:
    """Compiles a program whose outputs need no gradients. One whose inputs or outputs are wrapper
    subclasses is compiled as one of their inner tensors (`flat_programs.py`).

    compiler: takes the ATen module and its inputs' fakes; what it returns takes tensors (all of the
        program's inputs, in order) and returns the tuple of the graph's outputs.
    decompositions: see `decompose`. epilogue_in_graph: mutated inputs end the graph as
        `aten.copy_` nodes. symbolic: one graph for all sizes that the placeholders'
        `meta["example_value"]` leaves open, and for all values of ints among the inputs. The
        compiler finds what it holds for in `module.meta["symbols"]` (a `SymbolTable`) and must
        check its assumptions at run time.
    Errors: Unsupported; NeedsGradients where an output requires grad.

        >>> call = compile_inference(gm, [torch.randn(3)], lambda module, fakes: module.forward)
    """
    example_inputs = real_examples(example_inputs)
    if has_wrapped_ends(gm, example_inputs):
        return compile_flat(gm, example_inputs, lambda module, plain: compile_inference(
            module, plain, compiler, decompositions=decompositions,
            epilogue_in_graph=epilogue_in_graph, symbolic=symbolic), at_sizes=not symbolic)
    graph, world = _functional(gm, example_inputs, decompositions, epilogue_in_graph, symbolic)
    compiled = compiler(graph.module, graph.fakes)
    world.forget_reals()
    if torch.is_grad_enabled() and any(_requires_grad(example) for example in example_inputs):
        compiled = without_grad(compiled)
    return wrap_compiled(graph, compiled, gm.forward)


def compile_forward(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    compiler: Compiler,
    tell: Callable[[], None],
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """Compiles the forward of a program whose backward can't be recorded (`captured_backward.py`).

    compiler, decompositions: as for `compile_inference`. tell: called when a gradient has been
    computed, for which the captured program ran again: that is not worth it step by step.
    Errors: Unsupported.
    """
    example_inputs = real_examples(example_inputs)
    graph, world = _captured(gm, example_inputs, False, False)
    plan = plan_backward(gm, graph, example_inputs, tell)
    graph = _simplified(graph, decompositions, world)
    compiled = compiler(graph.module, graph.fakes)
    world.forget_reals()
    return wrap_compiled(graph, with_own_backward(plan, compiled), gm.forward)


def functional_graph(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    epilogue_in_graph: bool = False,
    symbolic: bool = False,
) -> AtenGraph:
    """What `compile_inference` gives to the compiler, with what it does around the graph, for who
    runs it elsewhere. Errors: the same.

        >>> graph = functional_graph(gm, [torch.randn(3)])
    """
    example_inputs = real_examples(example_inputs)
    graph, world = _functional(gm, example_inputs, decompositions, epilogue_in_graph, symbolic)
    world.forget_reals()
    return graph


def _functional(
    gm: fx.GraphModule, example_inputs: list[Any],
    decompositions: Mapping[Any, Callable[..., Any]] | None, epilogue_in_graph: bool,
    symbolic: bool,
) -> tuple[AtenGraph, Any]:
    """The graph and its world."""
    graph, world = _captured(gm, example_inputs, epilogue_in_graph, symbolic)
    if graph.needs_grad or graph.mutates_history:
        raise NeedsGradients("an output requires grad")
    if not torch.is_inference_mode_enabled():
        if any(example_inputs[mutation.input].is_inference() for mutation in graph.mutations):
            raise Unsupported("writes into an inference tensor, which eager refuses here")
    return _simplified(graph, decompositions, world), world


def _captured(
    gm: fx.GraphModule, example_inputs: list[Any], epilogue_in_graph: bool, symbolic: bool
) -> tuple[AtenGraph, Any]:
    return capture_in_world(
        lambda world: capture_forward(
            gm, example_inputs, epilogue_in_graph=epilogue_in_graph, world=world
        ),
        gm, example_inputs, symbolic,
    )  # fmt: skip


def _simplified(
    graph: AtenGraph, decompositions: Mapping[Any, Callable[..., Any]] | None, world: Any
) -> AtenGraph:
    module = simplify(graph.module, decompositions, world)
    if decompositions:
        merge_equal(module)
    return with_symbols(replace(graph, module=module), world)


def simplify(
    module: fx.GraphModule, decompositions: Mapping[Any, Callable[..., Any]] | None, world: Any,
    chosen: Chosen = each,
) -> fx.GraphModule:
    """The module decomposed. Errors: Unsupported."""
    if not decompositions:
        return module
    if not world.is_symbolic:
        module = decompose(module, decompositions, None, chosen)
    else:
        with refusals(symbolic=True):
            module = decompose(module, decompositions, world, chosen)
    forms = fake_quantization.FORMS
    if chosen is each and any(node.target in forms for node in module.graph.nodes):
        return simplify(module, forms, world, fake_quantization.raises_nothing)
    return module


def _requires_grad(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and example.requires_grad


def outside_transforms(example_inputs: list[Any]) -> list[Any]:
    """The same, where an autograd.Function of ours can run. Errors: Unsupported elsewhere."""
    if torch._C._are_functorch_transforms_active():
        raise Unsupported("gradients are wanted of it inside of a transform of torch.func")
    return example_inputs


def prepare_joint(
    module: fx.GraphModule, decompositions: Mapping[Any, Callable[..., Any]] | None,
    rewrite: Callable[[fx.GraphModule], fx.GraphModule], world: Any,
) -> fx.GraphModule:
    """A joint graph as it is cut: decomposed, rewritten, and taken apart where backward had better
    compute than keep."""
    module = simplify(module, decompositions, world)
    if not decompositions:
        return rewrite(module)
    module = rewrite(simplify(module, ONE_HOTS, world, is_one_hot))
    merge_equal(module)
    module = simplify(module, ROWS, world, has_tail)
    return simplify(module, POOLS, world, reads_places)


def compile_training(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    forward_compiler: Compiler,
    backward_compiler: Compiler,
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    partition: Cutter = min_cut,
    rewrite: Callable[[fx.GraphModule], fx.GraphModule] = _as_it_is,
    epilogue_in_graph: bool = False,
    symbolic: bool = False,
    keeping: Keeping = _compile_now,
    inference: Compiler | None = None,
) -> Callable[..., Any]:
    """Compiles a program and its backward; for inference only where no output needs a gradient.

    forward_compiler, backward_compiler: as for `compile_inference`. What the first returns gives
        the values of the program (`module.meta["values"]` is their number), then what only backward
        needs; the second is called at the first backward and gives gradients (None where there is
        none).
    partition: which values are saved for backward. rewrite: a pass over the joint graph, which
        keeps its inputs, outputs and their strides. epilogue_in_graph: forward ends with
        `aten.copy_` nodes for the mutated inputs whose new values nothing needs otherwise.
    symbolic: as for `compile_inference`; backward may have ints among its inputs.
    keeping: what may know a compiled backward already. inference: what compiles the graph where no
        output needs a gradient; None: forward_compiler.
    Errors: Unsupported.
    """
    example_inputs = outside_transforms(real_examples(example_inputs))
    if has_wrapped_ends(gm, example_inputs):
        return compile_flat(gm, example_inputs, lambda module, plain: compile_training(
            module, plain, forward_compiler, backward_compiler, decompositions=decompositions,
            partition=partition, rewrite=rewrite, epilogue_in_graph=epilogue_in_graph,
            symbolic=symbolic, keeping=keeping, inference=inference), at_sizes=not symbolic)
    if any(isinstance(x, torch.Tensor) and x.is_inference() for x in example_inputs):
        raise Unsupported("an inference tensor, which eager does not keep for backward")
    joint, world = capture_in_world(
        lambda world: capture_joint(gm, example_inputs, world), gm, example_inputs, symbolic
    )
    if joint is None:
        return compile_inference(
            gm, example_inputs, inference or forward_compiler, decompositions=decompositions,
            epilogue_in_graph=epilogue_in_graph, symbolic=symbolic,
        )  # fmt: skip
    module = prepare_joint(joint.module, decompositions, rewrite, world)
    halves = partition_joint(joint, module, partition, world.table(), copies=partition is min_cut)
    mutations = joint.mutations
    if epilogue_in_graph and mutations:
        mutations = write_in_forward(joint, halves)
    graph = describe(joint.reference, joint.plan, halves.forward, mutations, False)
    graph = counted_first(graph, joint, halves)
    graph = with_symbols(graph, world)
    halves.forward.meta["values"] = joint.values
    forward = forward_compiler(halves.forward, graph.fakes)
    world.forget_reals()
    joint = replace(joint, mutations=mutations)
    function = make_function(gm, joint, halves, forward, backward_compiler, keeping)
    return wrap_compiled(graph, function, gm.forward)
