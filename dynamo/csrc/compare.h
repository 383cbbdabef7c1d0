/* Comparisons of the guard program that never run user code. */
#ifndef DYNAMO_COMPARE_H
#define DYNAMO_COMPARE_H
#include "cpython_compat.h"

/* Same type and same value, recursively; floats by their bits. 1, 0, or -1 with an error set. */
int constants_equal(PyObject *left, PyObject *right);
/* The dict's keys are those of the tuple, in order. */
int dict_keys_equal(PyObject *dict, PyObject *keys);
/* The set (or frozenset) has exactly the items of the frozenset. */
int set_items_equal(PyObject *set, PyObject *items);
/* Where the index-th entry of a dict lies, so that the next one is found without those before. */
struct DictCursor {
    PyObject *dict; /* borrowed, only compared */
    Py_ssize_t index, position;
};
/* index-th key or value (a new reference), or NULL. cursor: of this dict or another one, from which
   the dict has not changed; or NULL. */
PyObject *dict_at(PyObject *dict, Py_ssize_t index, int want_value, struct DictCursor *cursor);
Py_ssize_t container_length(PyObject *value); /* -1: not a built-in container */
#endif
