// The guard program: a tree of accessors over a frame and the checks at its nodes, run without any Python code.
//
// Program(nodes, checks, collect): nodes are (kind, parent, argument) with parents first, checks (kind, node, payload), collect a
// tuple of node numbers whose values become the frame's graph inputs. The numbering of kinds is shared with guards/kinds.py.
#include "guards.h"
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/MaybeOwned.h>
#include <string.h>
#include <string>
#include <vector>

namespace {

enum NodeKind { LOCAL, FREE_CELL, GLOBALS, BUILTIN, MODULE, OBJECT, ATTR, DICT, ITEM, DICT_KEY, DICT_VALUE,
                CELL_CONTENTS, TYPE_OF, WEAKREF, REDUCE };
enum CheckKind { TYPE, ID, CONST, TENSOR, LENGTH, DICT_KEYS, DICT_HAS, DICT_LACKS, SET_ITEMS, HAS_ATTR, LACKS_ATTR, CODE,
                 SAME, NOT_SAME, GLOBAL_STATE, CELL_EMPTY };

struct State {  // torch's state of this thread, as far as it changes what an operation does
    bool grad, inference;
    uint64_t included, excluded;
    c10::ScalarType dtype;
    static State now() {
        auto keys = c10::impl::tls_local_dispatch_key_set();
        auto& autograd = c10::AutogradState::get_tls_state();
        return {autograd.get_grad_mode(), autograd.get_inference_mode(), keys.included_.raw_repr(),
                keys.excluded_.raw_repr(), c10::get_default_dtype_as_scalartype()};
    }
    bool operator==(const State& o) const {
        return grad == o.grad && inference == o.inference && included == o.included && excluded == o.excluded &&
               dtype == o.dtype;
    }
};

struct TensorFacts {
    uint64_t keys;
    c10::ScalarType dtype;
    c10::Device device{c10::kCPU};
    bool requires_grad;
    std::vector<int64_t> sizes, strides;  // -1: any
};

// How torch's Python tensors begin; setup.py reads off the installed header which of the two it is.
#ifdef TENSOR_OWNED
struct THPVariableHead { PyObject_HEAD c10::intrusive_ptr<c10::TensorImpl> cdata; };
#define TENSOR_IMPL(object) reinterpret_cast<THPVariableHead*>(object)->cdata.get()
#else
struct THPVariableHead { PyObject_HEAD c10::MaybeOwned<c10::intrusive_ptr<c10::TensorImpl>> cdata; };
#define TENSOR_IMPL(object) (*reinterpret_cast<THPVariableHead*>(object)->cdata).get()
#endif
PyTypeObject* tensor_base = nullptr;

c10::TensorImpl* tensor_of(PyObject* value) {
    if (!tensor_base || !PyObject_TypeCheck(value, tensor_base)) return nullptr;
    return TENSOR_IMPL(value);
}

struct Node { int kind, parent; PyObject* argument; Py_ssize_t index; };
struct Check { int kind, node; PyObject* payload; PyObject* weak; Py_ssize_t number; TensorFacts tensor; };

struct Program {
    PyObject_HEAD
    std::vector<Node>* nodes;
    std::vector<std::vector<Check>>* checks;  // by node; the last holds those that need several nodes or none
    std::vector<int>* collect;
    State* state;
    int failed_kind, failed_node;
};

bool const_equal(PyObject* a, PyObject* b) {
    if (a == b) return true;
    if (Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyComplex_CheckExact(a)) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyTuple_CheckExact(a)) {
        if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++)
            if (!const_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
        return true;
    }
    if (PySlice_Check(a)) {
        auto x = reinterpret_cast<PySliceObject*>(a), y = reinterpret_cast<PySliceObject*>(b);
        return const_equal(x->start, y->start) && const_equal(x->stop, y->stop) && const_equal(x->step, y->step);
    }
    int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal == 1;
}

