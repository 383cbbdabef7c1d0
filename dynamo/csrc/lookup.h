// Which lookups by key run no Python code: `__eq__` and `__hash__` of keys may be the program's.
#ifndef DYNAMO_LOOKUP_H
#define DYNAMO_LOOKUP_H
#include "machine.h"

// True where looking up a name in the dict runs no Python code.
bool finds_name(PyObject *dict, PyObject *name);
// The same of any key in a dict, a set or a proxy of a dict.
bool finds_key(Run &run, PyObject *container, PyObject *key);
// True where the order of the dict can be followed without Python code.
bool lists_keys(Run &run, PyObject *dict);
// A mappingproxy whose items Python code may tell.
bool is_python_proxy(PyObject *object);

#endif
