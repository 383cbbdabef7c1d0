/* CPython 3.11 to 3.14 behind one set of names: the only file with version tests.
 *
 * In: interpreter frames and thread states. Out: `frame_*` accessors, growing a frame in place,
 * and dropping a frame that the evaluator will not run. */
#ifndef DYNAMO_CPYTHON_COMPAT_H
#define DYNAMO_CPYTHON_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "dynamo supports CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "dynamo needs a CPython with a global interpreter lock; this one is free-threaded"
#endif

/* What every call runs lies side by side: between two calls, torch's code drives it from the caches. */
#define HOT __attribute__((hot))

/* Slots of a frame hold objects; from 3.14 on the lowest bit says that the slot owns no reference. */
static inline PyObject *slot_object(PyObject *slot) {
#if PY_VERSION_HEX >= 0x030E0000
    return (PyObject *)((uintptr_t)slot & ~(uintptr_t)1);
#else
    return slot;
#endif
}

#ifdef DYNAMO_NEEDS_FRAMES
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include "internal/pycore_frame.h"
#include "internal/pycore_code.h"
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_interpframe.h"
#endif
#undef _PyGC_FINALIZED /* of the public headers, something else in the internal ones */
#if PY_VERSION_HEX >= 0x030C0000
#include "internal/pycore_interp.h"
#endif
#if PY_VERSION_HEX >= 0x030D0000
#include "internal/pycore_ceval.h"
#else
#include "internal/pycore_runtime.h"
#endif
#undef Py_BUILD_CORE

typedef struct _PyInterpreterFrame Frame;

#if PY_VERSION_HEX >= 0x030E0000
#define FRAME_CODE(f) ((PyCodeObject *)PyStackRef_AsPyObjectBorrow((f)->f_executable))
#elif PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#else
#define FRAME_CODE(f) ((f)->f_code)
#endif

static inline PyObject *frame_function(Frame *f) {
#if PY_VERSION_HEX >= 0x030E0000
    return PyStackRef_AsPyObjectBorrow(f->f_funcobj);
#elif PY_VERSION_HEX >= 0x030C0000
    return f->f_funcobj;
#else
    return (PyObject *)f->f_func;
#endif
}

/* To be read through `slot_object`. */
static inline PyObject *const *frame_slots(Frame *f) { return (PyObject *const *)f->localsplus; }

static inline PyObject *frame_slot(Frame *f, int i) { return slot_object(frame_slots(f)[i]); }

/* Fills an empty slot; takes `value`, which may be NULL. */
static inline void frame_fill_slot(Frame *f, int i, PyObject *value) {
#if PY_VERSION_HEX >= 0x030E0000
    f->localsplus[i] = value == NULL ? PyStackRef_NULL : PyStackRef_FromPyObjectSteal(value);
#else
    f->localsplus[i] = value;
#endif
}

static inline int signals_wait(PyThreadState *ts) {
#if PY_VERSION_HEX >= 0x030D0000
    return _Py_eval_breaker_bit_is_set(ts, _PY_SIGNALS_PENDING_BIT);
#else
    return _Py_atomic_load_relaxed(&_PyRuntime.ceval.signals_pending);
#endif
}

static inline int frame_at_start(Frame *f) {
#if PY_VERSION_HEX >= 0x030D0000
    return f->instr_ptr == _PyCode_CODE(FRAME_CODE(f));
#else
    return f->prev_instr == _PyCode_CODE(FRAME_CODE(f)) - 1;
#endif
}

/* Slots of a whole frame, specials included. */
static inline Py_ssize_t code_framesize(PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030C0000
    return code->co_framesize;
#else
    return code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
#endif
}

/* Makes room for `code` in a frame that is the top of the data stack; 0 when it isn't or when the
 * chunk is full. */
static inline int frame_resize(PyThreadState *ts, Frame *f, PyCodeObject *code) {
    Py_ssize_t old = code_framesize(FRAME_CODE(f)), wanted = code_framesize(code);
    if (f->owner != FRAME_OWNED_BY_THREAD || (PyObject **)f + old != ts->datastack_top) {
        return 0;
    }
    if (wanted > old && wanted - old >= ts->datastack_limit - ts->datastack_top) {
        return 0;
    }
    ts->datastack_top = (PyObject **)f + wanted;
    return 1;
}