// The value of a node as a new reference, or null (an error is cleared) where the path is gone.
PyObject* fetch(const Node& node, PyObject* base, const FrameView* view) {
    PyObject* value = nullptr;
    switch (node.kind) {
        case LOCAL: value = view->localsplus[node.index]; return Py_XNewRef(value);
        case FREE_CELL:
            return view->closure && node.index < PyTuple_GET_SIZE(view->closure)
                       ? Py_NewRef(PyTuple_GET_ITEM(view->closure, node.index)) : nullptr;
        case GLOBALS: return Py_NewRef(view->globals);
        case BUILTIN: value = PyDict_GetItemWithError(view->builtins, node.argument); break;
        case MODULE: value = PyDict_GetItemWithError(PyImport_GetModuleDict(), node.argument); break;
        case OBJECT: return Py_NewRef(node.argument);
        case ATTR: value = PyObject_GetAttr(base, node.argument); if (!value) PyErr_Clear(); return value;
        case DICT:
            if (PyType_Check(base) || PyModule_Check(base)) value = PyObject_GetAttrString(base, "__dict__");
            else value = PyObject_GenericGetDict(base, nullptr);
            if (!value) PyErr_Clear();
            return value;
        case ITEM:
            if (PyDict_Check(base)) value = PyDict_GetItemWithError(base, node.argument);
            else if (PyList_Check(base) || PyTuple_Check(base)) {
                if (!PyLong_Check(node.argument)) return nullptr;
                Py_ssize_t n = Py_SIZE(base), i = node.index < 0 ? node.index + n : node.index;
                if (i < 0 || i >= n) return nullptr;
                value = PyList_Check(base) ? PyList_GET_ITEM(base, i) : PyTuple_GET_ITEM(base, i);
            } else {
                value = PyObject_GetItem(base, node.argument);
                if (!value) PyErr_Clear();
                return value;
            }
            break;
        case DICT_KEY: case DICT_VALUE: {
            PyObject *key, *item;
            Py_ssize_t position = 0, i = 0;
            if (!PyDict_Check(base)) return nullptr;
            while (PyDict_Next(base, &position, &key, &item))
                if (i++ == node.index) return Py_NewRef(node.kind == DICT_KEY ? key : item);
            return nullptr;
        }
        case CELL_CONTENTS: return PyCell_Check(base) ? Py_XNewRef(PyCell_GET(base)) : nullptr;
        case TYPE_OF: return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(base)));
        case WEAKREF: return PyWeakref_Check(base) ? PyObject_CallNoArgs(base) : nullptr;
        case REDUCE: value = PyObject_CallMethod(base, "__reduce__", nullptr); if (!value) PyErr_Clear(); return value;
    }
    if (!value && PyErr_Occurred()) PyErr_Clear();
    return Py_XNewRef(value);
}

bool check_tensor(const TensorFacts& want, PyObject* value) {
    c10::TensorImpl* t = tensor_of(value);
    if (!t || t->key_set().raw_repr() != want.keys || t->dtype().toScalarType() != want.dtype ||
        t->device() != want.device || t->requires_grad() != want.requires_grad ||
        t->dim() != static_cast<int64_t>(want.sizes.size()))
        return false;
    auto sizes = t->sizes(), strides = t->strides();
    for (size_t i = 0; i < want.sizes.size(); i++)
        if ((want.sizes[i] >= 0 && sizes[i] != want.sizes[i]) || (want.strides[i] >= 0 && strides[i] != want.strides[i]))
            return false;
    return true;
}

bool check_keys(PyObject* value, PyObject* want) {
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(want)) return false;
    PyObject *key, *item;
    Py_ssize_t position = 0, i = 0;
    if (PyDict_CheckExact(value)) {
        while (PyDict_Next(value, &position, &key, &item))
            if (!const_equal(key, PyTuple_GET_ITEM(want, i++))) return false;
        return true;
    }
    PyObject* keys = PySequence_Tuple(value);  // an OrderedDict keeps an order of its own
    if (!keys) { PyErr_Clear(); return false; }
    bool same = PyTuple_GET_SIZE(keys) == PyTuple_GET_SIZE(want);
    for (i = 0; same && i < PyTuple_GET_SIZE(keys); i++)
        same = const_equal(PyTuple_GET_ITEM(keys, i), PyTuple_GET_ITEM(want, i));
    Py_DECREF(keys);
    return same;
}

