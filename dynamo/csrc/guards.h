/* What the hook knows of a guard program. */
#pragma once
#include <Python.h>
#ifdef __cplusplus
extern "C" {
#endif

/* A frame before its first instruction. */
typedef struct {
    PyObject **localsplus;
    PyObject *globals, *builtins, *closure; /* closure: tuple or NULL; all borrowed */
} FrameView;

/* 1: all guards hold, *collected is a new tuple (NULL where nothing is collected);
   0: one fails; -1: Python error set. */
int program_check(PyObject *program, const FrameView *view, PyObject **collected);
/* Adds Program to the module; 0 or -1. */
int add_program_type(PyObject *module);
#ifdef __cplusplus
}
#endif
