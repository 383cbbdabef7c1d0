/* What new code reads and stores of objects below all that their classes override.
 *
 * Each does what the built-in method beside it does; calls of those, as wrappers of slots, cost
 * several times as much. */
#include "hook.h"

static int has_count(const char *name, Py_ssize_t count, Py_ssize_t wanted) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s expected %zd arguments, got %zd", name, wanted, count);
    }
    return count == wanted;
}

/* `read_item(container, key)`: the item of a list, tuple or dict, whatever `__getitem__` or
 * `__missing__` a subclass has. */
PyObject *read_item(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (!has_count("read_item", count, 2)) {
        return NULL;
    }
    PyObject *container = args[0], *key = args[1];
    if (PyDict_Check(container)) {
        PyObject *found = PyDict_GetItemWithError(container, key);
        PyObject *missing = found != NULL || PyErr_Occurred() ? NULL : PyTuple_Pack(1, key);
        if (missing != NULL) {
            PyErr_SetObject(PyExc_KeyError, missing);
            Py_DECREF(missing);
        }
        return Py_XNewRef(found);
    }
    PyTypeObject *kind = PyList_Check(container)    ? &PyList_Type
                         : PyTuple_Check(container) ? &PyTuple_Type
                                                    : NULL;
    return kind != NULL ? kind->tp_as_mapping->mp_subscript(container, key)
                        : PyObject_GetItem(container, key);
}

/* `read_dict(object)`: `object.__getattribute__(object, "__dict__")`. */
PyObject *read_dict(PyObject *module, PyObject *object) {
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("__dict__")) == NULL) {
        return NULL;
    }
    return PyObject_GenericGetAttr(object, name);
}

/* `read_entry(object, name)`: what the object's dict, or the class's own, has under the name; None
 * where it has nothing, or there is no dict. */
PyObject *read_entry(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (!has_count("read_entry", count, 2)) {
        return NULL;
    }
    PyObject *object = args[0], *dict;
    if (PyType_Check(object)) {
        dict = Py_XNewRef(type_dict((PyTypeObject *)object));
    } else {
        dict = PyObject_GenericGetDict(object, NULL);
        PyErr_Clear();
    }
    PyObject *found = dict != NULL ? PyDict_GetItemWithError(dict, args[1]) : NULL;
    Py_XINCREF(found);
    Py_XDECREF(dict);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* `store_attribute(object, name, value)`: `object.__setattr__`; the caller knows that no built-in
 * base of the object's class has another. */
PyObject *store_attribute(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (!has_count("store_attribute", count, 3) ||
        PyObject_GenericSetAttr(args[0], args[1], args[2]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* `store_item(dict, key, value)`: `dict.__setitem__`. */
PyObject *store_item(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (!has_count("store_item", count, 3) || PyDict_SetItem(args[0], args[1], args[2]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* `store_ordered(dict, key, value)`: `OrderedDict.__setitem__`. */
PyObject *store_ordered(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (!has_count("store_ordered", count, 3)) {
        return NULL;
    }
    if (!PyODict_Check(args[0])) {
        return PyErr_Format(PyExc_TypeError, "%s is no OrderedDict", Py_TYPE(args[0])->tp_name);
    }
    if (PyODict_SetItem(args[0], args[1], args[2]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
