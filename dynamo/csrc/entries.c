/* Entries and where they live: code object -> region -> list, most recent hit first.
 *
 * A code object carries a CodeState (code extra), which lists one RegionState per region. Both the
 * death of the code and the death of the region free the entries. */
#define DYNAMO_NEEDS_FRAMES
#include "hook.h"

static Py_ssize_t extra_index = -1;

static void unlink_state(RegionState *state) {
    if (state->previous_of_region) {
        state->previous_of_region->next_of_region = state->next_of_region;
    } else if (state->region) {
        state->region->states = state->next_of_region;
    }
    if (state->next_of_region) {
        state->next_of_region->previous_of_region = state->previous_of_region;
    }
}

void clear_state(RegionState *state) {
    Entry **entries = state->entries;
    Py_ssize_t count = state->count;
    state->entries = NULL;
    state->count = state->capacity = 0;
    state->mark = MARK_NONE;
    state->wasted = 0;
    state->generation++;
    for (Py_ssize_t i = 0; i < count; i++) {
        entries[i]->owner = NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(entries[i]);
    }
    PyMem_Free(entries);
}

static void free_code_state(void *extra) {
    CodeState *code = (CodeState *)extra;
    if (code == NULL) {
        return;
    }
    /* What an entry lets go of may take a region with it, or ask one for its code objects: no region
     * knows of this one any more. */
    for (RegionState *state = code->states; state != NULL; state = state->next_of_code) {
        unlink_state(state);
        state->region = NULL;
        state->previous_of_region = state->next_of_region = NULL;
    }
    while (code->states != NULL) {
        RegionState *state = code->states;
        code->states = state->next_of_code;
        clear_state(state);
        PyMem_Free(state);
    }
    PyMem_Free(code);
}

int entries_init(void) {
    extra_index = CODE_EXTRA_INDEX(free_code_state);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "no free slot for data on code objects");
        return -1;
    }
    return 0;
}

