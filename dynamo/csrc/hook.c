/* The frame hook: Region, Compiled, Entry, and the evaluator that swaps code in place.

A Region is one configuration of the compiler with a Python callback. While a thread is inside of a Compiled call, each
fresh frame is looked up: entries of its code object for that region are checked in order, the most recent hit first; on a
hit the frame gets the entry's code and CPython's evaluator runs it; on a miss the callback is asked. */
#include "cpython_compat.h"
#include "guards.h"
#include <stddef.h>
#include <structmember.h>

typedef struct { PyObject_HEAD PyObject *callback; unsigned long long id; } Region;

typedef struct {
    PyObject_HEAD
    PyCodeObject *code;
    PyObject *program, *keepalive;
    Py_ssize_t inputs_slot; /* fast local that takes the collected tuple, or -1 */
    int valid;
    unsigned long long hits;
} Entry;

/* What a code object knows of one region. skip: 1 never offer it, 2 nor what it calls. */
typedef struct RegionCache {
    struct RegionCache *next;
    unsigned long long region; /* id of the Region: ids are never used again, addresses are */
    int skip;
    Py_ssize_t count;
    Entry **entries;
} RegionCache;

static Py_ssize_t extra_index = -1;
static int installed = 0; /* threads inside of a region */
static __thread PyObject *active = NULL; /* this thread's Region, borrowed from the running call */
static PyObject *skip_object, *skip_recursive_object;
static unsigned long long serial = 0;

static PyObject *evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);

static void enter_hook(void) {
    if (installed++ == 0) _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
}
static void leave_hook(void) {
    if (--installed == 0)
        _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault);
}

/* Runs with another active region (NULL: none) and restores the old one. */
static PyObject *switch_region(PyObject *region) {
    PyObject *before = active;
    if (region && !before) enter_hook();
    if (!region && before) leave_hook();
    active = region;
    return before;
}

static void free_cache(void *pointer) {
    for (RegionCache *cache = pointer, *next; cache; cache = next) {
        next = cache->next;
        for (Py_ssize_t i = 0; i < cache->count; i++) Py_DECREF(cache->entries[i]);
        PyMem_Free(cache->entries);
        PyMem_Free(cache);
    }
}

static RegionCache *find_cache(PyCodeObject *code, PyObject *owner, int create) {
    unsigned long long region = ((Region *)owner)->id;
    void *extra = NULL;
    EXTRA_GET((PyObject *)code, extra_index, &extra);
    for (RegionCache *cache = extra; cache; cache = cache->next)
        if (cache->region == region) return cache;
    if (!create) return NULL;
    RegionCache *cache = PyMem_Calloc(1, sizeof *cache);
    if (!cache) return NULL;
    cache->region = region;
    if (extra) { /* keep the head, which the code object owns */
        cache->next = ((RegionCache *)extra)->next;
        ((RegionCache *)extra)->next = cache;
    } else if (EXTRA_SET((PyObject *)code, extra_index, cache) < 0) {
        PyMem_Free(cache);
        return NULL;
    }
    return cache;
}

static int add_entry(RegionCache *cache, Entry *entry) {
    for (Py_ssize_t i = 0; i < cache->count; i++)
        if (cache->entries[i] == entry) return 0;
    Entry **entries = PyMem_Realloc(cache->entries, (cache->count + 1) * sizeof *entries);
    if (!entries) return -1;
    memmove(entries + 1, entries, cache->count * sizeof *entries);
    Py_INCREF(entry);
    entries[0] = entry;
    cache->entries = entries;
    cache->count++;
    return 0;
}

/* Gives the frame the entry's code. 0: done, 1: no room on the data stack, run the original. */
static int swap_code(PyThreadState *tstate, _PyInterpreterFrame *frame, Entry *entry, PyObject *inputs) {
    PyCodeObject *old = FRAME_CODE(frame), *code = entry->code;
    Py_ssize_t have = CODE_FRAME_SIZE(old), want = CODE_FRAME_SIZE(code);
    if (want > have) {
        PyObject **base = (PyObject **)frame;
        if (tstate->datastack_top != base + have || base + want >= tstate->datastack_limit) return 1;
        tstate->datastack_top = base + want;
    }
    for (int i = old->co_nlocalsplus; i < code->co_nlocalsplus; i++) frame->localsplus[i] = NULL;
    Py_INCREF(code);
    FRAME_SET_CODE(frame, code);
    frame->stacktop = code->co_nlocalsplus;
    FRAME_RESTART(frame);
    if (entry->inputs_slot >= 0) {
        Py_XINCREF(inputs);
        frame->localsplus[entry->inputs_slot] = inputs;
    }
    Py_DECREF(old); /* the function still owns it */
    return 0;
}

