/* Regions, and the callables that enter and leave them.
 *
 * The hook is installed on the interpreter while at least one thread is inside a region, and acts
 * only in such threads. `Compiled` enters a region around a call, `Disabled` leaves all. */
#define DYNAMO_NEEDS_FRAMES
#include "hook.h"
#include "ranges.h"

__thread ThreadRegion thread_region __attribute__((tls_model("initial-exec")));

static Py_ssize_t threads_inside = 0;
static _PyFrameEvalFunction outer_evaluator = NULL;

HOT Region *switch_region(Region *next) {
    Region *previous = thread_region.region;
    if (previous == NULL && next != NULL) {
        if (threads_inside++ == 0) {
            PyInterpreterState *interpreter = PyInterpreterState_Get();
            outer_evaluator = _PyInterpreterState_GetEvalFrameFunc(interpreter);
            _PyInterpreterState_SetEvalFrameFunc(interpreter, frame_hook);
        }
    } else if (previous != NULL && next == NULL) {
        if (--threads_inside == 0) {
            _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), outer_evaluator);
        }
    }
    thread_region.region = next;
    return previous;
}

static int push_region(Region *next) {
    if (thread_region.saved_count == thread_region.saved_capacity) {
        Py_ssize_t capacity = 2 * thread_region.saved_capacity + 8;
        Region **saved = (Region **)PyMem_RawRealloc(thread_region.saved,
                                                     capacity * sizeof(Region *));
        if (saved == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        thread_region.saved = saved;
        thread_region.saved_capacity = capacity;
    }
    Py_XINCREF(next);
    Region *previous = switch_region(next);
    thread_region.saved[thread_region.saved_count++] = previous;
    return 0;
}

/* Undoes `push_region`. A thread that has left all of them keeps no memory: nothing tells its end. */
static void restore_region(void) {
    Region *left = switch_region(thread_region.saved[--thread_region.saved_count]);
    if (thread_region.saved_count == 0) {
        PyMem_RawFree(thread_region.saved);
        thread_region.saved = NULL;
        thread_region.saved_capacity = 0;
    }
    Py_XDECREF(left);
}

static PyObject *pop_region(PyObject *self, PyObject *unused) {
    if (thread_region.saved_count == 0) {
        PyErr_SetString(PyExc_RuntimeError, "no region was entered in this thread");
        return NULL;
    }
    restore_region();
    Py_RETURN_NONE;
}

/* -- Region ------------------------------------------------------------------------------------ */

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"callback", "on_guard_defect", "on_error", NULL};
    PyObject *callback, *defect = Py_None, *error = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO", keywords, &callback, &defect, &error)) {
        return NULL;
    }
    Region *region = (Region *)type->tp_alloc(type, 0);
    if (region != NULL) {
        region->callback = Py_NewRef(callback);
        region->on_guard_defect = Py_NewRef(defect);
        region->on_error = Py_NewRef(error);
    }
    return (PyObject *)region;
}

static int region_traverse(Region *self, visitproc visit, void *arg) {
    Py_VISIT(self->callback);
    Py_VISIT(self->on_guard_defect);
    Py_VISIT(self->on_error);
    return 0;
}

static int region_clear(Region *self) {
    PyObject *callback = self->callback;
    self->callback = Py_NewRef(Py_None);
    Py_XDECREF(callback);
    Py_CLEAR(self->on_guard_defect);
    Py_CLEAR(self->on_error);
    return 0;
}

static void region_dealloc(Region *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    free_region_states(self);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->on_guard_defect);
    Py_CLEAR(self->on_error);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *region_enter(Region *self, PyObject *unused) {
    return push_region(self) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *region_exit(Region *self, PyObject *args) { return pop_region(NULL, NULL); }

static int all_eager = 0; /* every region is as none: calls run as they are */

HOT static PyObject *call_in(Region *region, PyObject *function, PyObject *const *args, size_t flags,
                         PyObject *kwnames) {
    if (all_eager) {
        region = NULL;
    }
    if (region != NULL) {
        int done;
        PyObject *result = call_without_frame(region, function, args, flags, kwnames, &done);
        if (done) {
            return result;
        }
    }
    if (thread_region.region == region) {
        return PyObject_Vectorcall(function, args, flags, kwnames);
    }
    Py_XINCREF(region);
    Region *previous = switch_region(region);
    PyObject *result = PyObject_Vectorcall(function, args, flags, kwnames);
    Py_XDECREF(switch_region(previous));
    return result;
}

static PyObject *region_run(Region *self, PyObject *args) {
    PyObject *function, *positional, *keywords = NULL;
    if (!PyArg_ParseTuple(args, "OO!|O!:run", &function, &PyTuple_Type, &positional, &PyDict_Type,
                          &keywords)) {
        return NULL;
    }
    if (push_region(self) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_Call(function, positional, keywords);
    restore_region();
    return result;
}

static PyObject *region_entries(Region *self, PyObject *code) {
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "entries() takes a code object");
        return NULL;
    }
    return list_entries(find_state(code_state((PyCodeObject *)code, 0), self));
}

