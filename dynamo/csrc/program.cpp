// The guard program: a flat list of accessors and checks over value registers.
//
// In: tuples (opcode, dst, src, extra, arg, guard number) made by `dynamo/guards/build.py`. Out: yes
// or no, and the tuple of collected values. Registers keep their values between runs, so that what
// hangs on an unchanged dict (TAG_TEST) is not fetched again. Values are borrowed from the objects
// that hold them; when an accessor must run Python code the program starts over with owned values
// and without tags, for then anything may change on the way.
#include "program.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "compare.h"
#include "opcodes.h"
#include "shape_machine.h"
#include "tensor_guards.h"

namespace {

#define NAME_OF(name) OP_##name,
enum Opcode : uint16_t { GUARD_OPCODES(NAME_OF) OPCODE_COUNT };
#undef NAME_OF
#define TEXT_OF(name) #name,
const char *const OPCODE_NAMES[] = {GUARD_OPCODES(TEXT_OF)};
#undef TEXT_OF

struct Instruction {
    uint16_t opcode;
    int32_t dst, src, extra, guard;
    PyObject *arg;
    void *spec;        // tensor facts, global state, shape words, register list
    PyObject *dict;    // TAG_TEST: the dict last sealed (borrowed, only compared)
    uint64_t version;  // TAG_TEST: its version then
};

struct Program {
    PyObject_HEAD
    std::vector<Instruction> *instructions;
    std::vector<PyObject *> *values;
    std::vector<PyObject *> *owned;
    std::vector<int> *collected;
    PyObject *local_names, *cell_names, *payload, *weakrefs;
    bool running, runs_python;
    unsigned long long full_walks;
};

enum Outcome { HOLDS = -1, NEEDS_PYTHON = -2, FAILED_WITH_ERROR = -3 };

struct Run {
    const GuardScope *scope;
    PyObject **values;
    std::vector<PyObject *> *owned;
    bool python;  // Python code may run: own all values, ignore tags