static PyObject *locals_dict(_PyInterpreterFrame *frame) {
    PyCodeObject *code = FRAME_CODE(frame);
    PyObject *result = PyDict_New();
    for (int i = 0; result && i < code->co_nlocalsplus; i++) {
        PyObject *value = frame->localsplus[i];
        if (value && PyDict_SetItem(result, PyTuple_GET_ITEM(code->co_localsplusnames, i), value) < 0)
            Py_CLEAR(result);
    }
    return result;
}

/* Asks the region's callback. Returns a new reference to an Entry, None, SKIP or SKIP_RECURSIVE. */
static PyObject *ask(PyObject *region, _PyInterpreterFrame *frame) {
    PyObject *locals = locals_dict(frame);
    if (!locals) return NULL;
    PyObject *before = switch_region(NULL);
    PyObject *function = (PyObject *)FRAME_FUNCTION(frame);
    PyObject *answer = PyObject_CallFunctionObjArgs(((Region *)region)->callback, FRAME_CODE(frame),
        function, frame->f_globals, frame->f_builtins, locals, NULL);
    switch_region(before);
    Py_DECREF(locals);
    return answer;
}

static PyObject *run_without_region(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    PyObject *before = switch_region(NULL);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    switch_region(before);
    return result;
}

/* An error before the frame ran: let it start and fail at once by a pending exception is not possible, so the
   evaluator is entered with throwflag, which unwinds and clears the frame as for an exception at its start. */
static PyObject *fail(PyThreadState *tstate, _PyInterpreterFrame *frame) {
    return _PyEval_EvalFrameDefault(tstate, frame, 1);
}

static PyObject *evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    PyObject *region = active;
    PyCodeObject *code = FRAME_CODE(frame);
    const int generator = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    if (!region || throwflag || (code->co_flags & generator) || !(code->co_flags & CO_OPTIMIZED) ||
        !FRAME_AT_START(frame) || tstate->c_tracefunc)
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);

    RegionCache *cache = find_cache(code, region, 0);
    if (cache && cache->skip == 1) return _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (cache && cache->skip == 2) return run_without_region(tstate, frame, 0);
    if (cache && cache->count) {
        FrameView view = {frame->localsplus, frame->f_globals, frame->f_builtins,
                          FRAME_FUNCTION(frame)->func_closure};
        for (Py_ssize_t i = 0; i < cache->count; i++) {
            Entry *entry = cache->entries[i];
            PyObject *inputs = NULL;
            if (!entry->valid) continue;
            int holds = program_check(entry->program, &view, &inputs);
            if (holds < 0) return fail(tstate, frame);
            if (!holds) continue;
            if (i) { /* most recent hit first */
                memmove(cache->entries + 1, cache->entries, i * sizeof *cache->entries);
                cache->entries[0] = entry;
            }
            entry->hits++;
            swap_code(tstate, frame, entry, inputs);
            Py_XDECREF(inputs);
            return _PyEval_EvalFrameDefault(tstate, frame, 0);
        }
    }
    PyObject *answer = ask(region, frame);
    if (!answer) return fail(tstate, frame);
    int skip = answer == skip_object ? 1 : answer == skip_recursive_object ? 2 : 0;
    if (skip || answer == Py_None) {
        Py_DECREF(answer);
        if (skip) {
            cache = find_cache(code, region, 1);
            if (cache) cache->skip = skip;
        }
        return skip == 2 ? run_without_region(tstate, frame, 0) : _PyEval_EvalFrameDefault(tstate, frame, 0);
    }
    cache = find_cache(code, region, 1);
    if (!cache || add_entry(cache, (Entry *)answer) < 0) {
        Py_DECREF(answer);
        PyErr_NoMemory();
        return fail(tstate, frame);
    }
    FrameView view = {frame->localsplus, frame->f_globals, frame->f_builtins,
                      FRAME_FUNCTION(frame)->func_closure};
    PyObject *inputs = NULL;
    int holds = program_check(((Entry *)answer)->program, &view, &inputs);
    if (holds == 1) swap_code(tstate, frame, (Entry *)answer, inputs);
    else ((Entry *)answer)->valid = 0; /* an entry whose guards fail for its own frame would never hit */
    Py_XDECREF(inputs);
    Py_DECREF(answer);
    return holds < 0 ? fail(tstate, frame) : _PyEval_EvalFrameDefault(tstate, frame, 0);
}

