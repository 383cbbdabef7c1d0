/* What the guard program asks of torch. Weak: a build without torch has none of these. */
#ifndef DYNAMO_TENSOR_GUARDS_H
#define DYNAMO_TENSOR_GUARDS_H
#include "cpython_compat.h"
#include <stdint.h>
#define WEAK_TORCH __attribute__((weak))
#ifdef __cplusplus
extern "C" {
#endif
/* Specs from Python tuples; NULL with an error set. Freed by the matching function. */
WEAK_TORCH void *tensor_spec_new(PyObject *facts);
WEAK_TORCH void tensor_spec_free(void *spec);
WEAK_TORCH int tensor_spec_holds(const void *spec, PyObject *value);
/* The words of memory that say that the spec holds for this tensor, in an order in which each may be
 * read while those before are unchanged. Their number; 0 where they can't tell (or are too many). */
WEAK_TORCH int tensor_places(const void *spec, PyObject *value, const int64_t **places, int limit);
WEAK_TORCH void *global_state_new(PyObject *facts);
WEAK_TORCH void global_state_free(void *spec);
WEAK_TORCH int global_state_holds(void *spec);
/* what: 0 size, 1 stride, 2 storage offset, 3 number of dimensions, 4 number of elements. */
WEAK_TORCH int tensor_number(PyObject *value, int what, int dim, long long *out);
/* Whether reading an attribute of torch's own runs the `__torch_function__` of the tensor's class. */
WEAK_TORCH int tensor_asks_class(PyObject *value);
/* The bytes that a tensor's elements lie in; 0 where there are none. */
WEAK_TORCH int tensor_span(PyObject *value, uintptr_t *first, uintptr_t *last);
/* The TensorImpl of a tensor; NULL for what is none. */
WEAK_TORCH void *tensor_impl(PyObject *value);
WEAK_TORCH int global_state_add_names(PyObject *module);
WEAK_TORCH int tensor_add_functions(PyObject *module);
WEAK_TORCH int memory_add_functions(PyObject *module);
WEAK_TORCH int launch_add_functions(PyObject *module);
#ifdef __cplusplus
}
#endif
#endif
