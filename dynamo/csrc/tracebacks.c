/* Entries of tracebacks for frames that never were: those of calls that new code has in it.
 *
 * In: places, outermost first, each a tuple (code, globals or None for the caller's, offset of the
 * instruction, line). Out: traceback objects; their frames hold no locals. */
#define DYNAMO_NEEDS_FRAMES
#include "hook.h"
#include <frameobject.h>

/* A frame that stands at an instruction. Whoever reads its locals finds that the cells of the
 * closure are there, and empty. */
static PyFrameObject *frame_at(PyCodeObject *code, PyObject *globals, int offset) {
    PyFrameObject *frame = PyFrame_New(PyThreadState_Get(), code, globals, NULL);
    if (frame == NULL) {
        return NULL;
    }
    Frame *inner = frame->f_frame;
    frame_go_to(inner, offset / (int)sizeof(_Py_CODEUNIT));
    for (int i = code->co_nlocalsplus - code->co_nfreevars; i < code->co_nlocalsplus; i++) {
        PyObject *cell = frame_slot(inner, i) == NULL ? PyCell_New(NULL) : NULL;
        if (cell != NULL) {
            frame_fill_slot(inner, i, cell);
        } else if (PyErr_Occurred()) {
            Py_DECREF(frame);
            return NULL;
        }
    }
    return frame;
}

static PyObject *entry_at(PyObject *following, PyObject *place) {
    PyObject *code, *globals;
    int offset, line;
    if (!PyArg_ParseTuple(place, "O!Oii:place", &PyCode_Type, &code, &globals, &offset, &line)) {
        return NULL;
    }
    globals = globals == Py_None ? PyEval_GetGlobals() : globals;
    if (globals == NULL || !PyDict_Check(globals)) {
        PyErr_SetString(PyExc_TypeError, "a place of a traceback needs globals");
        return NULL;
    }
    PyFrameObject *frame = frame_at((PyCodeObject *)code, globals, offset);
    if (frame == NULL) {
        return NULL;
    }
    PyObject *type = (PyObject *)&PyTraceBack_Type;
    PyObject *entry = PyObject_CallFunction(type, "OOii", following, frame, offset, line);
    Py_DECREF(frame);
    return entry;
}

/* Takes what follows the entries, None for nothing. */
static PyObject *entries_before(PyObject *following, PyObject *places) {
    for (Py_ssize_t i = PyTuple_GET_SIZE(places) - 1; i >= 0 && following != NULL; i--) {
        PyObject *entry = entry_at(following, PyTuple_GET_ITEM(places, i));
        Py_SETREF(following, entry);
    }
    return following;
}

/* `traceback(following, places)`: entries for the places, before a traceback or None. */
PyObject *make_traceback(PyObject *module, PyObject *args) {
    PyObject *following, *places;
    if (!PyArg_ParseTuple(args, "OO!:traceback", &following, &PyTuple_Type, &places)) {
        return NULL;
    }
    return entries_before(Py_NewRef(following), places);
}

/* `pass_on(error, places)`: puts the places where the traceback has the frame of new code. An error
 * without traceback stays as it is. */
PyObject *pass_on(PyObject *module, PyObject *args) {
    PyObject *error, *places;
    if (!PyArg_ParseTuple(args, "OO!:pass_on", &error, &PyTuple_Type, &places)) {
        return NULL;
    }
    PyTracebackObject *own = (PyTracebackObject *)PyException_GetTraceback(error);
    if (own == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *rest = own->tb_next != NULL ? (PyObject *)own->tb_next : Py_None;
    PyObject *shown = entries_before(Py_NewRef(rest), places);
    Py_DECREF(own);
    if (shown == NULL || PyException_SetTraceback(error, shown) < 0) {
        Py_XDECREF(shown);
        return NULL;
    }
    Py_DECREF(shown);
    Py_RETURN_NONE;
}
