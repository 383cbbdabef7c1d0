/* Calls of a graph's function whose errors are looked at.
 *
 * In: a list of the function and of what is asked about an error. Out: a function that costs a few
 * nanoseconds more. The list may get another function at any time. */
#include "hook.h"

enum { FUNCTION, RESCUE, PART_COUNT };

/* What RESCUE gives for the error and the arguments; the error itself where that is NotImplemented. */
static PyObject *rescue(PyObject *parts, PyObject *const *args, Py_ssize_t count) {
    PyObject *type, *error, *traceback, *results = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    PyObject **given = PyMem_New(PyObject *, count + 1);
    if (given != NULL) {
        given[0] = error;
        for (Py_ssize_t i = 0; i < count; i++) {
            given[i + 1] = args[i];
        }
        PyObject *asked = Py_NewRef(PyList_GET_ITEM(parts, RESCUE));
        results = PyObject_Vectorcall(asked, given, count + 1, NULL);
        Py_DECREF(asked);
        PyMem_Free(given);
        if (results == Py_NotImplemented) {
            Py_DECREF(results);
            Py_XSETREF(traceback, PyException_GetTraceback(error)); /* it may have got entries */
            PyErr_Restore(type, error, traceback);
            return NULL;
        }
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return results != NULL || PyErr_Occurred() ? results : PyErr_NoMemory();
}

static PyObject *call_rescued(PyObject *parts, PyObject *const *args, Py_ssize_t count) {
    PyObject *function = Py_NewRef(PyList_GET_ITEM(parts, FUNCTION));
    PyObject *results = PyObject_Vectorcall(function, args, count, NULL);
    Py_DECREF(function);
    if (results != NULL || !PyErr_ExceptionMatches(PyExc_Exception)) {
        return results;
    }
    return rescue(parts, args, count);
}

static PyMethodDef rescued_definition = {
    "rescued", (PyCFunction)call_rescued, METH_FASTCALL, "A function whose errors are looked at."};

/* `rescued_call([function, rescue])`: a function that gives the results of `function`. Where that
 * raises an Exception, it gives what `rescue(error, *args)` gives; after NotImplemented it raises the
 * error. Either may be replaced in the list. */
PyObject *rescued_call(PyObject *module, PyObject *parts) {
    if (!PyList_CheckExact(parts) || PyList_GET_SIZE(parts) != PART_COUNT) {
        PyErr_SetString(PyExc_TypeError, "a list of two functions is expected");
        return NULL;
    }
    return PyCFunction_NewEx(&rescued_definition, parts, NULL);
}
