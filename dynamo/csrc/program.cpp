// The guard program as a Python object: made from tuples, run over the values of a frame.
//
// In: tuples (opcode, dst, src, extra, arg, guard number) made by `dynamo/guards/build.py`. Out: yes or
// no, and the tuple of collected values. Where the objects that it is about are only referred to
// weakly, the program dies with the first of them.
#include <unordered_map>

#include "machine.h"
#include "plan.h"
#include "tensor_guards.h"

namespace {

#define TEXT_OF(name) #name,
const char *const OPCODE_NAMES[] = {GUARD_OPCODES(TEXT_OF)};
#undef TEXT_OF

PyObject *collect(Program *program, PyObject **values) {
    Py_ssize_t count = (Py_ssize_t)program->collected->size();
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != nullptr && i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[(*program->collected)[i]]));
    }
    return tuple;
}

void release(std::vector<PyObject *> &owned) {
    while (!owned.empty()) {
        PyObject *value = owned.back();
        owned.pop_back();
        Py_DECREF(value);
    }
}

// What comes of a run whose guards hold: 1, or -1 with an error set.
HOT int take_inputs(Program *program, const Run &run, PyObject **inputs, PyObject **items) {
    if (items != nullptr) {
        for (int at : *program->collected) {
            *items++ = Py_NewRef(run.values[at]);
        }
        return 1;
    }
    if (program->collected->empty()) {
        return 1;
    }
    *inputs = collect(program, run.values);
    return *inputs == nullptr ? -1 : 1;
}

// Runs Python code where guards need it: all values are owned, nothing is remembered.
int run_python(Program *program, const GuardScope *scope, PyObject **inputs, PyObject **items,
               int *failed) {
    std::vector<PyObject *> values(program->values->size()), owned;
    bool nested = program->running;
    Run run{scope, values.data(), &owned, true};
    program->running = true;
    int outcome = execute(program, run);
    program->running = nested;
    *failed = outcome >= 0 ? outcome : -1;
    int result = outcome == HOLDS ? take_inputs(program, run, inputs, items) : 0;
    if (outcome != HOLDS) {
        PyErr_Clear();  // a comparison that raises is a comparison that fails
    }
    release(owned);
    return result;
}

// Runs once; *failed gets the instruction that failed (or -1).
HOT int run_once(Program *program, const GuardScope *scope, PyObject **inputs, PyObject **items,
             int *failed) {
    *failed = -1;
    if (program->dead) {
        return 0;
    }
    if (program->runs_python || program->running) {  // running: a guard's code came back to it
        return run_python(program, scope, inputs, items, failed);
    }
    program->running = true;
    int garbage = hold_garbage();
    Run run{scope, nullptr, program->owned, false};
    Answer answer = plan_run(program, run, failed);
    int outcome = answer == PLAN_HOLDS ? HOLDS : *failed;
    if (answer == PLAN_UNKNOWN) {
        PyErr_Clear();
        run.values = program->values->data();
        outcome = execute(program, run);
        if (outcome == HOLDS) {
            plan_make(program, scope);
        }
    }
    program->running = false;
    *failed = outcome >= 0 ? outcome : -1;
    int result = outcome == HOLDS ? take_inputs(program, run, inputs, items) : 0;
    if (outcome != HOLDS) {
        PyErr_Clear();  // a comparison that raises is a comparison that fails
    }
    free_garbage(garbage);
    release(*program->owned);
    if (outcome == NEEDS_PYTHON) {
        program->runs_python = true;
        return run_python(program, scope, inputs, items, failed);
    }
    return result;
}

}  // namespace

extern "C" {

HOT int program_run(PyObject *self, const GuardScope *scope, PyObject **inputs, PyObject **items) {
    int failed;
    return run_once((Program *)self, scope, inputs, items, &failed);
}

PyObject *program_local_names(PyObject *self) { return ((Program *)self)->local_names; }
PyObject *program_cell_names(PyObject *self) { return ((Program *)self)->cell_names; }
Py_ssize_t program_collects(PyObject *self) {
    return (Py_ssize_t)((Program *)self)->collected->size();
}
int program_runs_python(PyObject *self) { return ((Program *)self)->runs_python; }

void program_watch(PyObject *self, void (*on_death)(void *), void *owner) {
    Program *program = (Program *)self;
    program->on_death = on_death;
    program->owner = owner;
}
}