bool holds(const Check& check, PyObject* value, PyObject* const* values, const State* state) {
    switch (check.kind) {
        case TYPE: return reinterpret_cast<PyObject*>(Py_TYPE(value)) == check.payload;
        case ID:
            if (!check.weak) return value == check.payload;
            return PyWeakref_GetObject(check.weak) == value;
        case CONST: return const_equal(value, check.payload);
        case TENSOR: return check_tensor(check.tensor, value);
        case LENGTH: {
            Py_ssize_t n = PyObject_Size(value);
            if (n < 0) PyErr_Clear();
            return n == check.number;
        }
        case DICT_KEYS: return check_keys(value, check.payload);
        case DICT_HAS: case DICT_LACKS: {
            int has = PyMapping_Check(value) ? (PyDict_Check(value) ? PyDict_Contains(value, check.payload)
                                                                     : PySequence_Contains(value, check.payload)) : -1;
            if (has < 0) PyErr_Clear();
            return has == (check.kind == DICT_HAS);
        }
        case SET_ITEMS: {
            if (!PyAnySet_Check(value)) return false;
            int equal = PyObject_RichCompareBool(value, check.payload, Py_EQ);
            if (equal < 0) PyErr_Clear();
            return equal == 1;
        }
        case HAS_ATTR: case LACKS_ATTR: {
            PyObject* found = PyObject_GetAttr(value, check.payload);
            if (!found) PyErr_Clear();
            bool has = found != nullptr;
            Py_XDECREF(found);
            return has == (check.kind == HAS_ATTR);
        }
        case CODE: return PyFunction_Check(value) && PyFunction_GET_CODE(value) == check.payload;
        case SAME: return values[check.node] == values[check.number];
        case NOT_SAME: return values[check.node] != values[check.number];
        case GLOBAL_STATE: return State::now() == *state;
        case CELL_EMPTY: return PyCell_Check(value) && PyCell_GET(value) == nullptr;
    }
    return false;
}

int run(Program* self, const FrameView* view, PyObject** collected) {
    const auto& nodes = *self->nodes;
    const size_t n = nodes.size();
    constexpr size_t SMALL = 64;
    PyObject* small[SMALL];
    std::vector<PyObject*> large;
    PyObject** values = small;
    if (n > SMALL) { large.resize(n); values = large.data(); }
    size_t done = 0;
    int result = 1;
    for (; result && done < n; done++) {
        const Node& node = nodes[done];
        PyObject* value = fetch(node, node.parent >= 0 ? values[node.parent] : nullptr, view);
        values[done] = value;
        if (!value) { self->failed_kind = -1; self->failed_node = done; result = 0; done++; break; }
        for (const Check& check : (*self->checks)[done])
            if (!holds(check, value, values, self->state)) {
                self->failed_kind = check.kind; self->failed_node = done; result = 0;
                break;
            }
    }
    if (result)
        for (const Check& check : self->checks->back())
            if (!holds(check, nullptr, values, self->state)) {
                self->failed_kind = check.kind; self->failed_node = check.node; result = 0;
                break;
            }
    if (result && !self->collect->empty()) {
        *collected = PyTuple_New(self->collect->size());
        if (!*collected) result = -1;
        for (size_t i = 0; result == 1 && i < self->collect->size(); i++)
            PyTuple_SET_ITEM(*collected, i, Py_NewRef(values[(*self->collect)[i]]));
    }
    for (size_t i = 0; i < done; i++) Py_XDECREF(values[i]);
    return result;
}