    PyObject *own(PyObject *value) {  // of a new reference
        if (value != nullptr) {
            owned->push_back(value);
        } else {
            PyErr_Clear();
        }
        return value;
    }
    PyObject *borrow(PyObject *value) {
        if (python && value != nullptr) {
            owned->push_back(Py_NewRef(value));
        }
        return value;
    }
};

// Attribute reads that run no Python code: modules, functions, and C descriptors found on the type.
// Returns 1 found (in *value, owned), 0 not there, -1 Python would have to run.
int plain_attribute(Run &run, PyObject *object, PyObject *name, PyObject **value) {
    PyTypeObject *type = Py_TYPE(object);
    if (PyModule_CheckExact(object)) {
        PyObject *found = PyDict_GetItemWithError(PyModule_GetDict(object), name);
        if (found != nullptr) {
            *value = run.borrow(found);
            return 1;
        }
        return -1;
    }
    bool generic = type->tp_getattro == PyObject_GenericGetAttr;
    if (!generic) {
        return PyFunction_Check(object) || PyMethod_Check(object)
                   ? ((*value = run.own(PyObject_GetAttr(object, name))) != nullptr)
                   : -1;
    }
    PyObject *found = _PyType_Lookup(type, name);
    if (found != nullptr) {
        descrgetfunc get = Py_TYPE(found)->tp_descr_get;
        bool safe = get == nullptr || Py_IS_TYPE(found, &PyGetSetDescr_Type) ||
                    Py_IS_TYPE(found, &PyMemberDescr_Type) || PyFunction_Check(found) ||
                    Py_IS_TYPE(found, &PyMethodDescr_Type) ||
                    Py_IS_TYPE(found, &PyWrapperDescr_Type);
        if (!safe) {
            return -1;
        }
    }
    *value = run.own(PyObject_GenericGetAttr(object, name));
    return *value != nullptr;
}

PyObject *instance_dict(Run &run, PyObject *object) {
    if (PyModule_Check(object)) {
        return run.borrow(PyModule_GetDict(object));
    }
    if (PyType_Check(object)) {
        return run.own(PyObject_GetAttrString(object, "__dict__"));  // a fresh proxy each time
    }
    PyObject **slot = _PyObject_GetDictPtr(object);
    if (slot != nullptr && *slot != nullptr) {
        return run.borrow(*slot);
    }
    return run.own(PyObject_GenericGetDict(object, nullptr));
}

PyObject *item_of(Run &run, PyObject *container, const Instruction &in) {
    if (PyDict_Check(container)) {
        PyObject *found = PyDict_GetItemWithError(container, in.arg);
        if (found == nullptr) {
            PyErr_Clear();
        }
        return run.borrow(found);
    }
    if (Py_IS_TYPE(container, &PyDictProxy_Type)) {
        return run.own(PyObject_GetItem(container, in.arg));
    }
    bool is_list = PyList_Check(container);
    if ((!is_list && !PyTuple_Check(container)) || !PyLong_CheckExact(in.arg)) {
        if (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
            return nullptr;
        }
        return run.own(PyObject_GetItem(container, in.arg));  // deque, range: C code
    }
    Py_ssize_t count = is_list ? PyList_GET_SIZE(container) : PyTuple_GET_SIZE(container);
    Py_ssize_t at = in.extra < 0 ? in.extra + count : in.extra;
    if (at < 0 || at >= count) {
        return nullptr;
    }
    return run.borrow(is_list ? PyList_GET_ITEM(container, at) : PyTuple_GET_ITEM(container, at));
}

PyObject *weak_object(PyObject *reference) {  // borrowed
    if (!PyWeakref_Check(reference)) {
        return nullptr;
    }
    PyObject *object = PyWeakref_GET_OBJECT(reference);
    return object == Py_None ? nullptr : object;
}

// 1 there, 0 not there, -1 Python would have to run.
int has_attribute(Run &run, PyObject *object, PyObject *name) {
    PyObject *value = nullptr;
    int found = plain_attribute(run, object, name, &value);
    if (found >= 0 || !run.python) {
        return found;
    }
    value = PyObject_GetAttr(object, name);
    if (value == nullptr) {
        PyErr_Clear();
        return 0;
    }
    run.owned->push_back(value);
    return 1;
}

bool all_distinct(PyObject **values, const std::vector<int> &registers, bool storages) {
    constexpr size_t LIMIT = 2048;
    size_t size = 8;
    while (size < 2 * registers.size()) {
        size *= 2;
    }
    void *small[LIMIT];
    std::vector<void *> large;
    void **table = small;
    if (size > LIMIT) {
        large.resize(size);
        table = large.data();
    }
    std::memset(table, 0, size * sizeof(void *));
    for (int at : registers) {
        void *key = storages ? tensor_storage(values[at]) : values[at];
        if (key == nullptr) {
            continue;
        }
        size_t slot = ((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15ull >> 32 & (size - 1);
        while (table[slot] != nullptr) {
            if (table[slot] == key) {
                return false;
            }
            slot = (slot + 1) & (size - 1);
        }
        table[slot] = key;
    }
    return true;
}

int in_range(PyObject *value, PyObject *bounds) {
    if (!PyLong_Check(value) && !PyFloat_Check(value)) {
        return 0;
    }
    PyObject *low = PyTuple_GET_ITEM(bounds, 0), *high = PyTuple_GET_ITEM(bounds, 1);
    int held = low == Py_None ? 1 : PyObject_RichCompareBool(value, low, Py_GE);
    if (held == 1 && high != Py_None) {
        held = PyObject_RichCompareBool(value, high, Py_LE);
    }
    return held;
}

PyObject *access(Run &run, const Instruction &in, PyObject *value, bool *needs_python) {
    const GuardScope *scope = run.scope;
    switch (in.opcode) {
        case OP_LOCAL:
            return run.borrow(scope->slots[scope->local_index[in.extra]]);
        case OP_CELL:
            return scope->closure == nullptr
                       ? nullptr
                       : run.borrow(PyTuple_GET_ITEM(scope->closure, scope->cell_index[in.extra]));
        case OP_GLOBALS:
            return run.borrow(scope->globals);
        case OP_BUILTINS:
            return run.borrow(scope->builtins);
        case OP_OBJECT:
            return in.arg;
        case OP_MODULE: {
            PyObject *modules = PyImport_GetModuleDict();
            return run.borrow(PyDict_GetItemWithError(modules, in.arg));
        }
        case OP_ITEM:
            return item_of(run, value, in);
        case OP_DICT:
            return instance_dict(run, value);
        case OP_ATTR: {
            PyObject *found = nullptr;
            int known = plain_attribute(run, value, in.arg, &found);
            if (known >= 0) {
                return found;
            }
            *needs_python = !run.python;
            return run.python ? run.own(PyObject_GetAttr(value, in.arg)) : nullptr;
        }
        case OP_KEY_AT:
        case OP_VALUE_AT:
            return run.borrow(dict_at(value, in.extra, in.opcode == OP_VALUE_AT));
        case OP_CONTENTS:
            return PyCell_Check(value) ? run.borrow(PyCell_GET(value)) : nullptr;
        case OP_TYPE_OF:
            return run.borrow((PyObject *)Py_TYPE(value));
        case OP_DEREF:
            return run.borrow(weak_object(value));
        case OP_REDUCE:
            if (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
                return nullptr;
            }
            return run.own(PyObject_CallMethod(value, "__reduce__", nullptr));
        default:
            return nullptr;
    }
}

// 1 holds, 0 fails, -1 error, NEEDS_PYTHON.
int check(Run &run, const Instruction &in, PyObject *value) {
    int found;
    switch (in.opcode) {
        case OP_EQUAL:
            return constants_equal(in.arg, value);
        case OP_LENGTH:
            return container_length(value) == in.extra;
        case OP_DICT_KEYS:
            return dict_keys_equal(value, in.arg);
        case OP_DICT_HAS:
        case OP_DICT_LACKS:
            if (Py_IS_TYPE(value, &PyDictProxy_Type)) {
                found = PyObject_IsTrue(value) < 0 ? -1 : PySequence_Contains(value, in.arg);
            } else {
                found = PyDict_Check(value) ? PyDict_Contains(value, in.arg) : -2;
            }
            return found < 0 ? (found == -2 ? 0 : -1) : found == (in.opcode == OP_DICT_HAS);
        case OP_HAS_ATTR:
        case OP_LACKS_ATTR:
            found = has_attribute(run, value, in.arg);
            return found < 0 ? NEEDS_PYTHON : found == (in.opcode == OP_HAS_ATTR);
        case OP_SET_ITEMS:
            return set_items_equal(value, in.arg);
        case OP_CODE:
            return PyFunction_Check(value) && PyFunction_GET_CODE(value) == in.arg;
        case OP_SAME:
            return value == run.values[in.extra];
        case OP_NOT_SAME:
            return value != run.values[in.extra];
        case OP_DISTINCT:
        case OP_DISTINCT_STORAGE:
            return all_distinct(run.values, *(std::vector<int> *)in.spec,
                                in.opcode == OP_DISTINCT_STORAGE);
        case OP_CELL_EMPTY:
            return PyCell_Check(value) && PyCell_GET(value) == nullptr;
        case OP_WEAK_ALIVE:
            return PyWeakref_Check(value) && (weak_object(value) != nullptr) == in.extra;
        case OP_TRUTH:
            if (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE && !run.python) {
                return NEEDS_PYTHON;
            }
            found = PyObject_IsTrue(value);
            return found < 0 ? (PyErr_Clear(), 0) : found == in.extra;
        case OP_IN_RANGE:
            return in_range(value, in.arg);
        case OP_SUBCLASS:
            return PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)in.arg);
        case OP_GLOBAL_STATE:
            return global_state_holds(in.spec);
        case OP_SHAPE:
            return shape_holds((const ShapeWords *)in.spec, run.values);
        default:
            PyErr_Format(PyExc_SystemError, "guard opcode %d is not a check", in.opcode);
            return -1;
    }
}

// Number of the instruction that failed, or an Outcome.
int execute(Program *program, Run &run) {
    Instruction *begin = program->instructions->data();
    Instruction *end = begin + program->instructions->size();
    PyObject **values = run.values;
    for (Instruction *in = begin; in < end; in++) {
        PyObject *value = in->src >= 0 ? values[in->src] : nullptr;
        int held;
        switch (in->opcode) {
            case OP_IS_TYPE:
                held = (PyObject *)Py_TYPE(value) == in->arg;
                break;
            case OP_IS:
                held = value == in->arg;
                break;
            case OP_IS_WEAK:
                held = PyWeakref_GET_OBJECT(in->arg) == value;
                break;
            case OP_TENSOR:
                held = tensor_spec_holds(in->spec, value);
                break;
            case OP_EMPTY:
                held = PyDict_Check(value) && PyDict_GET_SIZE(value) == 0;
                break;
            case OP_TAG_TEST:
                held = 1;
                if (!run.python && in->dict == value && in->version != 0 &&
                    PyDict_Check(value) && dict_version(value) == in->version) {
                    in += in->extra;
                } else {
                    in->dict = nullptr;
                }
                break;
            case OP_TAG_SEAL:
                held = 1;
                if (!run.python) {
                    Instruction *test = in - in->extra;
                    test->dict = value;
                    test->version = PyDict_Check(value) ? dict_version(value) : 0;
                }
                break;
            default:
                if (in->opcode < OP_TAG_TEST) {
                    bool needs_python = false;
                    values[in->dst] = access(run, *in, value, &needs_python);
                    if (needs_python) {
                        return NEEDS_PYTHON;
                    }
                    held = values[in->dst] != nullptr;
                } else {
                    held = check(run, *in, value);
                    if (held < 0) {
                        return held == NEEDS_PYTHON ? NEEDS_PYTHON : FAILED_WITH_ERROR;
                    }
                }
        }
        if (!held) {
            return (int)(in - begin);
        }
    }
    return HOLDS;
}

PyObject *collect(Program *program, PyObject **values) {
    Py_ssize_t count = (Py_ssize_t)program->collected->size();
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != nullptr && i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[(*program->collected)[i]]));
    }
    return tuple;
}

