// Which lookups by key run no Python code.
//
// A dict whose keys are all plain strings knows that of itself. Of others, and of sets, the keys are
// looked at, once in a run for containers that are asked again and again.
#include "lookup.h"

namespace {

// Comparing, and hashing where `hashed`, runs C code that comes back to no object of the program.
bool is_plain(PyObject *key, bool hashed) {
    PyTypeObject *type = Py_TYPE(key);
    if (type == &PyUnicode_Type || type == &PyLong_Type) {
        return true;
    }
    if (type->tp_richcompare == PyTuple_Type.tp_richcompare && PyTuple_Check(key)) {
        bool plain = !hashed || type->tp_hash == PyTuple_Type.tp_hash;
        for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(key); i++) {
            plain = is_plain(PyTuple_GET_ITEM(key, i), hashed);
        }
        return plain;
    }
    for (PyTypeObject *known : {&PyBaseObject_Type, &PyUnicode_Type, &PyLong_Type, &PyFloat_Type,
                                &PyComplex_Type, &PyBytes_Type, Py_TYPE(Py_None)}) {
        if (type->tp_richcompare == known->tp_richcompare) {
            return !hashed || type->tp_hash == known->tp_hash || !is_python_class(type);
        }
    }
    return false;
}

bool keys_are_plain(PyObject *container, bool hashed) {
    if (PyAnySet_Check(container)) {
        PySetObject *set = (PySetObject *)container;
        for (Py_ssize_t i = 0; i <= set->mask; i++) {
            if (set->table[i].key != nullptr && !is_plain(set->table[i].key, hashed)) {
                return false;
            }
        }
        return true;
    }
    Py_ssize_t position = 0;
    PyObject *key;
    while (PyDict_Next(container, &position, &key, nullptr)) {
        if (!is_plain(key, hashed)) {
            return false;
        }
    }
    return true;
}

// The head of a mappingproxy, as it has been since CPython 3.3.
struct ProxyHead {
    PyObject_HEAD
    PyObject *mapping;
};

}  // namespace

bool is_python_proxy(PyObject *object) {
    return Py_IS_TYPE(object, &PyDictProxy_Type) &&
           !PyDict_CheckExact(((ProxyHead *)object)->mapping);
}

bool finds_name(PyObject *dict, PyObject *name) {
    return (PyUnicode_CheckExact(name) && dict_has_only_names(dict)) ||
           (is_plain(name, true) && keys_are_plain(dict, false));
}

bool finds_key(Run &run, PyObject *container, PyObject *key) {
    if (Py_IS_TYPE(container, &PyDictProxy_Type)) {
        container = ((ProxyHead *)container)->mapping;
        if (!PyDict_CheckExact(container)) {
            return false;
        }
    }
    bool dict = PyDict_Check(container);
    if (!dict && !PyAnySet_Check(container)) {
        return true;
    }
    if (dict && PyUnicode_CheckExact(key) && dict_has_only_names(container)) {
        return true;
    }
    if (!is_plain(key, true)) {
        return false;
    }
    if (run.plain != container) {
        if (!keys_are_plain(container, false)) {
            return false;
        }
        run.plain = container;
    }
    return true;
}

bool lists_keys(Run &run, PyObject *dict) {
    if (!PyODict_Check(dict) || dict_has_only_names(dict) || run.plain_hashes == dict) {
        return true;
    }
    if (!keys_are_plain(dict, true)) {
        return false;
    }
    run.plain_hashes = dict;
    return true;
}
