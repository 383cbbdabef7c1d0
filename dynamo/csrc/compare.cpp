// Comparisons of the guard program: constants with their types, keys in order, items of sets.
#include "compare.h"

#include <cstring>
#include <initializer_list>

namespace {

int sets_equal(PyObject *left, PyObject *right) {
    if (PySet_GET_SIZE(left) != PySet_GET_SIZE(right)) {
        return 0;
    }
    PyObject *mine = PySequence_List(left), *theirs = PySequence_List(right);
    int equal = mine && theirs ? 1 : -1;
    Py_ssize_t count = equal == 1 ? PyList_GET_SIZE(theirs) : 0, at = 0;
    for (Py_ssize_t i = 0; equal == 1 && i < PyList_GET_SIZE(mine); i++) {
        equal = 0;  // most often both have one order: the search goes on behind the last find
        for (Py_ssize_t j = 0; equal == 0 && j < count; j++) {
            at = at == count ? 0 : at;
            equal = constants_equal(PyList_GET_ITEM(mine, i), PyList_GET_ITEM(theirs, at++));
        }
    }
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return equal;
}

using Names = std::initializer_list<const char *>;

int attributes_equal(PyObject *left, PyObject *right, Names names) {
    for (const char *name : names) {
        PyObject *mine = PyObject_GetAttrString(left, name);
        PyObject *theirs = PyObject_GetAttrString(right, name);
        int equal = mine && theirs ? constants_equal(mine, theirs) : -1;
        Py_XDECREF(mine);
        Py_XDECREF(theirs);
        if (equal != 1) {
            return equal;
        }
    }
    return 1;
}

}  // namespace

int constants_equal(PyObject *left, PyObject *right) {
    if (left == right) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(left);
    if (type != Py_TYPE(right)) {
        return 0;
    }
    if (type == &PyFloat_Type) {
        double a = PyFloat_AS_DOUBLE(left), b = PyFloat_AS_DOUBLE(right);
        return std::memcmp(&a, &b, sizeof a) == 0;
    }
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(left), b = PyComplex_AsCComplex(right);
        return std::memcmp(&a, &b, sizeof a) == 0;
    }
    if (PyTuple_Check(left)) {  // tuples, torch.Size, named tuples
        Py_ssize_t count = PyTuple_GET_SIZE(left);
        if (count != PyTuple_GET_SIZE(right)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            int equal = constants_equal(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i));
            if (equal != 1) {
                return equal;
            }
        }
        return 1;
    }
    if (type == &PyFrozenSet_Type || type == &PySet_Type) {
        return sets_equal(left, right);
    }
    if (type == &PySlice_Type || type == &PyRange_Type) {
        return attributes_equal(left, right, {"start", "stop", "step"});
    }
    if (type == &Py_GenericAliasType) {
        return attributes_equal(left, right, {"__origin__", "__args__", "__unpacked__"});
    }
    if (type == &PyMethod_Type) {
        return PyMethod_GET_SELF(left) == PyMethod_GET_SELF(right)
                   ? constants_equal(PyMethod_GET_FUNCTION(left), PyMethod_GET_FUNCTION(right)) : 0;
    }
    if (PyWeakref_CheckRef(left)) {
        PyObject *object = PyWeakref_GET_OBJECT(left);
        return object != Py_None && object == PyWeakref_GET_OBJECT(right);
    }
    if (type == &PyList_Type) {
        Py_ssize_t count = PyList_GET_SIZE(left);
        for (Py_ssize_t i = 0; i < count && i < PyList_GET_SIZE(right); i++) {
            int equal = constants_equal(PyList_GET_ITEM(left, i), PyList_GET_ITEM(right, i));
            if (equal != 1) {
                return equal;
            }
        }
        return count == PyList_GET_SIZE(right);
    }
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE || type == &PyDictProxy_Type ||
        PyWeakref_CheckProxy(left)) {
        return 0;  // instances of Python classes only equal themselves: no user code runs
    }
    return PyObject_RichCompareBool(left, right, Py_EQ);
}

// A key that may die is given as a list that holds a weak reference to it; lists are no keys.
static int is_key(PyObject *expected, PyObject *key) {
    if (PyList_CheckExact(expected)) {
        return PyWeakref_GET_OBJECT(PyList_GET_ITEM(expected, 0)) == key;
    }
    return constants_equal(expected, key);
}

int dict_keys_equal(PyObject *dict, PyObject *keys) {
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != count) {
        return 0;
    }
    if (count == 0) {
        return 1;
    }
    if (PyODict_Check(dict)) {  // its order is not that of the table
        PyObject *iterator = PyODict_Type.tp_iter(dict);
        if (iterator == nullptr) {
            return -1;
        }
        int equal = 1;
        Py_ssize_t at = 0;
        while (PyObject *key = equal == 1 ? PyIter_Next(iterator) : nullptr) {
            equal = at < count ? is_key(PyTuple_GET_ITEM(keys, at++), key) : 0;
            Py_DECREF(key);
        }
        Py_DECREF(iterator);
        return PyErr_Occurred() ? -1 : equal;
    }
    Py_ssize_t position = 0, at = 0;
    PyObject *key;
    while (PyDict_Next(dict, &position, &key, nullptr)) {
        int equal = is_key(PyTuple_GET_ITEM(keys, at++), key);
        if (equal != 1) {
            return equal;
        }
    }
    return 1;
}

int set_items_equal(PyObject *set, PyObject *items) {
    return PyAnySet_Check(set) ? sets_equal(items, set) : 0;
}

PyObject *dict_at(PyObject *dict, Py_ssize_t index, int want_value, struct DictCursor *cursor) {
    if (!PyDict_Check(dict) || index < 0 || index >= PyDict_GET_SIZE(dict)) {
        return nullptr;
    }
    PyObject *key = nullptr, *value = nullptr;
    if (!PyODict_Check(dict)) {
        Py_ssize_t position = 0, before = 0, at = 0;
        if (cursor != nullptr && cursor->dict == dict && cursor->index <= index) {
            position = cursor->position;
            at = cursor->index;
        }
        for (; at <= index; at++) {
            before = position;
            if (!PyDict_Next(dict, &position, &key, &value)) {
                return nullptr;
            }
        }
        if (cursor != nullptr) {
            *cursor = {dict, index, before};
        }
        return Py_NewRef(want_value ? value : key);
    }
    PyObject *iterator = PyODict_Type.tp_iter(dict);
    for (Py_ssize_t i = 0; iterator != nullptr && i <= index; i++) {
        Py_XDECREF(key);
        key = PyIter_Next(iterator);
    }
    Py_XDECREF(iterator);
    if (!want_value || key == nullptr) {
        return key;
    }
    value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
    Py_DECREF(key);
    return value;
}

Py_ssize_t container_length(PyObject *value) {
    if (PyList_Check(value)) {
        return PyList_GET_SIZE(value);
    }
    if (PyTuple_Check(value)) {
        return PyTuple_GET_SIZE(value);
    }
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value);
    }
    if (PyAnySet_Check(value)) {
        return PySet_GET_SIZE(value);
    }
    if (PyUnicode_Check(value)) {
        return PyUnicode_GET_LENGTH(value);
    }
    if (PyBytes_Check(value)) {
        return PyBytes_GET_SIZE(value);
    }
    PySequenceMethods *sequence = Py_TYPE(value)->tp_as_sequence;
    if (!is_python_class(Py_TYPE(value)) && sequence && sequence->sq_length) {
        return sequence->sq_length(value);  // deque, range, ...
    }
    return -1;
}
