/* Expressions over sizes and numbers, as words of a small stack machine. */
#ifndef DYNAMO_SHAPE_MACHINE_H
#define DYNAMO_SHAPE_MACHINE_H
#include "cpython_compat.h"
struct ShapeWords;
/* From a tuple of (word, a, b) tuples; NULL with an error set. */
ShapeWords *shape_words_new(PyObject *words);
void shape_words_free(ShapeWords *words);
/* 1 true; 0 false, or not computable (overflow, division by zero, not a number). */
int shape_holds(const ShapeWords *words, PyObject **values);
#endif
