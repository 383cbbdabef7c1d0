"""Why a graph ends: one row per reason, with a number, a sentence and what a user can do.

`describe` puts a break into words: the user's line first, then what happened, then what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.base.errors import Break

EAGER = (
    "This part runs as plain Python; nothing is wrong. Move it out of the compiled function "
    "to get one graph."
)
MOVE = (
    "Move this part out of the compiled function, or allow breaks: then it runs as plain Python "
    "between two graphs."
)
FINE = "Nothing is wrong"
UNKNOWN = "that only the running program knows"
OF_ITEM = "The number comes from .item(), int() or float() of a tensor: compute with the tensor."
REPORT = "If this is ordinary code of your model, it is worth a report."


@dataclass(frozen=True, slots=True)
class BreakReason:
    """number: stable, for looking it up; sentence: what happened; hint: what to do."""

    number: str
    sentence: str
    hint: str = EAGER


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("explicit_break", "graph_break() was called", "Remove the call to get one graph."),
    ("data_dependent_branch", "a branch depends on the values in a tensor",
     "Use torch.where, or torch.cond for whole blocks."),
    ("item", "a tensor's value is read into Python",
     "Keep it a tensor, without .item(), int() or float(), or set config.capture_scalar_outputs."),
    ("dynamic_output_shape", "the size of the result depends on the values in a tensor",
     "Use a masked operation of fixed size, or set config.capture_dynamic_output_shape_ops."),
    ("call_of_unknown_function", "a function is called that the compiler does not know", EAGER),
    ("call_of_unknown_value", "a value is called that is not known to be a function", EAGER),
    ("call_disabled", "a function is called that is excluded from compiling", EAGER),
    ("attribute_unknown", "an attribute is read in a way that the compiler does not know", REPORT),
    ("attribute_store_unknown",
     "an attribute is written in a way that the compiler does not know", REPORT),
    ("descriptor_unknown",
     "an attribute is computed by a descriptor that the compiler does not know", REPORT),
    ("value_unknown", "a value of a kind that the compiler does not know is used", EAGER),
    ("type_unknown", "the type of a value is not known", REPORT),
    ("truth_unknown", "the truth of a value is not known", REPORT),
    ("iteration_unknown", "a value is iterated of a kind that the compiler does not know", EAGER),
    ("opaque_iterator", "an iterator that came from outside is advanced", EAGER),
    ("hash_unknown", "a value's hash is needed that is not known", EAGER),
    ("length_unknown", "a length is not known", REPORT),
    ("index_unknown", "an index is not known", REPORT),
    ("set_order", "the order of a set is needed", "Sort the set first."),
    ("not_a_constant", "a constant is needed, and this value is none", REPORT),
    ("not_a_graph_argument", "a value can't be an argument of a tensor operation", REPORT),
    ("identity_of_constant", "`is` between equal constants has no certain answer", "Use ==."),
    ("operation_without_fake_kernel", "the shape of the result is not known before it runs",
     "Give an operator of your own a shape function: torch.library.register_fake."),
    ("operator_unknown", "the compiler does not know an operator between these values", REPORT),
    ("graph_result_unknown", "an operation gives something that is no tensor", EAGER),
    ("tensor_subclass", "a tensor subclass is used", EAGER),
    ("tensor_not_modelled", "a tensor of a special kind is used", EAGER),
    ("lazy_module", "a lazy module still has to make its parameters", "Run the model once first."),
    ("script_module", "a TorchScript module is called", EAGER),
    ("module_structure_change",
     "a parameter or module is made of a kind that the compiler can't make", EAGER),
    ("import_of_new_module", "a module is imported for the first time", "Import it at the top."),
    ("class_attribute_store", "an attribute of a class is written that is no plain data", EAGER),
    ("container_changed_in_loop", "a container changes while it is iterated", EAGER),
    ("argument_mismatch", "a call's arguments do not fit", EAGER),
    ("traceback_read", "a traceback is read", EAGER),
    ("exception_state", "a call raises an exception that holds more than its arguments", EAGER),
    ("generic_alias_of_tensor", "a type is subscripted with a tensor", EAGER),
    ("escaping_exception", "an exception leaves the compiled part", EAGER),
    ("escaping_generator", "a suspended generator leaves the compiled part", EAGER),
    ("frame_introspection", "the local variables are looked at as a whole", EAGER),
    ("opcode_unknown", "the compiler does not know an instruction of Python's", EAGER),
    ("class_definition", "a class is defined", "Define the class outside of the function."),
    ("async_code", "asynchronous code is met", EAGER),
    ("trace_too_long", "the trace is too long",
     "Compile a smaller part, or raise config.max_steps."),
    ("inline_too_deep", "calls are nested too deeply",
     "Compile what is called by itself, or call it from fewer functions."),
    ("rebuild_unknown", "a value that is alive here can't be rebuilt", REPORT),
    ("inner_break", "a break inside of something that can't be resumed", EAGER),
    ("unknown_number", "a tensor's value is used in Python in a way that no graph can hold", EAGER),
    ("unknown_number_decides", "a decision needs a number that only the running program knows",
     "Say what holds of it by torch._check, or use torch.where or torch.cond."),
    ("unknown_number_unchecked", "an operation is right only where a number that only the running "
     "program knows fulfils a condition", "Say so before: torch._check(condition)."),
    ("caught_error", "an operation fails, or may fail by the values in a tensor, and the program "
     "catches the error",
     "Test before what makes it fail, or use a variant that tells (torch.linalg.cholesky_ex)."),
    ("print_in_try", "print is called where the program sees its errors, inside of a try or a with",
     "Print behind the block; what is printed elsewhere stays in the graph's part."),
    ("backward", "gradients are computed in the middle of the compiled function",
     "Nothing is wrong. Compile the loss alone and call backward() outside to get one graph."),
    ("random_state", "the state of a random number generator is set or read",
     "Do it outside of the compiled function."),
    ("hooked_tensor_changed", "a tensor is changed in place after a hook was put on it",
     "Put the hook on it after the change, or use the operation that makes a new tensor."),
    ("random_choice", "a random number of Python decides with which objects the program goes on",
     "Nothing is wrong. Choose outside, or by a random.Random(seed) made in the function."),
    ("dropped_value", "a generator or an object with __del__ is let go of", EAGER),
    ("long_list_changed", "a list with many items is changed",
     "Nothing is wrong: the change runs as plain Python. Make it outside to get one graph."),
    ("spreading_module", "a module spreads the work of the one inside it over processes or devices",
     "Nothing is wrong: the module inside it is compiled. What is around the call is not."),
    ("call_too_long", "one call or operator takes more instructions than a trace may have",
     "Compile what it calls by itself, or raise config.max_steps."),
    ("value_too_large", "a value is too large to be made while compiling",
     "Nothing is wrong: plain Python makes it. Make it outside to get one graph."),
    ("text_of_tensor", "the text of a tensor is needed, which has its values",
     "Print or format it outside of the compiled function; x.shape and x.dtype are known inside."),
)

REASONS = {
    code: BreakReason(f"DB{number:04}", sentence, hint)
    for number, (code, sentence, hint) in enumerate(_ROWS, 1)
}

# Ends of a graph that the program has asked for, by what it has put around a module: hooks that
# shard it run between two graphs. Nobody can remove them, so they don't count as breaks.
BETWEEN_GRAPHS = frozenset({"spreading_module"})


def group_of(reason: str) -> str:
    """Where in `counters` the end of a graph is counted, by its text.

    >>> group_of("item: a tensor"), group_of("spreading_module: Block, whose hooks shard it")
    ('graph_break', 'between_graphs')
    """
    return "between_graphs" if reason.partition(": ")[0] in BETWEEN_GRAPHS else "graph_break"


def summarize(reason: str) -> str:
    """A key of `counters["graph_break"]` as a sentence.

    >>> summarize("item: a tensor")
    "a tensor's value is read into Python: a tensor"
    """
    code, _, detail = reason.partition(": ")
    sentence = REASONS[code].sentence if code in REASONS else code
    return f"{sentence}: {detail}" if detail else sentence


def describe(reason: Break, place: str, text: str = "", strict: bool = False) -> str:
    """The break for a person: the user's line, what happened, what to do. strict: it is an error,
    so that nobody may say that nothing is wrong."""
    row = REASONS[reason.code]
    what = f"{row.sentence}: {reason.detail}" if reason.detail else row.sentence
    line = f"\n    {text}" if text else ""
    hint = _as_error(row.hint) if strict else row.hint
    if UNKNOWN in reason.detail or reason.code.startswith("unknown_number"):
        hint = f"{OF_ITEM} {hint}"
    return f"{place}{line}\n  Graph break: {what}. [{row.number}]\n  What to do: {hint}"


def _as_error(hint: str) -> str:
    """A hint where the break is an error."""
    if hint == EAGER:
        return MOVE
    if not hint.startswith(FINE):
        return hint
    rest = hint.removeprefix(FINE)
    if rest.startswith(":"):  # what happens instead, which is not so here
        rest = rest.partition(". ")[2]
    return rest.lstrip(". ") or MOVE
