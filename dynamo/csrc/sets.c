/* Tables of sets: which slot holds what decides the order of a set's items, now and after it grows.
 *
 * Equal sets have different tables where they were filled in another way. A trace reads the table of
 * a set, and new code makes sets with the table that the program's own would have. */
#include "hook.h"

/* Of a table as bytes: for each slot its hash, then for each slot what it is, then the place at
 * which `pop` goes on. */
enum { FREE, HELD, GONE };
#define BYTES_OF_SLOT ((Py_ssize_t)sizeof(Py_hash_t) + 1)

/* `set_table(set)`: the table as bytes. */
PyObject *set_table(PyObject *module, PyObject *object) {
    if (!PyAnySet_Check(object)) {
        return PyErr_Format(PyExc_TypeError, "%s is no set", Py_TYPE(object)->tp_name);
    }
    PySetObject *set = (PySetObject *)object;
    Py_ssize_t slots = set->mask + 1;
    PyObject *result =
        PyBytes_FromStringAndSize(NULL, slots * BYTES_OF_SLOT + (Py_ssize_t)sizeof(Py_ssize_t));
    if (result == NULL) {
        return NULL;
    }
    char *hashes = PyBytes_AS_STRING(result), *kinds = hashes + slots * sizeof(Py_hash_t);
    for (Py_ssize_t i = 0; i < slots; i++) {
        setentry *entry = &set->table[i];
        memcpy(hashes + i * sizeof(Py_hash_t), &entry->hash, sizeof(Py_hash_t));
        kinds[i] = entry->key == NULL ? FREE : entry->hash == -1 ? GONE : HELD;
    }
    memcpy(kinds + slots, &set->finger, sizeof(Py_ssize_t));
    return result;
}

/* What stands in slots whose item has gone; no header of every version names it. */
static PyObject *gone_item(void) {
    static PyObject *known;
    PyObject *key = NULL, *set = known == NULL ? PySet_New(NULL) : NULL;
    if (set != NULL && (key = PyLong_FromLong(0)) != NULL && PySet_Add(set, key) == 0 &&
        PySet_Discard(set, key) == 1) {
        known = ((PySetObject *)set)->table[0].key;
    }
    Py_XDECREF(key);
    Py_XDECREF(set);
    return known;
}

static int fill(PySetObject *set, const char *table, Py_ssize_t slots, PyObject *items) {
    const char *kinds = table + slots * sizeof(Py_hash_t);
    Py_ssize_t used = 0, gone = 0;
    for (Py_ssize_t i = 0; i < slots; i++) {
        used += kinds[i] == HELD;
        gone += kinds[i] == GONE;
    }
    PyObject *dummy = gone != 0 ? gone_item() : NULL;
    if (used != PyList_GET_SIZE(items) || (gone != 0 && dummy == NULL)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "the table is of another number of items");
        }
        return -1;
    }
    if (slots > PySet_MINSIZE) {
        setentry *entries = PyMem_Calloc(slots, sizeof(setentry));
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        set->table = entries;
    }
    for (Py_ssize_t i = 0, next = 0; i < slots; i++) {
        setentry *entry = &set->table[i];
        memcpy(&entry->hash, table + i * sizeof(Py_hash_t), sizeof(Py_hash_t));
        entry->key = kinds[i] == HELD   ? Py_NewRef(PyList_GET_ITEM(items, next++))
                     : kinds[i] == GONE ? dummy
                                        : NULL;
    }
    set->mask = slots - 1;
    set->used = used;
    set->fill = used + gone;
    memcpy(&set->finger, kinds + slots, sizeof(Py_ssize_t));
    return 0;
}

/* `fill_set(set or type, table, [items])`: the set, emptied, or a new one, with this table, which
 * holds the items in their order; they have the hashes that are written there. */
PyObject *fill_set(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyBytes_CheckExact(args[1]) || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "fill_set expected a set, a table and a list");
        return NULL;
    }
    Py_ssize_t slots = (PyBytes_GET_SIZE(args[1]) - (Py_ssize_t)sizeof(Py_ssize_t)) / BYTES_OF_SLOT;
    PyObject *set = args[0] == (PyObject *)&PySet_Type         ? PySet_New(NULL)
                    : args[0] == (PyObject *)&PyFrozenSet_Type ? PyFrozenSet_New(NULL)
                                                               : Py_NewRef(args[0]);
    if (set == NULL) {
        return NULL;
    }
    if (!(PyFrozenSet_CheckExact(set) ? set != args[0] : PySet_Check(set) && PySet_Clear(set) == 0)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "fill_set fills sets, and makes frozensets");
        }
        Py_DECREF(set);
        return NULL;
    }
    if (PyList_GET_SIZE(args[2]) != 0 || !PyFrozenSet_CheckExact(set)) { /* the empty one may be shared */
        if (slots < PySet_MINSIZE || (slots & (slots - 1)) != 0 ||
            fill((PySetObject *)set, PyBytes_AS_STRING(args[1]), slots, args[2]) < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "this is no table of a set");
            }
            Py_DECREF(set);
            return NULL;
        }
    }
    return set;
}
