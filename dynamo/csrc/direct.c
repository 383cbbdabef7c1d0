/* Calls of entries whose code does nothing but call the graph: the hook calls it itself, and for a
 * function that is called from outside no frame is made at all.
 *
 * In: a hit, or a call of a compiled function with its arguments. Out: the result; where that is an
 * error, its traceback shows the function as if its frame had run. */
#define DYNAMO_NEEDS_FRAMES
#include "hook.h"

#include <frameobject.h>

/* `direct`: None or (callee, outputs, picks); picks is an index, or a tuple of them. */
int set_direct(Entry *entry, PyObject *direct) {
    PyObject *callee, *picks;
    int outputs;
    if (direct == Py_None || program_collects(entry->program) > DIRECT_INPUTS) {
        return 0;
    }
    if (!PyArg_ParseTuple(direct, "OiO:direct", &callee, &outputs, &picks)) {
        return -1;
    }
    int single = !PyTuple_Check(picks);
    Py_ssize_t count = single ? 1 : PyTuple_GET_SIZE(picks);
    entry->picks = (int *)PyMem_Calloc(count + 1, sizeof(int));
    if (entry->picks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long pick = PyLong_AsLong(single ? picks : PyTuple_GET_ITEM(picks, i));
        if (pick < 0 || pick >= outputs) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a direct entry returns items of its result");
            }
            return -1;
        }
        entry->picks[i] = (int)pick;
    }
    entry->outputs = outputs;
    entry->pick_count = single ? -1 : (int)count;
    entry->callee = Py_NewRef(callee);
    return 0;
}

/* What the code makes of the graph's result, which is taken. */
HOT static PyObject *pick(Entry *entry, PyObject *result) {
    PyObject *items = PySequence_Fast(result, "a compiled graph returns a tuple"), *value = NULL;
    Py_DECREF(result);
    if (items == NULL) {
        return NULL;
    }
    if (PySequence_Fast_GET_SIZE(items) != entry->outputs) {
        PyErr_Format(PyExc_ValueError, "a compiled graph returned %zd values (expected %d)",
                     PySequence_Fast_GET_SIZE(items), entry->outputs);
    } else if (entry->pick_count < 0) {
        value = Py_NewRef(PySequence_Fast_GET_ITEM(items, entry->picks[0]));
    } else {
        value = PyTuple_New(entry->pick_count);
        for (int i = 0; value != NULL && i < entry->pick_count; i++) {
            PyTuple_SET_ITEM(value, i, Py_NewRef(PySequence_Fast_GET_ITEM(items, entry->picks[i])));
        }
    }
    Py_DECREF(items);
    return value;
}

/* Adds the frame that did not run to the traceback of the error that is set. Whoever reads its locals
 * takes it for granted that the cells of the closure are there. */
static void show_frame(Entry *entry, const Start *start) {
    PyObject *type, *error, *traceback;
    PyCodeObject *code = entry->code;
    int first_free = code->co_nlocalsplus - code->co_nfreevars;
    PyErr_Fetch(&type, &error, &traceback);
    PyFrameObject *frame = PyFrame_New(PyThreadState_Get(), code, start->globals, NULL);
    PyErr_Clear();
    PyErr_Restore(type, error, traceback);
    if (frame == NULL) {
        return;
    }
    for (int i = 0; i < count_arguments(code); i++) {
        frame_fill_slot(frame->f_frame, i, Py_XNewRef(slot_object(start->slots[i])));
    }
    for (int i = first_free; i < code->co_nlocalsplus; i++) {
        PyObject *cell = PyTuple_GET_ITEM(start->closure, i - first_free);
        frame_fill_slot(frame->f_frame, i, Py_NewRef(cell));
    }
    frame_goto_end(frame->f_frame);
    PyTraceBack_Here(frame);
    Py_DECREF(frame);
}

HOT PyObject *call_directly(Hit *hit, const Start *start) {
    Entry *entry = hit->entry;
    size_t count = (size_t)program_collects(entry->program);
    PyObject *result = PyObject_Vectorcall(entry->callee, hit->items + 1,
                                           count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    for (size_t i = 1; i <= count; i++) {
        Py_DECREF(hit->items[i]);
    }
    if (result != NULL) {
        result = pick(entry, result);
    }
    if (result == NULL) {
        show_frame(entry, start);
    }
    Py_DECREF(entry);
    return result;
}

/* -- without a frame ------------------------------------------------------------------------------ */

#define MOST_ARGUMENTS 16

/* The slot of a named argument; -1: there is none of this name. */
static int slot_of(PyCodeObject *code, PyObject *name) {
    for (int i = 0; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) {
            return i;
        }
    }
    return -1;
}