/* -- Region ------------------------------------------------------------------------------------ */

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *callback;
    static char *names[] = {"callback", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &callback)) return NULL;
    Region *self = (Region *)type->tp_alloc(type, 0);
    if (self) self->callback = Py_NewRef(callback), self->id = ++serial;
    return (PyObject *)self;
}
static int region_traverse(Region *self, visitproc visit, void *arg) { Py_VISIT(self->callback); return 0; }
static int region_clear(Region *self) { Py_CLEAR(self->callback); return 0; }
static void region_dealloc(Region *self) {
    PyObject_GC_UnTrack(self);
    region_clear(self);
    Py_TYPE(self)->tp_free(self);
}
static PyTypeObject RegionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.Region", .tp_basicsize = sizeof(Region),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, .tp_new = region_new,
    .tp_traverse = (traverseproc)region_traverse, .tp_clear = (inquiry)region_clear,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_doc = "Region(callback): one configuration; callback(code, function, globals, builtins, locals)."};

/* -- Entry ------------------------------------------------------------------------------------- */

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyCodeObject *code;
    PyObject *program, *keepalive = Py_None;
    static char *names[] = {"code", "program", "keepalive", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|O", names, &PyCode_Type, &code, &program, &keepalive))
        return NULL;
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->code = (PyCodeObject *)Py_NewRef(code);
    self->program = Py_NewRef(program);
    self->keepalive = Py_NewRef(keepalive);
    self->valid = 1;
    self->inputs_slot = -1;
    for (int i = 0; i < code->co_nlocals; i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_localsplusnames, i), "__graph_inputs") == 0)
            self->inputs_slot = i;
    return (PyObject *)self;
}
static void entry_dealloc(Entry *self) {
    Py_XDECREF(self->code);
    Py_XDECREF(self->program);
    Py_XDECREF(self->keepalive);
    Py_TYPE(self)->tp_free(self);
}
static PyObject *entry_invalidate(Entry *self, PyObject *unused) { self->valid = 0; Py_RETURN_NONE; }
static PyMemberDef entry_members[] = {
    {"code", T_OBJECT, offsetof(Entry, code), READONLY}, {"program", T_OBJECT, offsetof(Entry, program), READONLY},
    {"keepalive", T_OBJECT, offsetof(Entry, keepalive), READONLY}, {"valid", T_BOOL, offsetof(Entry, valid), READONLY},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY}, {NULL}};
static PyMethodDef entry_methods[] = {
    {"invalidate", (PyCFunction)entry_invalidate, METH_NOARGS, "The entry is never used again."}, {NULL}};
static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.Entry", .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT, .tp_new = entry_new, .tp_dealloc = (destructor)entry_dealloc,
    .tp_members = entry_members, .tp_methods = entry_methods, .tp_doc = "Entry(code, program, keepalive=None)"};

/* -- Compiled: a callable that runs its function under a region (or under none) ----------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *region, *function, *dict, *weakrefs;
} Compiled;

static PyObject *compiled_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Compiled *self = (Compiled *)callable;
    PyObject *region = self->region == Py_None ? NULL : self->region;
    Py_INCREF(self);
    PyObject *before = switch_region(region);
    PyObject *result = PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    switch_region(before);
    Py_DECREF(self);
    return result;
}
static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *region, *function;
    static char *names[] = {"region", "function", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &region, &function)) return NULL;
    if (region != Py_None && !PyObject_TypeCheck(region, &RegionType)) {
        PyErr_SetString(PyExc_TypeError, "region must be a Region or None");
        return NULL;
    }
    Compiled *self = (Compiled *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = compiled_call;
    self->region = Py_NewRef(region);
    self->function = Py_NewRef(function);
    self->dict = PyDict_New();
    return (PyObject *)self;
}
static int compiled_traverse(Compiled *self, visitproc visit, void *arg) {
    Py_VISIT(self->region); Py_VISIT(self->function); Py_VISIT(self->dict);
    return 0;
}
static int compiled_clear(Compiled *self) {
    Py_CLEAR(self->region); Py_CLEAR(self->function); Py_CLEAR(self->dict);
    return 0;
}
static void compiled_dealloc(Compiled *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) PyObject_ClearWeakRefs((PyObject *)self);
    compiled_clear(self);
    Py_TYPE(self)->tp_free(self);
}
static PyObject *compiled_get(PyObject *self, PyObject *object, PyObject *type) {
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}
static PyMemberDef compiled_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Compiled, function), READONLY},
    {"region", T_OBJECT, offsetof(Compiled, region), READONLY},
    {"__dictoffset__", T_PYSSIZET, offsetof(Compiled, dict), READONLY}, {NULL}};
static PyGetSetDef compiled_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict}, {NULL}};
static PyTypeObject CompiledType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.Compiled", .tp_basicsize = sizeof(Compiled),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = compiled_new, .tp_call = PyVectorcall_Call, .tp_vectorcall_offset = offsetof(Compiled, vectorcall),
    .tp_dictoffset = offsetof(Compiled, dict), .tp_weaklistoffset = offsetof(Compiled, weakrefs),
    .tp_traverse = (traverseproc)compiled_traverse, .tp_clear = (inquiry)compiled_clear,
    .tp_dealloc = (destructor)compiled_dealloc, .tp_descr_get = compiled_get, .tp_members = compiled_members,
    .tp_getset = compiled_getset, .tp_getattro = PyObject_GenericGetAttr, .tp_setattro = PyObject_GenericSetAttr,
    .tp_doc = "Compiled(region, function): calls the function with the region active (None: with none)."};

/* -- module ------------------------------------------------------------------------------------ */

