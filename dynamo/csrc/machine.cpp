// The guard program's accessors and checks, and the loop that runs them one after the other.
//
// In: instructions and value registers. Out: the first instruction that fails, if any. Values are
// borrowed from the objects that hold them; when an accessor must run Python code the program starts
// over with owned values and without tags, for then anything may change on the way.
#include "machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "compare.h"
#include "lookup.h"
#include "tensor_guards.h"

namespace {

// True where the instruction must wait for a run that owns its values.
bool wants_python(const Run &run, const Instruction &in) {
    in.python = true;
    return !run.python;
}

// True for classes whose attributes `type` itself finds; a metaclass that defines `__getattr__`, as
// that of enums does, is asked only where there is no such attribute.
bool type_finds(PyTypeObject *metaclass) {
    if (metaclass->tp_getattro == PyType_Type.tp_getattro) {
        return true;
    }
    static PyObject *name = PyUnicode_InternFromString("__getattribute__");
    return name != nullptr && _PyType_Lookup(metaclass, name) == _PyType_Lookup(&PyType_Type, name);
}

// Attribute reads that run no Python code: modules, functions, C descriptors found on the type; of
// classes what `type` itself tells (`__mro__`, `__name__`).
// Returns 1 found (in *value, owned), 0 not there, -1 Python would have to run.
int plain_attribute(Run &run, PyObject *object, PyObject *name, PyObject **value) {
    PyTypeObject *type = Py_TYPE(object);
    if (PyModule_CheckExact(object)) {
        PyObject *names = PyModule_GetDict(object);
        PyObject *found = finds_name(names, name) ? PyDict_GetItemWithError(names, name) : nullptr;
        if (found != nullptr) {
            *value = run.borrow(found);
            return 1;
        }
        return -1;
    }
    bool generic = type->tp_getattro == PyObject_GenericGetAttr;
    if (PyType_Check(object) && type_finds(type)) {
        PyObject *found = _PyType_Lookup(type, name);  // these come before the class's own
        bool told = found != nullptr && (Py_IS_TYPE(found, &PyGetSetDescr_Type) ||
                                         Py_IS_TYPE(found, &PyMemberDescr_Type));
        *value = told ? run.own(PyType_Type.tp_getattro(object, name)) : nullptr;
        return *value != nullptr ? 1 : -1;
    }
    if (!generic) {  // a method also has the attributes of what it binds
        bool plain = PyFunction_Check(object) ||
                     (PyMethod_Check(object) && PyFunction_Check(PyMethod_GET_FUNCTION(object)));
        return plain ? ((*value = run.own(PyObject_GetAttr(object, name))) != nullptr) : -1;
    }
    PyObject **own = _PyObject_GetDictPtr(object);
    if (own != nullptr && *own != nullptr && !finds_name(*own, name)) {
        return -1;
    }
    PyObject *found = _PyType_Lookup(type, name);
    if (found != nullptr && tensor_asks_class != nullptr && tensor_asks_class(object)) {
        return -1;
    }
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
        PyObject *dict = type_dict((PyTypeObject *)object);
        return dict ? run.borrow(dict)
                    : run.own(PyObject_GetAttrString(object, "__dict__"));  // a fresh proxy
    }
    PyObject **slot = _PyObject_GetDictPtr(object);
    if (slot != nullptr && *slot != nullptr) {
        return run.borrow(*slot);
    }
    return run.own(PyObject_GenericGetDict(object, nullptr));
}

PyObject *item_of(Run &run, PyObject *container, const Instruction &in, bool *needs_python) {
    if (!finds_key(run, container, in.arg) && (*needs_python = wants_python(run, in))) {
        return nullptr;
    }
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
        if (is_python_class(Py_TYPE(container))) {
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
int has_attribute(Run &run, const Instruction &in, PyObject *object) {
    PyObject *value = nullptr;
    int found = plain_attribute(run, object, in.arg, &value);
    if (found >= 0) {
        return found;
    }
    if (wants_python(run, in)) {
        return -1;
    }
    value = PyObject_GetAttr(object, in.arg);
    if (value == nullptr) {
        PyErr_Clear();
        return 0;
    }
    run.owned->push_back(value);
    return 1;
}

bool share_no_memory(PyObject **values, const std::vector<int> &registers) {
    std::vector<std::pair<uintptr_t, uintptr_t>> spans;
    for (int at : registers) {
        uintptr_t first, last;
        if (tensor_span(values[at], &first, &last)) {
            spans.emplace_back(first, last);
        }
    }
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); i++) {
        if (spans[i].first < spans[i - 1].second) {
            return false;
        }
    }
    return true;
}