bool add_check(Program* self, int kind, int node, PyObject* payload) {
    Check check{kind, node, payload, nullptr, -1, {}};
    if (kind == LENGTH || kind == SAME || kind == NOT_SAME) {
        check.number = PyLong_AsSsize_t(payload);
        if (PyErr_Occurred()) return false;
    }
    if (kind == ID) {
        check.weak = PyWeakref_NewRef(payload, nullptr);
        if (!check.weak) PyErr_Clear();
    }
    if (kind == TENSOR) {  // (example, sizes, strides), -1 for any
        PyObject *example, *sizes, *strides;
        if (!PyArg_ParseTuple(payload, "OO!O!", &example, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return false;
        c10::TensorImpl* t = tensor_of(example);
        if (!t) { PyErr_SetString(PyExc_TypeError, "TENSOR needs a tensor"); return false; }
        check.tensor = {t->key_set().raw_repr(), t->dtype().toScalarType(), t->device(), t->requires_grad(), {}, {}};
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++) {
            check.tensor.sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i)));
            check.tensor.strides.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i)));
        }
        check.payload = Py_None;
        if (PyErr_Occurred()) return false;
    }
    if (check.weak) check.payload = nullptr;
    else Py_INCREF(check.payload);
    bool own_node = node >= 0 && kind != SAME && kind != NOT_SAME;
    (own_node ? (*self->checks)[node] : self->checks->back()).push_back(check);
    return true;
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *nodes, *checks, *collect;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &nodes, &PyList_Type, &checks, &PyTuple_Type, &collect))
        return nullptr;
    if (!tensor_base) {
        PyObject* torch = PyImport_ImportModule("torch._C");
        PyObject* base = torch ? PyObject_GetAttrString(torch, "TensorBase") : nullptr;
        Py_XDECREF(torch);
        if (!base) return nullptr;
        tensor_base = reinterpret_cast<PyTypeObject*>(base);
    }
    auto self = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->nodes = new std::vector<Node>();
    self->checks = new std::vector<std::vector<Check>>(PyList_GET_SIZE(nodes) + 1);
    self->collect = new std::vector<int>();
    self->state = new State(State::now());
    self->failed_kind = self->failed_node = -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); i++) {
        int kind, parent;
        PyObject* argument;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(nodes, i), "iiO", &kind, &parent, &argument)) goto error;
        Py_ssize_t index = PyLong_Check(argument) ? PyLong_AsSsize_t(argument) : -1;
        if (parent >= i || PyErr_Occurred()) {
            PyErr_Clear();
            PyErr_SetString(PyExc_ValueError, "a node's parent must come before it");
            goto error;
        }
        self->nodes->push_back({kind, parent, Py_NewRef(argument), index});
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(checks); i++) {
        int kind, node;
        PyObject* payload;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(checks, i), "iiO", &kind, &node, &payload)) goto error;
        if (node >= static_cast<int>(self->nodes->size())) {
            PyErr_SetString(PyExc_ValueError, "a check needs a node");
            goto error;
        }
        if (!add_check(self, kind, node, payload)) goto error;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(collect); i++)
        self->collect->push_back(PyLong_AsLong(PyTuple_GET_ITEM(collect, i)));
    if (!PyErr_Occurred()) return reinterpret_cast<PyObject*>(self);
error:
    Py_DECREF(self);
    return nullptr;
}

void program_dealloc(Program* self) {
    if (self->nodes)
        for (Node& node : *self->nodes) Py_XDECREF(node.argument);
    if (self->checks)
        for (auto& list : *self->checks)
            for (Check& check : list) { Py_XDECREF(check.payload); Py_XDECREF(check.weak); }
    delete self->nodes; delete self->checks; delete self->collect; delete self->state;
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

// check(localsplus: tuple with None for unbound, globals, builtins, closure) -> tuple of inputs or None
PyObject* program_check_py(Program* self, PyObject* args) {
    PyObject *locals, *globals, *builtins, *closure;
    if (!PyArg_ParseTuple(args, "O!O!O!O", &PyTuple_Type, &locals, &PyDict_Type, &globals, &PyDict_Type, &builtins, &closure))
        return nullptr;
    FrameView view{reinterpret_cast<PyTupleObject*>(locals)->ob_item, globals, builtins,
                   PyTuple_Check(closure) ? closure : nullptr};
    PyObject* collected = nullptr;
    int result = run(self, &view, &collected);
    if (result < 0) return nullptr;
    if (!result) Py_RETURN_NONE;
    return collected ? collected : PyTuple_New(0);
}
PyObject* program_failure(Program* self, PyObject*) { return Py_BuildValue("ii", self->failed_kind, self->failed_node); }

PyMethodDef program_methods[] = {
    {"check", reinterpret_cast<PyCFunction>(program_check_py), METH_VARARGS,
     "check(localsplus, globals, builtins, closure) -> tuple of collected values, or None where a guard fails"},
    {"failure", reinterpret_cast<PyCFunction>(program_failure), METH_NOARGS, "(kind, node) of the last failed check"},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

extern "C" int program_check(PyObject* program, const FrameView* view, PyObject** collected) {
    *collected = nullptr;
    return run(reinterpret_cast<Program*>(program), view, collected);
}

extern "C" int add_program_type(PyObject* module) {
    ProgramType.tp_name = "dynamo._C.Program";
    ProgramType.tp_basicsize = sizeof(Program);
    ProgramType.tp_flags = Py_TPFLAGS_DEFAULT;
    ProgramType.tp_new = program_new;
    ProgramType.tp_dealloc = reinterpret_cast<destructor>(program_dealloc);
    ProgramType.tp_methods = program_methods;
    ProgramType.tp_doc = "Program(nodes, checks, collect): a compiled guard set";
    if (PyType_Ready(&ProgramType) < 0) return -1;
    return PyModule_AddObjectRef(module, "Program", reinterpret_cast<PyObject*>(&ProgramType));
}