static PyObject *get_entries(PyObject *module, PyObject *args) {
    PyObject *code, *region;
    if (!PyArg_ParseTuple(args, "O!O!", &PyCode_Type, &code, &RegionType, &region)) return NULL;
    RegionCache *cache = find_cache((PyCodeObject *)code, region, 0);
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && cache && i < cache->count; i++)
        if (cache->entries[i]->valid && PyList_Append(list, (PyObject *)cache->entries[i]) < 0) Py_CLEAR(list);
    return list;
}
static PyObject *forget(PyObject *module, PyObject *code) {
    if (!PyCode_Check(code)) return PyErr_Format(PyExc_TypeError, "a code object is needed");
    void *extra = NULL;
    EXTRA_GET(code, extra_index, &extra);
    for (RegionCache *cache = extra; cache; cache = cache->next) {
        Entry **entries = cache->entries;
        Py_ssize_t count = cache->count;
        cache->entries = NULL, cache->count = 0, cache->skip = 0;
        for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(entries[i]);
        PyMem_Free(entries);
    }
    Py_RETURN_NONE;
}
static PyObject *set_skip(PyObject *module, PyObject *args) {
    PyObject *code, *region;
    int skip;
    if (!PyArg_ParseTuple(args, "O!O!i", &PyCode_Type, &code, &RegionType, &region, &skip)) return NULL;
    RegionCache *cache = find_cache((PyCodeObject *)code, region, 1);
    if (!cache) return PyErr_NoMemory();
    cache->skip = skip;
    Py_RETURN_NONE;
}
static PyObject *active_region(PyObject *module, PyObject *unused) { return Py_NewRef(active ? active : Py_None); }

static PyMethodDef methods[] = {
    {"entries", get_entries, METH_VARARGS, "entries(code, region) -> list of valid entries, most recent hit first"},
    {"forget", forget, METH_O, "forget(code): drop all entries and marks of a code object"},
    {"set_skip", set_skip, METH_VARARGS, "set_skip(code, region, 0 | 1 | 2)"},
    {"active_region", active_region, METH_NOARGS, "the Region of this thread's running compiled call, or None"},
    {NULL}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "dynamo._C", "Frame hook and guard programs.", -1, methods};

PyMODINIT_FUNC PyInit__C(void) {
    PyObject *module = PyModule_Create(&module_def);
    if (!module || PyType_Ready(&RegionType) < 0 || PyType_Ready(&EntryType) < 0 || PyType_Ready(&CompiledType) < 0)
        return NULL;
    extra_index = EXTRA_INDEX(free_cache);
    skip_object = PyUnicode_FromString("SKIP");
    skip_recursive_object = PyUnicode_FromString("SKIP_RECURSIVE");
    if (extra_index < 0 || PyModule_AddObjectRef(module, "Region", (PyObject *)&RegionType) < 0 ||
        PyModule_AddObjectRef(module, "Entry", (PyObject *)&EntryType) < 0 ||
        PyModule_AddObjectRef(module, "Compiled", (PyObject *)&CompiledType) < 0 ||
        PyModule_AddObjectRef(module, "SKIP", skip_object) < 0 ||
        PyModule_AddObjectRef(module, "SKIP_RECURSIVE", skip_recursive_object) < 0 ||
        PyModule_AddStringConstant(module, "torch_version", DYNAMO_TORCH_VERSION) < 0 || add_program_type(module) < 0)
        return NULL;
    return module;
}