namespace {

// A weak reference died: so does its program.
PyObject *note_death(PyObject *program_reference, PyObject *reference) {
    // What the plan lets go of may take the program with it, and the program its references.
    Program *program = (Program *)Py_NewRef(PyWeakref_GET_OBJECT(program_reference));
    Py_INCREF(reference);
    if ((PyObject *)program != Py_None) {
        program->dead = true;
        plan_drop(program);
        if (program->on_death != nullptr) {
            program->on_death(program->owner);
        }
    }
    Py_DECREF(reference);
    Py_DECREF(program);
    Py_RETURN_NONE;
}

PyMethodDef note_death_definition = {"note_death", note_death, METH_O, nullptr};

bool is_weak(const Instruction &in) {
    return in.opcode == OP_IS_WEAK ||
           ((in.opcode == OP_IS_TYPE || in.opcode == OP_OBJECT) && PyType_Check(in.arg) &&
            (((PyTypeObject *)in.arg)->tp_flags & Py_TPFLAGS_HEAPTYPE));
}

using References = std::unordered_map<PyObject *, PyObject *>;  // of one program, by their objects

PyObject *refer(Program *program, PyObject *target, References &known) {
    PyObject *&reference = known[target];
    if (reference != nullptr) {
        return Py_NewRef(reference);
    }
    PyObject *self = PyWeakref_NewRef((PyObject *)program, nullptr);
    PyObject *callback = self ? PyCFunction_New(&note_death_definition, self) : nullptr;
    reference = callback ? PyWeakref_NewRef(target, callback) : nullptr;
    Py_XDECREF(callback);
    Py_XDECREF(self);
    return reference;
}

// True for what equals itself alone, may die and can be referred to weakly.
bool may_die(PyObject *key) {
    if (PyType_Check(key)) {
        return ((PyTypeObject *)key)->tp_flags & Py_TPFLAGS_HEAPTYPE;
    }
    PyTypeObject *type = Py_TYPE(key);
    return PyFunction_Check(key) || (type->tp_flags & Py_TPFLAGS_HEAPTYPE &&
                                     type->tp_weaklistoffset != 0 && !PyWeakref_Check(key));
}

// The keys as `dict_keys_equal` takes them.
PyObject *refer_to_keys(Program *program, PyObject *keys, References &known) {
    PyObject *found = PyTuple_New(PyTuple_GET_SIZE(keys));
    for (Py_ssize_t i = 0; found != nullptr && i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (!may_die(key)) {
            PyTuple_SET_ITEM(found, i, Py_NewRef(key));
            continue;
        }
        PyObject *holder = PyList_New(1), *reference = refer(program, key, known);
        if (holder != nullptr) {
            PyTuple_SET_ITEM(found, i, holder);
            PyList_SET_ITEM(holder, 0, Py_XNewRef(reference));
        }
        Py_XDECREF(reference);
        if (holder == nullptr || reference == nullptr) {
            Py_CLEAR(found);
        }
    }
    return found;
}

// Sets `target`; objects that would be kept alive for ever are referred to weakly.
bool set_target(Program *program, Instruction &in, References &known) {
    in.target = in.arg;
    const bool keys = in.opcode == OP_DICT_KEYS;
    if (!keys && !is_weak(in)) {
        return true;
    }
    PyObject *made = keys ? refer_to_keys(program, in.arg, known) : refer(program, in.arg, known);
    if (made == nullptr) {
        return false;
    }
    if (keys) {
        in.target = made;
    }
    Py_SETREF(in.arg, made);
    return true;
}

bool make_spec(Instruction &in) {
    switch (in.opcode) {
        case OP_TENSOR:
        case OP_GLOBAL_STATE:
            if (tensor_spec_new == nullptr) {
                PyErr_SetString(PyExc_RuntimeError, "dynamo._C was built without torch");
                return false;
            }
            in.spec = in.opcode == OP_TENSOR ? tensor_spec_new(in.arg) : global_state_new(in.arg);
            return in.spec != nullptr;
        case OP_SHAPE:
            in.spec = shape_words_new(in.arg);
            return in.spec != nullptr;
        case OP_DISTINCT:
        case OP_DISTINCT_STORAGE: {
            auto *registers = new std::vector<int>;
            for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(in.arg); i++) {
                registers->push_back((int)PyLong_AsLong(PyTuple_GET_ITEM(in.arg, i)));
            }
            in.spec = registers;
            return !PyErr_Occurred();
        }
        default:
            return true;
    }
}

