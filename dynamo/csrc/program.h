/* The guard program as the hook sees it. */
#ifndef DYNAMO_PROGRAM_H
#define DYNAMO_PROGRAM_H

#include "cpython_compat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of a frame at its start. Position k of the program's local names is slots[local_index[k]],
 * of its cell names closure[cell_index[k]]. */
typedef struct {
    PyObject *const *slots;
    const int *local_index;
    PyObject *globals;
    PyObject *builtins;
    PyObject *closure; /* tuple or NULL */
    const int *cell_index;
} GuardScope;

extern PyTypeObject Program_Type;

/* 1: all guards hold, and *inputs is the tuple of collected values (new reference; NULL where
 * nothing is collected); with `items`, they are there instead (new references, `program_collects` of
 * them). 0: some guard fails. -1: an error is set. */
int program_run(PyObject *program, const GuardScope *scope, PyObject **inputs, PyObject **items);
PyObject *program_local_names(PyObject *program); /* borrowed tuple */
PyObject *program_cell_names(PyObject *program);  /* borrowed tuple */
Py_ssize_t program_collects(PyObject *program); /* how many values */
int program_runs_python(PyObject *program);
/* Calls on_death(owner) when an object dies without which the guards can never hold again. */
void program_watch(PyObject *program, void (*on_death)(void *), void *owner);
int program_ready(void);
int program_add_functions(PyObject *module);

#ifdef __cplusplus
}
#endif
#endif