// Runs once; *failed gets the instruction that failed (or -1).
int run_once(Program *program, const GuardScope *scope, PyObject **inputs, int *failed) {
    std::vector<PyObject *> own_values, own_temporaries;
    bool nested = program->running;  // a guard's Python code came back to this program
    bool python = nested || program->runs_python;
    if (python) {
        own_values.resize(program->values->size());
    }
    Run run{scope, python ? own_values.data() : program->values->data(),
            python ? &own_temporaries : program->owned, python};
    program->running = true;
    int outcome = execute(program, run);
    program->running = nested;
    int result = outcome == HOLDS;
    *failed = outcome >= 0 ? outcome : -1;
    if (outcome == HOLDS && !program->collected->empty()) {
        *inputs = collect(program, run.values);
        result = *inputs == nullptr ? -1 : 1;
    } else if (outcome == FAILED_WITH_ERROR) {
        PyErr_Clear();  // a comparison that raises is a comparison that fails
    }
    while (!run.owned->empty()) {
        PyObject *value = run.owned->back();
        run.owned->pop_back();
        Py_DECREF(value);
    }
    if (outcome == NEEDS_PYTHON) {
        program->runs_python = true;
        return run_once(program, scope, inputs, failed);
    }
    return result;
}

}  // namespace

extern "C" {

int program_run(PyObject *self, const GuardScope *scope, PyObject **inputs) {
    int failed;
    return run_once((Program *)self, scope, inputs, &failed);
}

PyObject *program_local_names(PyObject *self) { return ((Program *)self)->local_names; }
PyObject *program_cell_names(PyObject *self) { return ((Program *)self)->cell_names; }
int program_collects(PyObject *self) { return !((Program *)self)->collected->empty(); }
}

namespace {

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
        if (!make_spec(self->instructions->back())) {
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
    int held = run_once(self, &scope, &inputs, &failed);
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
    return PyType_Ready(type);
}
}
