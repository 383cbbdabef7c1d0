"""Everything that fills the tables: importing this makes the evaluator's knowledge complete."""

from __future__ import annotations

import importlib.util

from dynamo.symbolic.rules import (
    autograd_functions,
    averaging,
    breaking,
    builtin_attributes,
    builtins,
    checkpointing,
    class_bodies,
    comparisons,
    comptime,
    conditional,
    container_methods,
    containers,
    context_variables,
    contexts,
    copying,
    dates,
    devices,
    dispatching,
    distributions,
    folding,
    foreach,
    foreign,
    gradients,
    hooks,
    identity,
    inference,
    loops,
    methods,
    modes,
    number_tensors,
    open_texts,
    operators,
    optimizer_steps,
    optimizers,
    parameters,
    patterns,
    picking,
    placing,
    python_random,
    python_sources,
    random_state,
    seeded_random,
    standard_library,
    standin_groups,
    standin_iterators,
    standins,
    table,
    tensors,
    texts,
    torch_functions,
    transforms,
    trees,
    triton_kernels,
    typed_tensors,
    unknown_numbers,
    values,
    warning_filters,
)
from dynamo.symbolic.rules import (
    exceptions as exception_rules,
)
from dynamo.symbolic.rules import (
    generators as generator_rules,
)
from dynamo.symbolic.variables import (
    attributes,
    cached,
    cells,
    classes,
    constant,
    dicts,
    exceptions,
    functions,
    generators,
    handles,
    iterators,
    lists,
    modules,
    objects,
    python_modules,
    tensor,
    weakrefs,
)
from dynamo.symbolic.variables import (
    values as value_vars,
)
from dynamo.symbolic.variables.constant import TORCH_VALUE_TYPES, VALUE_TYPES
from dynamo.symbolic.variables.lookup import absolute_name, find_in_mro, find_module, told_name

CONSTANT_TYPES = (*VALUE_TYPES, *TORCH_VALUE_TYPES)
PARTS = (
    attributes, autograd_functions, averaging, breaking, builtin_attributes, builtins, cached,
    cells, checkpointing, class_bodies, classes, comparisons, comptime, conditional, constant,
    container_methods, containers, context_variables, contexts, copying, dates, devices, dicts,
    dispatching, distributions, exception_rules, exceptions, folding, foreach, foreign,
    functions, generator_rules, generators, gradients, handles, hooks, identity, inference,
    iterators, lists, loops, methods, modes, modules, number_tensors, objects, open_texts,
    operators, optimizer_steps, optimizers, parameters, patterns, picking, placing,
    python_modules, python_random, python_sources, random_state, seeded_random,
    standard_library, standin_groups, standin_iterators, standins, table, tensor, tensors,
    texts, torch_functions, transforms, trees, triton_kernels, typed_tensors, unknown_numbers,
    value_vars, values, warning_filters, weakrefs,
)
# torch does not need numpy either.
if importlib.util.find_spec("numpy") is not None:
    for _name in ("numpy_scalars", "arrays", "array_functions", "array_algebra", "array_indices",
                  "array_tensors"):
        importlib.import_module(f"dynamo.symbolic.rules.{_name}")
COMPLETE = all(part.__name__ for part in PARTS)

__all__ = ["COMPLETE", "CONSTANT_TYPES", "PARTS", "absolute_name", "find_in_mro", "find_module",
           "told_name"]
