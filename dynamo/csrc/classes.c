/* Classes that stand for the program's while a trace runs, taken out of what the program sees. */
#include "hook.h"

/* `hide_subclass(base, cls)`: `base.__subclasses__()` names the class no more. Static classes, of
 * which the interpreter itself keeps the list, go on naming it. */
PyObject *hide_subclass(PyObject *module, PyObject *args) {
    PyTypeObject *base;
    PyObject *cls;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &base, &PyType_Type, &cls)) {
        return NULL;
    }
    PyObject *known = base->tp_flags & Py_TPFLAGS_HEAPTYPE ? (PyObject *)base->tp_subclasses : NULL;
    PyObject *key = known != NULL && PyDict_Check(known) ? PyLong_FromVoidPtr(cls) : NULL;
    int found = key != NULL ? PyDict_Contains(known, key) : 0;
    if (found > 0) {
        found = PyDict_DelItem(known, key);
    }
    Py_XDECREF(key);
    if (found < 0 || PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