static PyObject *region_wasted(Region *self, PyObject *code) {
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "wasted() takes a code object");
    }
    RegionState *state = find_state(code_state((PyCodeObject *)code, 0), self);
    return PyLong_FromUnsignedLong(state ? state->wasted : 0);
}

static PyObject *region_add(Region *self, PyObject *args) {
    PyObject *code, *entry;
    if (!PyArg_ParseTuple(args, "O!O!:add", &PyCode_Type, &code, &Entry_Type, &entry)) {
        return NULL;
    }
    RegionState *state = make_state((PyCodeObject *)code, self);
    if (state == NULL || add_entry(state, (Entry *)entry) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *region_codes(Region *self, PyObject *unused) {
    PyObject *list = PyList_New(0);
    for (RegionState *s = self->states; list != NULL && s != NULL; s = s->next_of_region) {
        if (PyList_Append(list, (PyObject *)s->code) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *region_reset(Region *self, PyObject *unused) {
    PyObject *codes = region_codes(self, NULL); /* an entry may hold its own code, and so its state */
    for (RegionState *s = self->states; codes != NULL && s != NULL; s = s->next_of_region) {
        clear_state(s);
    }
    Py_XDECREF(codes);
    return codes ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef region_methods[] = {
    {"__enter__", (PyCFunction)region_enter, METH_NOARGS, "Enters the region in this thread."},
    {"__exit__", (PyCFunction)region_exit, METH_VARARGS, "Goes back to what was before."},
    {"run", (PyCFunction)region_run, METH_VARARGS, "run(function, args, kwargs={}) inside."},
    {"entries", (PyCFunction)region_entries, METH_O, "Entries of a code object, latest hit first."},
    {"wasted", (PyCFunction)region_wasted, METH_O,
     "How many entries of a code object held once at most before what they are about died."},
    {"add", (PyCFunction)region_add, METH_VARARGS, "add(code, entry): adds an entry by hand."},
    {"codes", (PyCFunction)region_codes, METH_NOARGS, "Code objects that the region knows."},
    {"reset", (PyCFunction)region_reset, METH_NOARGS, "Forgets all entries and marks."},
    {NULL}};
static PyMemberDef region_members[] = {
    {"callback", T_OBJECT, offsetof(Region, callback), 0, "Called for a frame without entry."},
    {NULL}};

PyTypeObject Region_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.Region",
    .tp_basicsize = sizeof(Region),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Region(callback, on_guard_defect=None, on_error=None): one configuration whose frames "
              "are looked at.",
    .tp_new = region_new,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear,
    .tp_weaklistoffset = offsetof(Region, weakrefs),
    .tp_methods = region_methods,
    .tp_members = region_members,
};

/* -- Compiled and Disabled ------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Region *region; /* NULL for Disabled */
    PyObject *function;
    PyObject *dict;
    PyObject *weakrefs;
} Wrapper;

/* What a profiler calls the call: the function, or of a module that is called its class. */
static PyObject *name_of_range(Wrapper *wrapper, PyObject *const *args, size_t flags) {
    PyObject *function = wrapper->function;
    PyObject *receiver = PyMethod_Check(function) ? PyMethod_GET_SELF(function)
                         : PyVectorcall_NARGS(flags) > 0 ? args[0] : NULL;
    PyObject *name = PyObject_GetAttrString(function, "__qualname__");
    PyErr_Clear();
    PyObject *text = NULL;
    if (name != NULL && PyUnicode_Check(name)) {
        int of_module = PyUnicode_CompareWithASCIIString(name, "Module._call_impl") == 0 ||
                        PyUnicode_CompareWithASCIIString(name, "Module._wrapped_call_impl") == 0;
        text = of_module && receiver != NULL
                   ? PyUnicode_FromFormat("%s.forward (compiled)", _PyType_Name(Py_TYPE(receiver)))
                   : PyUnicode_FromFormat("%U (compiled)", name);
    }
    Py_XDECREF(name);
    return text != NULL ? text : PyUnicode_FromString("a function (compiled)");
}

static PyObject *call_in_range(Wrapper *wrapper, PyObject *const *args, size_t flags,
                               PyObject *kwnames) {
    PyObject *name = name_of_range(wrapper, args, flags);
    const char *text = name != NULL ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    void *range = begin_range(text != NULL ? text : "a function (compiled)");
    PyObject *result = call_in(wrapper->region, wrapper->function, args, flags, kwnames);
    end_range(range);
    Py_XDECREF(name);
    return result;
}

HOT static PyObject *wrapper_vectorcall(PyObject *self, PyObject *const *args, size_t flags,
                                    PyObject *kwnames) {
    Wrapper *wrapper = (Wrapper *)self;
    if (wrapper->region != NULL && profiler_runs()) {
        return call_in_range(wrapper, args, flags, kwnames);
    }
    return call_in(wrapper->region, wrapper->function, args, flags, kwnames);
}

static PyObject *wrapper_init(PyTypeObject *type, Region *region, PyObject *function) {
    if (!PyCallable_Check(function)) {
        PyErr_Format(PyExc_TypeError, "%R is not callable", function);
        return NULL;
    }
    Wrapper *self = (Wrapper *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = wrapper_vectorcall;
    self->region = (Region *)Py_XNewRef(region);
    self->function = Py_NewRef(function);
    self->dict = PyDict_New();
    static const char *names[] = {"__module__", "__name__", "__qualname__", "__doc__",
                                  "__annotations__"};
    PyObject *theirs = PyObject_GetAttrString(function, "__dict__");
    if (theirs != NULL && PyFunction_Check(function) && PyDict_Check(theirs)) {
        PyDict_Update(self->dict, theirs);
    }
    Py_XDECREF(theirs);
    PyErr_Clear();
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        PyObject *value = PyObject_GetAttrString(function, names[i]);
        if (value != NULL) {
            PyDict_SetItemString(self->dict, names[i], value);
            Py_DECREF(value);
        }
        PyErr_Clear();
    }
    if (self->dict == NULL || PyDict_SetItemString(self->dict, "__wrapped__", function) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *region, *function;
    if (!PyArg_ParseTuple(args, "OO:Compiled", &region, &function)) {
        return NULL;
    }
    if (region != Py_None && !PyObject_TypeCheck(region, &Region_Type)) {
        PyErr_SetString(PyExc_TypeError, "region must be a Region or None");
        return NULL;
    }
    return wrapper_init(type, region == Py_None ? NULL : (Region *)region, function);
}

static PyObject *disabled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function;
    return PyArg_ParseTuple(args, "O:Disabled", &function) ? wrapper_init(type, NULL, function)
                                                           : NULL;
}

static int wrapper_traverse(Wrapper *self, visitproc visit, void *arg) {
    Py_VISIT(self->region);
    Py_VISIT(self->function);
    Py_VISIT(self->dict);
    return 0;
}

static int wrapper_clear(Wrapper *self) {
    Py_CLEAR(self->region);
    Py_CLEAR(self->dict);
    PyObject *function = self->function;
    self->function = Py_NewRef(Py_None);
    Py_XDECREF(function);
    return 0;
}

static void wrapper_dealloc(Wrapper *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_CLEAR(self->region);
    Py_CLEAR(self->dict);
    Py_CLEAR(self->function);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *wrapper_get(PyObject *self, PyObject *object, PyObject *type) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *wrapper_getattr(PyObject *self, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* __code__, __defaults__, __closure__ and the like */
        value = PyObject_GetAttr(((Wrapper *)self)->function, name);
    }
    return value;
}

static PyObject *wrapper_repr(PyObject *self) {
    const char *kind = ((Wrapper *)self)->region == NULL ? "disabled" : "compiled";
    return PyUnicode_FromFormat("<%s %R>", kind, ((Wrapper *)self)->function);
}

/* Pickles by qualified name, as its function does; what wraps a method or another object as that. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *unused) {
    PyObject *function = ((Wrapper *)self)->function;
    return PyFunction_Check(function) ? PyObject_GetAttrString(function, "__qualname__")
                                      : PyObject_CallMethod(function, "__reduce_ex__", "i", 4);
}

/* A copy wraps the copy of what this one wraps (a method of the copied object, say): functions are
   no more copied than Python copies them. */
static PyObject *wrapper_deepcopy(PyObject *self, PyObject *memo) {
    Wrapper *wrapper = (Wrapper *)self;
    PyObject *copying = PyImport_ImportModule("copy");
    PyObject *function = copying == NULL ? NULL
        : PyObject_CallMethod(copying, "deepcopy", "OO", wrapper->function, memo);
    Py_XDECREF(copying);
    if (function == NULL || function == wrapper->function) {
        Py_XDECREF(function);
        return function == NULL ? NULL : Py_NewRef(self);
    }
    PyObject *result = wrapper_init(Py_TYPE(self), wrapper->region, function);
    Py_DECREF(function);
    if (result != NULL && PyDict_Merge(((Wrapper *)result)->dict, wrapper->dict, 0) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, "By name, like a function."},
    {"__deepcopy__", wrapper_deepcopy, METH_O, "Wraps a copy of what it wraps."}, {NULL}};
static PyMemberDef wrapper_members[] = {
    {"region", T_OBJECT, offsetof(Wrapper, region), READONLY, "The region (None if disabled)."},
    {"function", T_OBJECT, offsetof(Wrapper, function), READONLY, "What is called."},
    {"__dictoffset__", T_PYSSIZET, offsetof(Wrapper, dict), READONLY, ""},
    {NULL}};
static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL}, {NULL}};

#define WRAPPER_TYPE(NAME, NEW, DOC)                                                            \
    {                                                                                           \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = NAME, .tp_basicsize = sizeof(Wrapper),         \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |       \
                     Py_TPFLAGS_METHOD_DESCRIPTOR,                                              \
        .tp_doc = DOC, .tp_new = NEW, .tp_call = PyVectorcall_Call,                             \
        .tp_vectorcall_offset = offsetof(Wrapper, vectorcall), .tp_repr = wrapper_repr,         \
        .tp_dealloc = (destructor)wrapper_dealloc, .tp_traverse = (traverseproc)wrapper_traverse, \
        .tp_clear = (inquiry)wrapper_clear, .tp_dictoffset = offsetof(Wrapper, dict),           \
        .tp_weaklistoffset = offsetof(Wrapper, weakrefs), .tp_descr_get = wrapper_get,          \
        .tp_getattro = wrapper_getattr, .tp_setattro = PyObject_GenericSetAttr,                 \
        .tp_methods = wrapper_methods, .tp_members = wrapper_members,                           \
        .tp_getset = wrapper_getset,                                                            \
    }

PyTypeObject Compiled_Type = WRAPPER_TYPE("dynamo._C.Compiled", compiled_new,
                                          "Compiled(region, function): calls it inside a region.");
PyTypeObject Disabled_Type = WRAPPER_TYPE("dynamo._C.Disabled", disabled_new,
                                          "Disabled(function): calls it with the hook off.");

/* -- the module ---------------------------------------------------------------------------------- */

static PyObject *enter_disabled(PyObject *module, PyObject *unused) {
    if (push_region(NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *set_all_eager(PyObject *module, PyObject *value) {
    int truth = PyObject_IsTrue(value);
    if (truth < 0) {
        return NULL;
    }
    all_eager = truth;
    Py_RETURN_NONE;
}

static PyObject *current_region(PyObject *module, PyObject *unused) {
    PyObject *region = (PyObject *)thread_region.region;
    return Py_NewRef(region ? region : Py_None);
}

static PyObject *hook_counters(PyObject *module, PyObject *unused) {
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:n}", "hits", hook_counts[COUNT_HIT], "misses",
                         hook_counts[COUNT_MISS], "fallback_calls", hook_counts[COUNT_FALLBACK],
                         "guard_defects", hook_counts[COUNT_DEFECT], "threads_inside",
                         threads_inside);
}

static PyObject *mark_compiled(PyObject *module, PyObject *code) {
    CodeState *state = PyCode_Check(code) ? code_state((PyCodeObject *)code, 1) : NULL;
    if (state == NULL) {
        PyErr_SetString(PyExc_TypeError, "mark_compiled() takes a code object");
        return NULL;
    }
    state->compiled = 1;
    Py_RETURN_NONE;
}

static PyObject *forget_code(PyObject *module, PyObject *code) {
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "forget() takes a code object");
    }
    CodeState *owner = code_state((PyCodeObject *)code, 0);
    RegionState *s = owner ? owner->states : NULL;
    while (s != NULL) {
        int filled = s->count > 0 || s->mark != MARK_NONE;
        clear_state(s); /* what goes with the entries may take other regions with it: from the start */
        s = filled ? owner->states : s->next_of_code;
    }
    Py_RETURN_NONE;
}

static PyObject *entry_count(PyObject *module, PyObject *code) {
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "entry_count() takes a code object");
    }
    return PyLong_FromSsize_t(count_entries((PyCodeObject *)code));
}

