/* Calls of a backend's function of which the results are looked at.
 *
 * In: the function and which results are tensors. Out: a function that costs a few nanoseconds more,
 * and asks Python only about results that are not what they plainly should be. */
#include "hook.h"

enum { FUNCTION, TENSORS, TENSOR_TYPE, DECIDE, PART_COUNT };

static int is_expected(PyObject *results, PyObject *tensors, PyTypeObject *type) {
    PyObject **items;
    if (PyTuple_CheckExact(results)) {
        items = ((PyTupleObject *)results)->ob_item;
    } else if (PyList_CheckExact(results)) {
        items = ((PyListObject *)results)->ob_item;
    } else {
        return 0;
    }
    if (Py_SIZE(results) != PyTuple_GET_SIZE(tensors)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++) {
        if (PyTuple_GET_ITEM(tensors, i) == Py_True && !PyObject_TypeCheck(items[i], type)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *call_checked(PyObject *parts, PyObject *const *args, Py_ssize_t count) {
    PyObject *results = PyObject_Vectorcall(PyTuple_GET_ITEM(parts, FUNCTION), args, count, NULL);
    if (results == NULL || is_expected(results, PyTuple_GET_ITEM(parts, TENSORS),
                                       (PyTypeObject *)PyTuple_GET_ITEM(parts, TENSOR_TYPE))) {
        return results;
    }
    PyObject *decided = PyObject_CallOneArg(PyTuple_GET_ITEM(parts, DECIDE), results);
    Py_DECREF(results);
    return decided;
}

static PyMethodDef checked_definition = {
    "checked", (PyCFunction)call_checked, METH_FASTCALL, "A function whose results are checked."};

/* `checked_call(function, tensors, tensor_type, decide)`: a function that gives the results of
 * `function`: those of an exact tuple or list with tensors where the tuple `tensors` has True as they
 * are, any other as `decide(results)` has it. */
PyObject *checked_call(PyObject *module, PyObject *parts) {
    if (PyTuple_GET_SIZE(parts) != PART_COUNT || !PyTuple_Check(PyTuple_GET_ITEM(parts, TENSORS)) ||
        !PyType_Check(PyTuple_GET_ITEM(parts, TENSOR_TYPE))) {
        PyErr_SetString(PyExc_TypeError, "a function, a tuple, a type and a function are expected");
        return NULL;
    }
    return PyCFunction_NewEx(&checked_definition, parts, NULL);
}