bool all_distinct(PyObject **values, const std::vector<int> &registers) {
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
        void *key = values[at];
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

int in_range(const Run &run, const Instruction &in, PyObject *value) {
    if (!PyLong_Check(value) && !PyFloat_Check(value)) {
        return 0;
    }
    richcmpfunc compare = Py_TYPE(value)->tp_richcompare;
    bool plain = compare == PyLong_Type.tp_richcompare || compare == PyFloat_Type.tp_richcompare ||
                 !is_python_class(Py_TYPE(value));
    if (!plain && wants_python(run, in)) {
        return NEEDS_PYTHON;
    }
    PyObject *bounds = in.arg;
    PyObject *low = PyTuple_GET_ITEM(bounds, 0), *high = PyTuple_GET_ITEM(bounds, 1);
    int held = low == Py_None ? 1 : PyObject_RichCompareBool(value, low, Py_GE);
    if (held == 1 && high != Py_None) {
        held = PyObject_RichCompareBool(value, high, Py_LE);
    }
    return held;
}

// The head of a numpy array, as numpy's binary interface fixes it.
struct ArrayHead {
    PyObject_HEAD
    char *data;
    int dimensions;
    void *sizes, *strides;
    PyObject *base, *descr;
    int flags;
};
constexpr int ALIGNED = 0x100, WRITEABLE = 0x400;

// No copy: `torch.from_numpy` of an array that may be written to.
PyObject *tensor_of_array(Run &run, const Instruction &in, PyObject *value) {
    PyObject *type = PyTuple_GET_ITEM(in.arg, 0), *function = PyTuple_GET_ITEM(in.arg, 1);
    if ((PyObject *)Py_TYPE(value) != type) {
        return nullptr;
    }
    int flags = ((ArrayHead *)value)->flags;
    bool ordinary = (flags & ALIGNED) && (flags & WRITEABLE);
    return ordinary ? run.own(PyObject_CallOneArg(function, value)) : nullptr;
}

PyObject *access(Run &run, const Instruction &in, PyObject *value, bool *needs_python) {
    const GuardScope *scope = run.scope;
    switch (in.opcode) {
        case OP_LOCAL:
            return run.borrow(slot_object(scope->slots[scope->local_index[in.extra]]));
        case OP_CELL:
            return scope->closure == nullptr
                       ? nullptr
                       : run.borrow(PyTuple_GET_ITEM(scope->closure, scope->cell_index[in.extra]));
        case OP_GLOBALS:
            return run.borrow(scope->globals);
        case OP_BUILTINS:
            return run.borrow(scope->builtins);
        case OP_OBJECT:
            return run.borrow(in.target);
        case OP_MODULE: {
            PyObject *modules = PyImport_GetModuleDict();
            *needs_python = !finds_name(modules, in.arg) && wants_python(run, in);
            return *needs_python ? nullptr : run.borrow(PyDict_GetItemWithError(modules, in.arg));
        }
        case OP_ITEM:
            return item_of(run, value, in, needs_python);
        case OP_DICT:
            return instance_dict(run, value);
        case OP_ATTR: {
            PyObject *found = nullptr;
            int known = plain_attribute(run, value, in.arg, &found);
            if (known >= 0) {
                return found;
            }
            *needs_python = wants_python(run, in);
            return run.python ? run.own(PyObject_GetAttr(value, in.arg)) : nullptr;
        }
        case OP_KEY_AT:
        case OP_VALUE_AT:
            if (PyDict_Check(value) && !lists_keys(run, value) &&
                (*needs_python = wants_python(run, in))) {
                return nullptr;
            }
            return run.own(
                dict_at(value, in.extra, in.opcode == OP_VALUE_AT, run.cursor_of(value)));
        case OP_CONTENTS:
            return PyCell_Check(value) ? run.borrow(PyCell_GET(value)) : nullptr;
        case OP_TYPE_OF:
            return run.borrow((PyObject *)Py_TYPE(value));
        case OP_DEREF:
            return run.borrow(weak_object(value));
        case OP_STATE:
            *needs_python = wants_python(run, in);
            return run.python ? run.own(PyObject_CallOneArg(in.arg, value)) : nullptr;
        case OP_CALL:
            return run.own(PyObject_CallNoArgs(value));
        case OP_ARRAY:
            return tensor_of_array(run, in, value);
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
            if (PyDict_Check(value) && !lists_keys(run, value) && wants_python(run, in)) {
                return NEEDS_PYTHON;
            }
            return dict_keys_equal(value, in.arg);
        case OP_DICT_HAS:
        case OP_DICT_LACKS:
            if (!finds_key(run, value, in.arg) && wants_python(run, in)) {
                return NEEDS_PYTHON;
            }
            if (Py_IS_TYPE(value, &PyDictProxy_Type)) {
                found = PyObject_IsTrue(value) < 0 ? -1 : PySequence_Contains(value, in.arg);
            } else if (PyAnySet_Check(value)) {
                found = PySet_Contains(value, in.arg);
            } else {
                found = PyDict_Check(value) ? PyDict_Contains(value, in.arg) : -2;
            }
            return found < 0 ? (found == -2 ? 0 : -1) : found == (in.opcode == OP_DICT_HAS);
        case OP_HAS_ATTR:
        case OP_LACKS_ATTR:
            found = has_attribute(run, in, value);
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
            return all_distinct(run.values, *(std::vector<int> *)in.spec);
        case OP_DISTINCT_STORAGE:
            return share_no_memory(run.values, *(std::vector<int> *)in.spec);
        case OP_CELL_EMPTY:
            return PyCell_Check(value) && PyCell_GET(value) == nullptr;
        case OP_WEAK_ALIVE:
            return PyWeakref_Check(value) && (weak_object(value) != nullptr) == in.extra;
        case OP_TRUTH:
            if ((is_python_class(Py_TYPE(value)) || is_python_proxy(value)) &&
                wants_python(run, in)) {
                return NEEDS_PYTHON;
            }
            found = PyObject_IsTrue(value);
            return found < 0 ? (PyErr_Clear(), 0) : found == in.extra;
        case OP_IN_RANGE:
            return in_range(run, in, value);
        case OP_SUBCLASS:
            return PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)in.arg);
        case OP_SHAPE:
            return shape_holds((const ShapeWords *)in.spec, run.values);
        default:
            PyErr_Format(PyExc_SystemError, "guard opcode %d is not a check", in.opcode);
            return -1;
    }
}

}  // namespace