static PyObject *set_skip(PyObject *module, PyObject *args) {
    PyObject *code, *region;
    int mark;
    if (!PyArg_ParseTuple(args, "O!O!i:set_skip", &PyCode_Type, &code, &Region_Type, &region, &mark)) {
        return NULL;
    }
    RegionState *state = make_state((PyCodeObject *)code, (Region *)region);
    if (state == NULL) {
        return NULL;
    }
    state->mark = (Mark)mark;
    Py_RETURN_NONE;
}

static PyMethodDef module_functions[] = {
    {"entry_count", entry_count, METH_O, "Entries of a code object in all regions."},
    {"forget", forget_code, METH_O, "Drops all entries and marks of a code object."},
    {"set_skip", set_skip, METH_VARARGS, "set_skip(code, region, 0 | 1 | 2): marks a code object."},
    {"enter_disabled", enter_disabled, METH_NOARGS, "Leaves all regions in this thread."},
    {"set_all_eager", set_all_eager, METH_O, "True: calls enter no region from now on."},
    {"leave", pop_region, METH_NOARGS, "Undoes the last enter of this thread."},
    {"current_region", current_region, METH_NOARGS, "The region of this thread, or None."},
    {"counters", hook_counters, METH_NOARGS, "What the hook has done so far."},
    {"call_moving", (PyCFunction)call_moving, METH_FASTCALL,
     "call_moving(function, *args): the caller keeps no reference to the arguments."},
    {"call_last", (PyCFunction)call_last, METH_FASTCALL,
     "call_last(function, *args): the same, of which new code returns the result at once."},
    {"checked_call", checked_call, METH_VARARGS,
     "checked_call(function, tensors, tensor_type, decide): its results are looked at."},
    {"rescued_call", rescued_call, METH_O, "rescued_call([function, rescue]): asks about errors."},
    {"read_item", (PyCFunction)read_item, METH_FASTCALL,
     "read_item(container, key): the item, whatever __getitem__ or __missing__ a subclass has."},
    {"read_dict", read_dict, METH_O, "read_dict(object): object.__getattribute__(.., '__dict__')."},
    {"read_entry", (PyCFunction)read_entry, METH_FASTCALL,
     "read_entry(object, name): of the object's own dict, or None."},
    {"store_attribute", (PyCFunction)store_attribute, METH_FASTCALL,
     "store_attribute(object, name, value): object.__setattr__."},
    {"store_item", (PyCFunction)store_item, METH_FASTCALL,
     "store_item(dict, key, value): dict.__setitem__."},
    {"store_ordered", (PyCFunction)store_ordered, METH_FASTCALL,
     "store_ordered(dict, key, value): OrderedDict.__setitem__."},
    {"set_table", set_table, METH_O, "set_table(set): what its slots hold, as bytes."},
    {"fill_set", (PyCFunction)fill_set, METH_FASTCALL,
     "fill_set(set or type, table, items): a set that has this table."},
    {"traceback", make_traceback, METH_VARARGS, "traceback(following, places): with more entries."},
    {"pass_on", pass_on, METH_VARARGS, "pass_on(error, places): they replace its first entry."},
    {"mark_compiled", mark_compiled, METH_O, "This code object is never offered to a callback."},
    {NULL}};

static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "dynamo._C",
                                               "The frame hook and the guard program.", -1,
                                               module_functions};
PyObject *skip_mark, *skip_recursive_mark, *known_only_mark;

PyMODINIT_FUNC PyInit__C(void) {
    PyTypeObject *types[] = {&Region_Type, &Entry_Type, &FrameState_Type, &Compiled_Type,
                             &LastCall_Type, &Disabled_Type, &Program_Type};
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL || entries_init() < 0 || program_ready() < 0) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            return NULL;
        }
    }
    skip_mark = PyUnicode_InternFromString("SKIP");
    skip_recursive_mark = PyUnicode_InternFromString("SKIP_RECURSIVE");
    PyModule_AddObjectRef(module, "SKIP", skip_mark);
    PyModule_AddObjectRef(module, "SKIP_RECURSIVE", skip_recursive_mark);
    known_only_mark = PyUnicode_InternFromString("KNOWN_ONLY");
    PyModule_AddObjectRef(module, "KNOWN_ONLY", known_only_mark);
    #ifdef DYNAMO_TORCH_VERSION
    PyModule_AddStringConstant(module, "torch_version", DYNAMO_TORCH_VERSION);
#endif
    return program_add_functions(module) < 0 ? NULL : module;
}