/* The frame runs `code` from its first instruction; slots beyond the arguments become empty. */
static inline void frame_set_code(Frame *f, PyCodeObject *code, int arguments) {
#if PY_VERSION_HEX >= 0x030E0000
    _PyStackRef old = f->f_executable;
    f->f_executable = PyStackRef_FromPyObjectNew((PyObject *)code);
    f->instr_ptr = _PyCode_CODE(code);
    f->stackpointer = f->localsplus + code->co_nlocalsplus;
#else
    PyCodeObject *old = FRAME_CODE(f);
    Py_INCREF(code);
#if PY_VERSION_HEX >= 0x030D0000
    f->f_executable = (PyObject *)code;
    f->instr_ptr = _PyCode_CODE(code);
#else
    f->f_code = code;
    f->prev_instr = _PyCode_CODE(code) - 1;
#endif
    f->stacktop = code->co_nlocalsplus;
#endif
    for (int i = arguments; i < code->co_nlocalsplus; i++) {
        frame_fill_slot(f, i, NULL);
    }
#if PY_VERSION_HEX >= 0x030E0000
    PyStackRef_CLOSE(old);
#else
    Py_DECREF(old);
#endif
}

/* A frame that does not run stands at the instruction at a code unit. */
static inline void frame_go_to(Frame *f, Py_ssize_t unit) {
    _Py_CODEUNIT *at = _PyCode_CODE(FRAME_CODE(f)) + unit;
#if PY_VERSION_HEX >= 0x030D0000
    f->instr_ptr = at;
#else
    f->prev_instr = at;
#endif
}

/* A frame that will not run stands at its code's last instruction. */
static inline void frame_goto_end(Frame *f) { frame_go_to(f, Py_SIZE(FRAME_CODE(f)) - 1); }

/* Gives up a frame at its start whose evaluation is skipped. On 3.11 the caller of the hook clears
 * it; later the evaluator would have, so the hook must. Such a frame was never linked, so no frame
 * object can exist for it. */
static inline void frame_drop(PyThreadState *ts, Frame *f) {
#if PY_VERSION_HEX >= 0x030E0000
    while (f->stackpointer > f->localsplus) { /* the last local first, as the evaluator does */
        f->stackpointer--;
        PyStackRef_XCLOSE(*f->stackpointer);
    }
    Py_CLEAR(f->f_locals);
    PyStackRef_CLEAR(f->f_funcobj);
    PyStackRef_CLEAR(f->f_executable);
    _PyThreadState_PopFrame(ts, f);
#elif PY_VERSION_HEX >= 0x030C0000
    for (int i = 0; i < f->stacktop; i++) {
        Py_CLEAR(f->localsplus[i]);
    }
    Py_CLEAR(f->f_locals);
    Py_CLEAR(f->f_funcobj);
#if PY_VERSION_HEX >= 0x030D0000
    Py_CLEAR(f->f_executable);
#else
    Py_CLEAR(f->f_code);
#endif
    _PyStackChunk *chunk = ts->datastack_chunk;
    if ((PyObject **)f == &chunk->data[0]) {
        _PyStackChunk *previous = chunk->previous;
        PyObjectArenaAllocator arena;
        PyObject_GetArenaAllocator(&arena);
        ts->datastack_top = &previous->data[previous->top];
        ts->datastack_limit = (PyObject **)((char *)previous + previous->size);
        ts->datastack_chunk = previous;
        arena.free(arena.ctx, chunk, chunk->size);
    } else {
        ts->datastack_top = (PyObject **)f;
    }
#endif
}

/* The frame that runs, of Python code. */
static inline Frame *current_frame(PyThreadState *ts) {
#if PY_VERSION_HEX >= 0x030D0000
    return ts->current_frame;
#else
    return ts->cframe->current_frame;
#endif
}

/* Takes over the caller's references to all arguments but the first, of a built-in function that code
 * in Python calls: they lie in slots of its stack, which it clears after the call and which get
 * something else to hold. Up to 3.13, `args` are these slots; later a copy, and the slots are the top
 * of the stack. 0 where the caller is somebody else. */