HOT int step(Run &run, const Instruction &in) {
    PyObject **values = run.values;
    PyObject *value = in.src >= 0 ? values[in.src] : nullptr;
    switch (in.opcode) {
        case OP_IS_TYPE:
            return (PyObject *)Py_TYPE(value) == in.target;
        case OP_IS:
        case OP_IS_WEAK:
            return value == in.target;
        case OP_TENSOR:
            return tensor_spec_holds(in.spec, value);
        case OP_EMPTY:
            return PyDict_Check(value) && PyDict_GET_SIZE(value) == 0;
        case OP_GLOBAL_STATE:
            return global_state_holds(in.spec);
        default:
            break;
    }
    if (in.opcode > OP_TAG_SEAL) {
        return check(run, in, value);
    }
    bool needs_python = false;
    values[in.dst] = access(run, in, value, &needs_python);
    return needs_python ? NEEDS_PYTHON : values[in.dst] != nullptr;
}

int execute(Program *program, Run &run) {
    Instruction *begin = program->instructions->data();
    Instruction *end = begin + program->instructions->size();
    PyObject **values = run.values;
    for (Instruction *in = begin; in < end; in++) {
        if (in->opcode == OP_TAG_TEST) {
            PyObject *value = values[in->src];
            if (!run.python && in->dict == value && in->version != 0 && PyDict_Check(value) &&
                dict_version(value) == in->version) {
                in += in->extra;
            } else {
                in->dict = nullptr;
            }
        } else if (in->opcode == OP_TAG_SEAL) {
            if (!run.python) {
                Instruction *test = in - in->extra;
                PyObject *value = values[in->src];
                test->dict = value;
                test->version = PyDict_Check(value) ? dict_version(value) : 0;
            }
        } else {
            if (program->dead) {
                return (int)(in - begin);  // a guard's code let go of an object that is looked at
            }
            int held = step(run, *in);
            if (held != 1) {
                return held == 0              ? (int)(in - begin)
                       : held == NEEDS_PYTHON ? NEEDS_PYTHON
                                              : FAILED_WITH_ERROR;
            }
        }
    }
    return HOLDS;
}