HOT CodeState *code_state(PyCodeObject *code, int create) {
    void *extra = NULL;
    if (CODE_GET_EXTRA((PyObject *)code, extra_index, &extra) < 0) {
        return NULL;
    }
    if (extra == NULL && create) {
        extra = PyMem_Calloc(1, sizeof(CodeState));
        if (extra == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (CODE_SET_EXTRA((PyObject *)code, extra_index, extra) < 0) {
            PyMem_Free(extra);
            return NULL;
        }
    }
    return (CodeState *)extra;
}

HOT RegionState *find_state(CodeState *state, Region *region) {
    if (state == NULL) {
        return NULL;
    }
    RegionState *found = state->states;
    while (found != NULL && found->region != region) {
        found = found->next_of_code;
    }
    return found;
}

RegionState *make_state(PyCodeObject *code, Region *region) {
    CodeState *owner = code_state(code, 1);
    if (owner == NULL) {
        return NULL;
    }
    RegionState *state = find_state(owner, region);
    if (state != NULL) {
        return state;
    }
    state = (RegionState *)PyMem_Calloc(1, sizeof(RegionState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->region = region;
    state->code = code;
    state->next_of_code = owner->states;
    owner->states = state;
    state->next_of_region = region->states;
    if (region->states) {
        region->states->previous_of_region = state;
    }
    region->states = state;
    return state;
}

void free_region_states(Region *region) {
    while (region->states != NULL) {
        RegionState *state = region->states;
        CodeState *owner = code_state(state->code, 0);
        RegionState **link = &owner->states;
        while (*link != state) {
            link = &(*link)->next_of_code;
        }
        *link = state->next_of_code;
        unlink_state(state);
        state->region = NULL;
        clear_state(state);
        PyMem_Free(state);
    }
}

int add_entry(RegionState *state, Entry *entry) {
    if (entry->owner == state) {
        return 0;
    }
    if (entry->owner != NULL) {
        PyErr_SetString(PyExc_ValueError, "the entry already belongs to another code object");
        return -1;
    }
    if (state->count == state->capacity) {
        Py_ssize_t capacity = state->capacity ? 2 * state->capacity : 4;
        Entry **entries = (Entry **)PyMem_Realloc(state->entries, capacity * sizeof(Entry *));
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        state->entries = entries;
        state->capacity = capacity;
    }
    memmove(state->entries + 1, state->entries, state->count * sizeof(Entry *));
    state->entries[0] = (Entry *)Py_NewRef(entry);
    state->count++;
    state->generation++;
    entry->owner = state;
    return 0;
}

void remove_entry(Entry *entry) {
    RegionState *state = entry->owner;
    if (state == NULL) {
        return;
    }
    entry->owner = NULL;
    for (Py_ssize_t i = 0; i < state->count; i++) {
        if (state->entries[i] == entry) {
            memmove(state->entries + i, state->entries + i + 1,
                    (state->count - i - 1) * sizeof(Entry *));
            state->count--;
            state->generation++;
            Py_DECREF(entry);
            return;
        }
    }
}

Py_ssize_t count_entries(PyCodeObject *code) {
    CodeState *owner = code_state(code, 0);
    Py_ssize_t count = 0;
    for (RegionState *s = owner ? owner->states : NULL; s != NULL; s = s->next_of_code) {
        count += s->count;
    }
    return count;
}

PyObject *list_entries(RegionState *state) {
    PyObject *list = PyList_New(0); /* this may collect garbage, which may remove entries */
    for (Py_ssize_t i = 0; list != NULL && state != NULL && i < state->count; i++) {
        if (PyList_Append(list, (PyObject *)state->entries[i]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* -- guards ----------------------------------------------------------------------------------- */

HOT int count_arguments(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* Gives the hit a reference to the entry where its guards hold. */
HOT int check_guards(Entry *entry, const Start *start, Hit *hit) {
    GuardScope scope = {start->slots,    entry->local_index, start->globals,
                        start->builtins, start->closure,     entry->cell_index};
    hit->entry = (Entry *)Py_NewRef(entry);
    hit->inputs = NULL;
    int held = program_run(entry->program, &scope, &hit->inputs,
                           entry->callee ? hit->items + 1 : NULL);
    if (held != 1) {
        Py_CLEAR(hit->entry);
    }
    return held;
}

HOT int find_entry(RegionState *state, const Start *start, Hit *hit, int direct) {
    for (int attempt = 0; attempt < 4; attempt++) {
        unsigned generation = state->generation;
        for (Py_ssize_t i = 0; i < state->count; i++) {
            Entry *entry = state->entries[i];
            if (direct && entry->callee == NULL) {
                return 0;
            }
            int held = check_guards(entry, start, hit);
            if (held == 1) {
                if (i > 0 && generation == state->generation) {
                    memmove(state->entries + 1, state->entries, i * sizeof(Entry *));
                    state->entries[0] = entry;
                }
                entry->hits++;
                return 1;
            }
            if (held < 0) {
                return -1;
            }
            if (generation != state->generation) {
                break;
            }
        }
        if (generation == state->generation) {
            return 0;
        }
    }
    return 0;
}

/* -- the Entry type ------------------------------------------------------------------------ */

static int *resolve_names(PyObject *names, PyObject *table, const char *what) {
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    int *index = (int *)PyMem_Malloc((count + 1) * sizeof(int));
    for (Py_ssize_t i = 0; index != NULL && i < count; i++) {
        Py_ssize_t at = PySequence_Index(table, PyTuple_GET_ITEM(names, i));
        if (at < 0) {
            PyErr_Format(PyExc_ValueError, "guards read %s %R, which the code does not have", what,
                         PyTuple_GET_ITEM(names, i));
            PyMem_Free(index);
            return NULL;
        }
        index[i] = (int)at;
    }
    return index;
}

/* An object died that the guards are about: they never hold again. */
static void entry_lost(void *lost) {
    Entry *entry = (Entry *)lost;
    if (entry->owner != NULL && entry->hits <= 1) {
        entry->owner->wasted++;
    }
    remove_entry(entry);
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"code", "program", "keepalive", "note", "direct", NULL};
    PyObject *code, *program, *keepalive = Py_None, *note = Py_None, *direct = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|OOO", keywords, &PyCode_Type, &code,
                                     &Program_Type, &program, &keepalive, &note, &direct)) {
        return NULL;
    }
    if (((PyCodeObject *)code)->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) {
        PyErr_SetString(PyExc_ValueError, "the code of an entry must be of a plain function");
        return NULL;
    }
    CodeState *state = code_state((PyCodeObject *)code, 1);
    Entry *entry = state ? (Entry *)type->tp_alloc(type, 0) : NULL;
    if (entry == NULL) {
        return NULL;
    }
    state->compiled = 1;
    entry->code = (PyCodeObject *)Py_NewRef(code);
    entry->program = Py_NewRef(program);
    entry->keepalive = Py_NewRef(keepalive);
    entry->note = Py_NewRef(note);
    entry->inputs_slot = -1;
    PyObject *names = PyObject_GetAttrString(code, "co_varnames");
    PyObject *free_names = PyObject_GetAttrString(code, "co_freevars");
    PyObject *inputs = PyUnicode_FromString("__graph_inputs");
    int failed = !names || !free_names || !inputs;
    if (!failed) {
        int found = PySequence_Contains(names, inputs);
        if (found == 1) {
            entry->inputs_slot = (int)PySequence_Index(names, inputs);
        } else if (program_collects(program)) {
            PyErr_SetString(PyExc_ValueError,
                            "the program collects inputs but the code has no local __graph_inputs");
            failed = 1;
        }
    }
    if (!failed) {
        entry->local_index = resolve_names(program_local_names(program), names, "local");
        failed = entry->local_index == NULL;
    }
    if (!failed) {
        entry->cell_index = resolve_names(program_cell_names(program), free_names, "free variable");
        failed = entry->cell_index == NULL;
    }
    Py_XDECREF(names);
    Py_XDECREF(free_names);
    Py_XDECREF(inputs);
    failed = failed || set_direct(entry, direct) < 0;
    if (!failed) {
        program_watch(program, entry_lost, entry);
    }
    if (failed) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        Py_DECREF(entry);
        return NULL;
    }
    return (PyObject *)entry;
}

static int entry_traverse(Entry *self, visitproc visit, void *arg) {
    Py_VISIT(self->code);
    Py_VISIT(self->program);
    Py_VISIT(self->keepalive);
    Py_VISIT(self->note);
    Py_VISIT(self->callee);
    return 0;
}

static int entry_clear(Entry *self) {
    if (self->program) {
        program_watch(self->program, NULL, NULL);
    }
    Py_CLEAR(self->program);
    Py_CLEAR(self->keepalive);
    Py_CLEAR(self->note);
    Py_CLEAR(self->callee);
    Py_CLEAR(self->code);
    return 0;
}

static void entry_dealloc(Entry *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    entry_clear(self);
    PyMem_Free(self->local_index);
    PyMem_Free(self->cell_index);
    PyMem_Free(self->picks);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *entry_invalidate(Entry *self, PyObject *unused) {
    remove_entry(self);
    Py_RETURN_NONE;
}

static PyObject *entry_valid(Entry *self, void *unused) {
    return PyBool_FromLong(self->owner != NULL);
}

static PyMethodDef entry_methods[] = {
    {"invalidate", (PyCFunction)entry_invalidate, METH_NOARGS,
     "Removes the entry from its code object; a call that runs it goes on."},
    {NULL}};
static PyGetSetDef entry_getset[] = {
    {"valid", (getter)entry_valid, NULL, "Whether the entry can still be hit."}, {NULL}};
static PyMemberDef entry_members[] = {
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "The new code object."},
    {"program", T_OBJECT, offsetof(Entry, program), READONLY, "Its guards."},
    {"keepalive", T_OBJECT, offsetof(Entry, keepalive), READONLY, "What must live as long."},
    {"note", T_OBJECT, offsetof(Entry, note), 0, "Anything (used by dynamo.frames.policy)."},
    {"callee", T_OBJECT, offsetof(Entry, callee), READONLY,
     "What a hit calls without running the code, None where it runs the code."},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "How often its guards held."},
    {NULL}};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Entry(code, program, keepalive=None, note=None, direct=None): compiled code and guards.",
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
    .tp_methods = entry_methods,
    .tp_getset = entry_getset,
    .tp_members = entry_members,
};