typedef struct {
    PyObject *slots[MOST_ARGUMENTS];
    PyObject *extra, *keywords; /* strong: `*args` and `**kwargs` */
} Arguments;

/* Keywords into slots and `**kwargs`. */
static int bind_keywords(PyCodeObject *code, Arguments *to, PyObject *const *values, PyObject *names) {
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int slot = PyUnicode_CHECK_INTERNED(name) ? slot_of(code, name) : -2;
        if (slot == -2 || (slot == -1 && to->keywords == NULL) ||
            (slot >= 0 && (to->slots[slot] != NULL || slot < code->co_posonlyargcount))) {
            return 0;
        }
        if (slot >= 0) {
            to->slots[slot] = values[i];
        } else if (PyDict_SetItem(to->keywords, name, values[i]) < 0) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* The slots that the frame would start with; 0 where CPython has to find them (or the error). */
HOT static int bind(PyCodeObject *code, PyObject *defaults, PyObject *self, PyObject *const *args,
                Py_ssize_t count, PyObject *names, Arguments *to) {
    int named = code->co_argcount + code->co_kwonlyargcount, at = 0;
    memset(to->slots, 0, (size_t)(named + 2) * sizeof(PyObject *));
    to->extra = to->keywords = NULL;
    if (self != NULL) {
        if (code->co_argcount == 0) {
            return 0;
        }
        to->slots[at++] = self;
    }
    Py_ssize_t here = count < code->co_argcount - at ? count : code->co_argcount - at;
    for (Py_ssize_t i = 0; i < here; i++) {
        to->slots[at++] = args[i];
    }
    int next = named;
    if (code->co_flags & CO_VARARGS) {
        to->extra = PyTuple_New(count - here);
        for (Py_ssize_t i = here; to->extra != NULL && i < count; i++) {
            PyTuple_SET_ITEM(to->extra, i - here, Py_NewRef(args[i]));
        }
        to->slots[next++] = to->extra;
    } else if (here < count) {
        return 0;
    }
    if (code->co_flags & CO_VARKEYWORDS) {
        to->keywords = PyDict_New();
        to->slots[next++] = to->keywords;
    }
    if (!bind_keywords(code, to, args + count, names)) {
        return 0;
    }
    Py_ssize_t first = code->co_argcount - (defaults ? PyTuple_GET_SIZE(defaults) : 0);
    for (int i = at; i < next; i++) {
        if (to->slots[i] == NULL && i >= first && i < code->co_argcount) {
            to->slots[i] = PyTuple_GET_ITEM(defaults, i - first);
        }
        if (to->slots[i] == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* A call of a compiled function from outside; *done is 0 where its frame has to be made. */
HOT PyObject *call_without_frame(Region *region, PyObject *function, PyObject *const *args,
                             size_t flags, PyObject *kwnames, int *done) {
    PyObject *self = NULL;
    *done = 0;
    if (PyMethod_Check(function)) {
        self = PyMethod_GET_SELF(function);
        function = PyMethod_GET_FUNCTION(function);
    }
    if (!PyFunction_Check(function) || thread_region.moved != NULL) {
        return NULL;
    }
    PyFunctionObject *made = (PyFunctionObject *)function;
    PyCodeObject *code = (PyCodeObject *)made->func_code;
    RegionState *state = find_state(code_state(code, 0), region);
    if (state == NULL || state->count == 0 || state->mark != MARK_NONE ||
        state->entries[0]->callee == NULL || program_runs_python(state->entries[0]->program) ||
        count_arguments(code) > MOST_ARGUMENTS - 2 || is_watched(PyThreadState_Get())) {
        return NULL;
    }
    Arguments bound;
    Hit hit;
    PyObject *result = NULL;
    PyObject *defaults = made->func_defaults, *closure = made->func_closure;
    Py_INCREF(function); /* a guard may run Python code, which may change the function */
    Py_INCREF(code);
    Py_XINCREF(defaults);
    Py_XINCREF(closure);
    if (bind(code, defaults, self, args, PyVectorcall_NARGS(flags), kwnames, &bound)) {
        Start start = {bound.slots, made->func_globals, made->func_builtins, closure};
        Region *current = thread_region.region;
        thread_region.region = NULL;
        int held = find_entry(state, &start, &hit, 1);
        thread_region.region = current;
        *done = held != 0;
        if (held == 1) {
            hook_counts[COUNT_HIT]++;
            current = current != NULL ? switch_region(NULL) : NULL;
            result = call_directly(&hit, &start);
            if (current != NULL) {
                Py_XDECREF(switch_region(current));
            }
        }
    }
    Py_XDECREF(bound.extra);
    Py_XDECREF(bound.keywords);
    Py_XDECREF(closure);
    Py_XDECREF(defaults);
    Py_DECREF(code);
    Py_DECREF(function);
    return result;
}