static inline int take_arguments(PyThreadState *ts, PyObject *const *args, Py_ssize_t count,
                                 PyObject **items) {
#if PY_VERSION_HEX >= 0x030E0000
    Frame *f = current_frame(ts);
    if (f == NULL || f->owner >= FRAME_OWNED_BY_INTERPRETER || f->stackpointer == NULL ||
        f->stackpointer - _PyFrame_Stackbase(f) < count) {
        return 0;
    }
    _PyStackRef *slots = f->stackpointer - count;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyStackRef_AsPyObjectBorrow(slots[i]) != args[i]) {
            return 0;
        }
    }
    for (Py_ssize_t i = 1; i < count; i++) {
        items[i - 1] = PyStackRef_AsPyObjectSteal(slots[i]);
        slots[i] = PyStackRef_None;
    }
#else
    PyObject **slots = (PyObject **)args;
    for (Py_ssize_t i = 1; i < count; i++) {
        items[i - 1] = slots[i];
        slots[i] = Py_NewRef(Py_None);
    }
#endif
    return 1;
}

/* A Python trace function (debugger, coverage) is active in the thread. */
static inline int is_tracing(PyThreadState *ts) { return ts->c_tracefunc != NULL; }

/* A trace function or an audit hook runs, in whatever the program does just now. */
static inline int is_in_observer(PyThreadState *ts) { return ts->tracing != 0; }

/* Frames that run are told to a debugger, a profiler or the like. */
static inline int is_watched(PyThreadState *ts) {
#if PY_VERSION_HEX >= 0x030C0000
    uint64_t first, last; /* a byte for each kind of event */
    const char *tools = (const char *)&ts->interp->monitors;
    memcpy(&first, tools, sizeof first);
    memcpy(&last, tools + sizeof ts->interp->monitors - sizeof last, sizeof last);
    if (first | last) {
        return 1;
    }
#endif
    return ts->c_tracefunc != NULL || ts->c_profilefunc != NULL;
}

/* On 3.12 and 3.13 a hooked call also counts against the limit of C recursion, which is lower than
 * Python's own; these give the difference back while the depth is moderate. Later the limit is the
 * room that is left on the C stack. */
static inline void recursion_credit(PyThreadState *ts, int count) {
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
    ts->c_recursion_remaining += count;
#endif
}
#endif /* DYNAMO_NEEDS_FRAMES */

#if PY_VERSION_HEX >= 0x030C0000
#define CODE_EXTRA_INDEX PyUnstable_Eval_RequestCodeExtraIndex
#define CODE_GET_EXTRA PyUnstable_Code_GetExtra
#define CODE_SET_EXTRA PyUnstable_Code_SetExtra
#else
#define CODE_EXTRA_INDEX _PyEval_RequestCodeExtraIndex
#define CODE_GET_EXTRA _PyCode_GetExtra
#define CODE_SET_EXTRA _PyCode_SetExtra
#endif

/* On 3.11 any allocation may collect garbage, whose finalisers may change what borrowed references
 * lean on; later the evaluator does that between two instructions. */
static inline int hold_garbage(void) {
#if PY_VERSION_HEX < 0x030C0000
    return PyGC_Disable();
#else
    return 0;
#endif
}
static inline void free_garbage(int held) {
    if (held) {
        PyGC_Enable();
    }
}

/* From 3.13 on not every change gives a dict a new version; watchers hear of all of them. */
#define DICTS_ARE_WATCHED (PY_VERSION_HEX >= 0x030D0000)

/* Where the version tag of a dict's contents lies; NULL where it can't be relied on. */
static inline const uint64_t *dict_version_address(PyObject *dict) {
#if DICTS_ARE_WATCHED
    (void)dict;
    return NULL;
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return &((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
#endif
}

/* The tag; 0 for none. */
static inline unsigned long long dict_version(PyObject *dict) {
    const uint64_t *tag = dict_version_address(dict);
    return tag != NULL ? *tag : 0;
}

/* All keys of the dict are plain strings. The head of its table is the same in all versions. */
static inline int dict_has_only_names(PyObject *dict) {
    struct {
        Py_ssize_t references;
        uint8_t size, index_size, kind;
    } head;
    memcpy(&head, ((PyDictObject *)dict)->ma_keys, sizeof head);
    return head.kind != 0;
}

/* Written in Python: classes of C modules may lie on the heap, too, and can't be changed. */
static inline int is_python_class(PyTypeObject *type) {
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) && !(type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE);
}

/* The dict of a class; NULL where the interpreter keeps it elsewhere (3.12 on: built-in classes). */
static inline PyObject *type_dict(PyTypeObject *type) {
    return type->tp_flags & Py_TPFLAGS_HEAPTYPE ? type->tp_dict : NULL;
}

#endif