void free_spec(Instruction &in) {
    if (in.spec == nullptr) {
        return;
    }
    switch (in.opcode) {
        case OP_TENSOR:
            tensor_spec_free(in.spec);
            break;
        case OP_GLOBAL_STATE:
            global_state_free(in.spec);
            break;
        case OP_SHAPE:
            shape_words_free((ShapeWords *)in.spec);
            break;
        default:
            delete (std::vector<int> *)in.spec;
    }
    in.spec = nullptr;
}

PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *keywords[] = {"instructions", "registers", "local_names", "cell_names",
                                     "collect", "payload", nullptr};
    PyObject *list, *locals, *cells, *collected, *payload = Py_None;
    int registers;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!iO!O!O!|O", (char **)keywords, &PyList_Type,
                                     &list, &registers, &PyTuple_Type, &locals, &PyTuple_Type,
                                     &cells, &PyTuple_Type, &collected, &payload)) {
        return nullptr;
    }
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self == nullptr) {
        return nullptr;
    }
    self->instructions = new std::vector<Instruction>;
    self->values = new std::vector<PyObject *>((size_t)registers);
    self->owned = new std::vector<PyObject *>;
    self->collected = new std::vector<int>;
    self->local_names = Py_NewRef(locals);
    self->cell_names = Py_NewRef(cells);
    self->payload = Py_NewRef(payload);
    References weak;
    self->instructions->reserve((size_t)PyList_GET_SIZE(list));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        Instruction in{};
        int opcode;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iiiiOi", &opcode, &in.dst, &in.src,
                              &in.extra, &in.arg, &in.guard)) {
            Py_DECREF(self);
            return nullptr;
        }
        in.opcode = (uint16_t)opcode;
        Py_INCREF(in.arg);
        self->instructions->push_back(in);
        if (!set_target(self, self->instructions->back(), weak) ||
            !make_spec(self->instructions->back())) {
            Py_DECREF(self);
            return nullptr;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(collected); i++) {
        self->collected->push_back((int)PyLong_AsLong(PyTuple_GET_ITEM(collected, i)));
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

int program_traverse(PyObject *object, visitproc visit, void *arg) {
    Program *self = (Program *)object;
    if (self->instructions != nullptr) {
        for (Instruction &in : *self->instructions) {
            Py_VISIT(in.arg);
        }
    }
    Py_VISIT(self->payload);
    return 0;
}

int program_clear(PyObject *object) {
    Program *self = (Program *)object;
    Py_CLEAR(self->payload);
    return 0;
}

void program_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    Program *self = (Program *)object;
    if (self->weakrefs != nullptr) {
        PyObject_ClearWeakRefs(object);
    }
    plan_free(self);
    if (self->instructions != nullptr) {
        for (Instruction &in : *self->instructions) {
            free_spec(in);
            Py_CLEAR(in.arg);
        }
    }
    delete self->instructions;
    delete self->values;
    delete self->owned;
    delete self->collected;
    Py_CLEAR(self->local_names);
    Py_CLEAR(self->cell_names);
    Py_CLEAR(self->payload);
    Py_TYPE(object)->tp_free(object);
}

// run(locals, globals, builtins, cells) -> (collected tuple or None, guard number that failed or -1)
PyObject *program_check(PyObject *object, PyObject *args) {
    Program *self = (Program *)object;
    PyObject *locals, *globals, *builtins, *cells = nullptr;
    if (!PyArg_ParseTuple(args, "O!OO|O!:run", &PyDict_Type, &locals, &globals, &builtins,
                          &PyDict_Type, &cells)) {
        return nullptr;
    }
    Py_ssize_t local_count = PyTuple_GET_SIZE(self->local_names);
    Py_ssize_t cell_count = PyTuple_GET_SIZE(self->cell_names);
    std::vector<PyObject *> slots((size_t)local_count + 1);
    std::vector<int> index((size_t)(local_count + cell_count + 1));
    for (size_t i = 0; i < index.size(); i++) {
        index[i] = (int)i;
    }
    for (Py_ssize_t i = 0; i < local_count; i++) {
        slots[i] = PyDict_GetItemWithError(locals, PyTuple_GET_ITEM(self->local_names, i));
    }
    PyObject *closure = PyTuple_New(cell_count);
    for (Py_ssize_t i = 0; closure != nullptr && i < cell_count; i++) {
        PyObject *name = PyTuple_GET_ITEM(self->cell_names, i);
        PyObject *cell = cells ? PyDict_GetItemWithError(cells, name) : nullptr;
        if (cell == nullptr) {
            PyErr_SetObject(PyExc_KeyError, name);
            Py_DECREF(closure);
            return nullptr;
        }
        PyTuple_SET_ITEM(closure, i, Py_NewRef(cell));
    }
    GuardScope scope{slots.data(), index.data(), globals, builtins, closure, index.data()};
    PyObject *inputs = nullptr;
    int failed = -1;
    int held = run_once(self, &scope, &inputs, nullptr, &failed);
    Py_XDECREF(closure);
    if (held < 0) {
        return nullptr;
    }
    int guard = failed >= 0 ? (*self->instructions)[(size_t)failed].guard : -1;
    if (held == 1 && inputs == nullptr) {
        inputs = PyTuple_New(0);
    }
    return Py_BuildValue("NiO", inputs ? inputs : Py_NewRef(Py_None), guard,
                         held ? Py_True : Py_False);
}

