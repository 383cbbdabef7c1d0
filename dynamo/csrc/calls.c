/* How new code calls continuations: without keeping what it gives them, and as its last act without
 * staying on the stack.
 *
 * In: a function and its arguments. Out: its result, or where the frame ends with the call a
 * `LastCall`, which the hook carries out when the frame is gone: a loop with a graph break goes
 * through one frame for each turn, as many as it likes. */
#define DYNAMO_NEEDS_FRAMES
#include "hook.h"

#define FEW_ARGUMENTS 16

/* The frame that the arguments went to holds them by now. */
void release_moved(Moved *moved) {
    thread_region.moved = moved->outer;
    while (moved->count > 0) {
        Py_DECREF(moved->items[--moved->count]);
    }
}

/* Takes the items. */
static PyObject *call_with(PyObject *function, PyObject **items, Py_ssize_t count) {
    Moved moved = {items, count, thread_region.moved};
    thread_region.moved = &moved;
    PyObject *result = PyObject_Vectorcall(function, items, count, NULL);
    if (thread_region.moved == &moved) { /* no frame was offered to the hook */
        release_moved(&moved);
    }
    return result;
}

/* `call_moving(function, *args)`: a call for which the caller keeps no reference to the arguments,
 * so that each dies when the function lets go of it. */
PyObject *call_moving(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count < 1) {
        return PyErr_Format(PyExc_TypeError, "a function to call is missing");
    }
    PyObject *few[FEW_ARGUMENTS], **items = few;
    if (count - 1 > FEW_ARGUMENTS) {
        items = PyMem_New(PyObject *, count - 1);
        if (items == NULL) {
            return PyErr_NoMemory();
        }
    }
    PyObject *result = take_arguments(PyThreadState_Get(), args, count, items)
                           ? call_with(args[0], items, count - 1)
                           : PyObject_Vectorcall(args[0], args + 1, count - 1, NULL);
    if (items != few) {
        PyMem_Free(items);
    }
    return result;
}

/* A call that is to be made when the frame is gone; items[0] is the function. */
typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1];
} LastCall;

static void last_call_dealloc(LastCall *self) {
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_XDECREF(self->items[i]);
    }
    PyObject_Free(self);
}

PyTypeObject LastCall_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.LastCall",
    .tp_basicsize = offsetof(LastCall, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A call that the hook makes when the frame that returned this is gone.",
    .tp_dealloc = (destructor)last_call_dealloc,
};

/* Where the hook does not run the calling frame as new code, or somebody watches frames, the call is
 * made here. So it is where a signal waits: its handler would raise in the calling frame, and nothing
 * of the function would run, handlers included. */
PyObject *call_last(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    PyThreadState *ts = PyThreadState_Get();
    if (count < 1 || thread_region.ending != current_frame(ts) || is_watched(ts) ||
        signals_wait(ts)) {
        return call_moving(module, args, count);
    }
    LastCall *call = PyObject_NewVar(LastCall, &LastCall_Type, count);
    if (call == NULL) {
        return NULL;
    }
    call->items[0] = Py_NewRef(args[0]);
    if (!take_arguments(ts, args, count, call->items + 1)) {
        for (Py_ssize_t i = 1; i < count; i++) {
            call->items[i] = Py_NewRef(args[i]);
        }
    }
    return (PyObject *)call;
}

PyObject *run_last_calls(PyObject *result) {
    while (result != NULL && Py_IS_TYPE(result, &LastCall_Type)) {
        LastCall *call = (LastCall *)result;
        Py_ssize_t count = Py_SIZE(call) - 1;
        PyObject *function = call->items[0];
        PyObject *outer_called = thread_region.last_called;
        struct _PyInterpreterFrame *outer_frame = thread_region.handed_on;
        thread_region.last_called = function;
        thread_region.handed_on = NULL;
        Py_SET_SIZE(call, 1); /* the items are the callee's */
        result = call_with(function, call->items + 1, count);
        thread_region.last_called = outer_called;
        thread_region.handed_on = outer_frame;
        Py_DECREF(call);
    }
    return result;
}
