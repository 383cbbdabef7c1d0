/* What the guard program asks of torch. Weak: a build without torch has none of these. */
#ifndef DYNAMO_TENSOR_GUARDS_H
#define DYNAMO_TENSOR_GUARDS_H
#include "cpython_compat.h"
#define WEAK_TORCH __attribute__((weak))
#ifdef __cplusplus
extern "C" {
#endif
/* Specs from Python tuples; NULL with an error set. Freed by the matching function. */
WEAK_TORCH void *tensor_spec_new(PyObject *facts);
WEAK_TORCH void tensor_spec_free(void *spec);
WEAK_TORCH int tensor_spec_holds(const void *spec, PyObject *value);
WEAK_TORCH void *global_state_new(PyObject *facts);
WEAK_TORCH void global_state_free(void *spec);
WEAK_TORCH int global_state_holds(const void *spec);
/* what: 0 size, 1 stride, 2 storage offset, 3 number of dimensions, 4 number of elements. */
WEAK_TORCH int tensor_number(PyObject *value, int what, int dim, long long *out);
WEAK_TORCH void *tensor_storage(PyObject *value);
WEAK_TORCH int tensor_add_functions(PyObject *module);
#ifdef __cplusplus
}
#endif
#endif