PyObject *program_dump(PyObject *object, PyObject *) {
    Program *self = (Program *)object;
    PyObject *list = PyList_New(0);
    for (const Instruction &in : *self->instructions) {
        PyObject *row = Py_BuildValue("siiiOi", OPCODE_NAMES[in.opcode], in.dst, in.src, in.extra,
                                      in.arg, in.guard);
        if (row == nullptr || PyList_Append(list, row) < 0) {
            Py_XDECREF(row);
            Py_DECREF(list);
            return nullptr;
        }
        Py_DECREF(row);
    }
    return list;
}

PyMethodDef program_methods[] = {
    {"run", program_check, METH_VARARGS,
     "run(locals, globals, builtins, cells={}) -> (collected or None, failed guard or -1, held)"},
    {"dump", program_dump, METH_NOARGS, "The instructions as tuples."},
    {nullptr}};
PyObject *program_plan(PyObject *object, void *) { return plan_summary((Program *)object); }
PyObject *program_python_steps(PyObject *object, void *) {
    Program *self = (Program *)object;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != nullptr && i < self->instructions->size(); i++) {
        PyObject *number = (*self->instructions)[i].python ? PyLong_FromSize_t(i) : nullptr;
        if (number != nullptr && PyList_Append(list, number) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list;
}
PyObject *program_alive(PyObject *object, void *) {
    return PyBool_FromLong(!((Program *)object)->dead);
}
PyGetSetDef program_getset[] = {
    {"plan", program_plan, nullptr,
     "(anchors, stamps, numbers of instructions still run) of the short cut, or None.", nullptr},
    {"python_steps", program_python_steps, nullptr,
     "Numbers of the instructions that had to run Python code so far.", nullptr},
    {"alive", program_alive, nullptr, "False once an object died that it is about.", nullptr},
    {nullptr}};
PyMemberDef program_members[] = {
    {"payload", T_OBJECT, offsetof(Program, payload), READONLY, "The guards, in program order."},
    {"local_names", T_OBJECT, offsetof(Program, local_names), READONLY, "Arguments it reads."},
    {"cell_names", T_OBJECT, offsetof(Program, cell_names), READONLY, "Free variables it reads."},
    {"runs_python", T_BOOL, offsetof(Program, runs_python), READONLY,
     "Whether some accessor had to run Python code."},
    {nullptr}};

}  // namespace

extern "C" {
PyTypeObject Program_Type = {PyVarObject_HEAD_INIT(nullptr, 0)};

int program_add_functions(PyObject *module) {
    PyObject *opcodes = PyDict_New();
    for (int i = 0; opcodes != nullptr && i < OPCODE_COUNT; i++) {
        PyObject *number = PyLong_FromLong(i);
        PyDict_SetItemString(opcodes, OPCODE_NAMES[i], number);
        Py_DECREF(number);
    }
    if (opcodes == nullptr || PyModule_AddObject(module, "OPCODES", opcodes) < 0) {
        return -1;
    }
    return tensor_add_functions != nullptr ? tensor_add_functions(module) : 0;
}

int program_ready(void) {
    PyTypeObject *type = &Program_Type;
    type->tp_name = "dynamo._C.Program";
    type->tp_basicsize = sizeof(Program);
    type->tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    type->tp_doc = "A guard program; made by dynamo.guards.build.build_program.";
    type->tp_new = program_new;
    type->tp_dealloc = program_dealloc;
    type->tp_traverse = program_traverse;
    type->tp_clear = program_clear;
    type->tp_weaklistoffset = offsetof(Program, weakrefs);
    type->tp_methods = program_methods;
    type->tp_members = program_members;
    type->tp_getset = program_getset;
    return PyType_Ready(type);
}
}
