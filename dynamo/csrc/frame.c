/* The evaluator that the hook installs: what happens to each Python frame inside a region.
 *
 * In: a frame at its first instruction. Out: the frame's result, from its own code or from the code
 * of the first entry whose guards hold. The frame is rewritten in place and CPython's evaluator runs
 * it; where it can't grow, a function made from the new code is called instead. */
#define DYNAMO_NEEDS_FRAMES
#include "hook.h"

#include <pthread.h>

#define NOT_PLAIN (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)
#define DEEP 600 /* frames */

unsigned long long hook_counts[4];

/* -- the frame as an object ------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *code, *function, *globals, *builtins, *locals, *cells;
} FrameState;

static int frame_state_traverse(FrameState *self, visitproc visit, void *arg) {
    Py_VISIT(self->function);
    Py_VISIT(self->globals);
    Py_VISIT(self->builtins);
    Py_VISIT(self->locals);
    Py_VISIT(self->cells);
    return 0;
}

static int frame_state_clear(FrameState *self) {
    Py_CLEAR(self->code);
    Py_CLEAR(self->function);
    Py_CLEAR(self->globals);
    Py_CLEAR(self->builtins);
    Py_CLEAR(self->locals);
    Py_CLEAR(self->cells);
    return 0;
}

static void frame_state_dealloc(FrameState *self) {
    PyObject_GC_UnTrack(self);
    frame_state_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef frame_state_members[] = {
    {"code", T_OBJECT, offsetof(FrameState, code), READONLY, "The frame's code object."},
    {"function", T_OBJECT, offsetof(FrameState, function), READONLY, "Its function."},
    {"globals", T_OBJECT, offsetof(FrameState, globals), READONLY, "Its globals dict."},
    {"builtins", T_OBJECT, offsetof(FrameState, builtins), READONLY, "Its builtins dict."},
    {"locals", T_OBJECT, offsetof(FrameState, locals), READONLY, "Arguments by name."},
    {"cells", T_OBJECT, offsetof(FrameState, cells), READONLY, "Cells of free variables by name."},
    {NULL}};

PyTypeObject FrameState_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dynamo._C.FrameState",
    .tp_basicsize = sizeof(FrameState),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A frame at its first instruction, as the callback of a region gets it.",
    .tp_dealloc = (destructor)frame_state_dealloc,
    .tp_traverse = (traverseproc)frame_state_traverse,
    .tp_clear = (inquiry)frame_state_clear,
    .tp_members = frame_state_members,
};

static PyObject *make_frame_state(Frame *frame) {
    PyCodeObject *code = FRAME_CODE(frame);
    FrameState *state = (FrameState *)PyType_GenericAlloc(&FrameState_Type, 0);
    if (state == NULL) {
        return NULL;
    }
    PyObject *function = frame_function(frame);
    state->code = Py_NewRef(code);
    state->function = Py_NewRef(function ? function : Py_None);
    state->globals = Py_NewRef(frame->f_globals);
    state->builtins = Py_NewRef(frame->f_builtins);
    state->locals = PyDict_New();
    state->cells = PyDict_New();
    int failed = !state->locals || !state->cells;
    for (int i = 0; !failed && i < count_arguments(code); i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        PyObject *value = frame_slot(frame, i);
        if (value != NULL) {
            failed = PyDict_SetItem(state->locals, name, value) < 0;
        }
    }
    PyObject *closure = function ? PyFunction_GET_CLOSURE(function) : NULL;
    int first = code->co_nlocalsplus - code->co_nfreevars;
    for (int i = 0; !failed && closure && i < code->co_nfreevars; i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, first + i);
        failed = PyDict_SetItem(state->cells, name, PyTuple_GET_ITEM(closure, i)) < 0;
    }
    if (failed) {
        Py_CLEAR(state);
    }
    return (PyObject *)state;
}

/* -- running frames ---------------------------------------------------------------------------- */

static void find_stack(void) {
    pthread_attr_t facts;
    void *end = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &facts) == 0) {
        pthread_attr_getstack(&facts, &end, &size);
        pthread_attr_destroy(&facts);
    }
    thread_region.stack_end = end == NULL ? 1 : (uintptr_t)end;
    thread_region.stack_kept = size / 2;
}

HOT static PyObject *run_plain(PyThreadState *ts, Frame *frame, int throwflag) {
    int credit = thread_region.depth < DEEP;
    thread_region.depth++;
    recursion_credit(ts, credit);
    PyObject *result = _PyEval_EvalFrameDefault(ts, frame, throwflag);
    recursion_credit(ts, -credit);
    thread_region.depth--;
    return result;
}

/* Positional and keyword arguments out of a frame's slots, for the fallback call. */
static PyObject *call_with_slots(PyObject *function, PyCodeObject *code,
                                 PyObject *const *slots) {
    int at = code->co_argcount + code->co_kwonlyargcount;
    PyObject *extra = code->co_flags & CO_VARARGS ? slot_object(slots[at++]) : NULL;
    PyObject *keywords = code->co_flags & CO_VARKEYWORDS ? slot_object(slots[at]) : NULL;
    Py_ssize_t extra_count = extra ? PyTuple_GET_SIZE(extra) : 0;
    PyObject *args = PyTuple_New(code->co_argcount + extra_count);
    PyObject *kwargs = keywords ? PyDict_Copy(keywords) : PyDict_New();
    PyObject *result = NULL;
    if (args == NULL || kwargs == NULL) {
        goto done;
    }
    for (int i = 0; i < code->co_argcount; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(slot_object(slots[i])));
    }
    for (Py_ssize_t i = 0; i < extra_count; i++) {
        PyTuple_SET_ITEM(args, code->co_argcount + i, Py_NewRef(PyTuple_GET_ITEM(extra, i)));
    }
    for (int i = 0; i < code->co_kwonlyargcount; i++) {
        int slot = code->co_argcount + i;
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, slot);
        if (PyDict_SetItem(kwargs, name, slot_object(slots[slot])) < 0) {
            goto done;
        }
    }
    result = PyObject_Call(function, args, kwargs);
done:
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

/* Calls a function made from the entry's code, and gives the frame up. Takes `inputs`. */
static PyObject *run_by_call(PyThreadState *ts, Frame *frame, Entry *entry, PyObject *inputs) {
    hook_counts[COUNT_FALLBACK]++;
    PyObject *result = NULL;
    PyObject *function = PyFunction_New((PyObject *)entry->code, frame->f_globals);
    PyObject *original = frame_function(frame);
    PyObject *closure = original ? PyFunction_GET_CLOSURE(original) : NULL;
    if (function != NULL && (closure == NULL || PyFunction_SetClosure(function, closure) == 0)) {
        /* Making the frame may collect garbage, whose finalisers may come here, too. */
        PyCodeObject *outer_code = thread_region.pending_code;
        PyObject *outer_inputs = thread_region.pending_inputs;
        int outer_slot = thread_region.pending_slot;
        thread_region.pending_code = entry->code;
        thread_region.pending_inputs = inputs;
        thread_region.pending_slot = entry->inputs_slot;
        inputs = NULL;
        result = call_with_slots(function, entry->code, frame_slots(frame));
        PyObject *unused = thread_region.pending_inputs;
        thread_region.pending_code = outer_code;
        thread_region.pending_inputs = outer_inputs;
        thread_region.pending_slot = outer_slot;
        Py_XDECREF(unused);
    }
    Py_XDECREF(inputs);
    Py_XDECREF(function);
    frame_drop(ts, frame);
    return result;
}

/* The frame of a function that `run_by_call` calls gets its inputs. */
static void take_pending(Frame *frame) {
    thread_region.pending_code = NULL;
    if (thread_region.pending_slot >= 0) {
        frame_fill_slot(frame, thread_region.pending_slot, thread_region.pending_inputs);
        thread_region.pending_inputs = NULL;
    }
}

/* Takes `inputs`; the entry stays alive through its code, which the frame holds. */
HOT static PyObject *run_entry(PyThreadState *ts, Frame *frame, Entry *entry, PyObject *inputs) {
    int handed_on = thread_region.handed_on == frame;
    if (!frame_resize(ts, frame, entry->code)) {
        Py_INCREF(entry);
        PyObject *result = run_by_call(ts, frame, entry, inputs);
        Py_DECREF(entry);
        return result;
    }
    int slot = entry->inputs_slot;
    frame_set_code(frame, entry->code, count_arguments(entry->code));
    if (inputs != NULL) {
        frame_fill_slot(frame, slot, inputs);
    }
    struct _PyInterpreterFrame *outer = thread_region.ending;
    thread_region.ending = frame;
    PyObject *result = run_plain(ts, frame, 0);
    thread_region.ending = outer;
    return result != NULL && Py_IS_TYPE(result, &LastCall_Type) && !handed_on
               ? run_last_calls(result) : result;
}

static Start frame_start(Frame *frame) {
    PyObject *function = frame_function(frame);
    return (Start){
        frame_slots(frame), frame->f_globals, frame->f_builtins,
        function && PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : NULL,
    };
}

/* A direct entry's code is to run after all: its inputs into a tuple. */
static int collect_items(Hit *hit) {
    Py_ssize_t count = program_collects(hit->entry->program);
    hit->inputs = count > 0 ? PyTuple_New(count) : NULL;
    if (count > 0 && hit->inputs == NULL) {
        PyErr_Clear();
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(hit->inputs, i, hit->items[i + 1]);
    }
    return 1;
}

/* Runs what was found for the frame; gives up the hit. */
HOT static PyObject *run_hit(PyThreadState *ts, Frame *frame, Hit *hit) {
    if (hit->entry->callee == NULL || (is_watched(ts) && collect_items(hit))) {
        PyObject *result = run_entry(ts, frame, hit->entry, hit->inputs);
        Py_DECREF(hit->entry);
        return result;
    }
    Start start = frame_start(frame);
    Region *region = switch_region(NULL);
    PyObject *result = call_directly(hit, &start);
    Py_XDECREF(switch_region(region));
    frame_drop(ts, frame);
    return result;
}

static int check_entry(PyCodeObject *code, Entry *entry) {
    PyCodeObject *made = entry->code;
    int flags = CO_VARARGS | CO_VARKEYWORDS | CO_OPTIMIZED | CO_NEWLOCALS;
    int first = made->co_nlocalsplus - made->co_nfreevars;
    int same = made->co_argcount == code->co_argcount &&
               made->co_posonlyargcount == code->co_posonlyargcount &&
               made->co_kwonlyargcount == code->co_kwonlyargcount &&
               made->co_nfreevars == code->co_nfreevars &&
               (made->co_flags & flags) == (code->co_flags & flags);
    for (int i = 0; same && i < count_arguments(code); i++) {
        same = PyUnicode_Compare(PyTuple_GET_ITEM(made->co_localsplusnames, i),
                                 PyTuple_GET_ITEM(code->co_localsplusnames, i)) == 0;
    }
    for (int i = 0; same && i < code->co_nfreevars; i++) {
        int old = code->co_nlocalsplus - code->co_nfreevars;
        same = PyUnicode_Compare(PyTuple_GET_ITEM(made->co_localsplusnames, first + i),
                                 PyTuple_GET_ITEM(code->co_localsplusnames, old + i)) == 0;
    }
    if (!same && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError,
                     "new code of %U must keep arguments, flags and free variables", code->co_name);
    }
    return same ? 0 : -1;
}

/* Runs the frame with the hook off in this thread. */
static PyObject *run_without_hook(PyThreadState *ts, Frame *frame, int throwflag) {
    Region *region = switch_region(NULL);
    PyObject *result = _PyEval_EvalFrameDefault(ts, frame, throwflag);
    Py_XDECREF(switch_region(region));
    return result;
}

/* Runs the frame as it is; what it calls has the entries that are there, and gets no others. */
static PyObject *run_known_only(PyThreadState *ts, Frame *frame, Region *region) {
    Region *outer = thread_region.known_only;
    thread_region.known_only = region;
    PyObject *result = run_plain(ts, frame, 0);
    thread_region.known_only = outer;
    return result;
}

static int report_defect(Region *region, PyObject *frame_state, Entry *entry) {
    hook_counts[COUNT_DEFECT]++;
    remove_entry(entry);
    if (region->on_guard_defect == Py_None) {
        return PyErr_WarnEx(PyExc_RuntimeWarning,
                            "guards fail on the values that they were made from", 1);
    }
    PyObject *answer = PyObject_CallFunctionObjArgs(region->on_guard_defect, frame_state,
                                                    (PyObject *)entry, NULL);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Looking for an entry, or the callback, has ended with an error: it comes where the frame begins. */
static PyObject *run_failed(PyThreadState *ts, Frame *frame, Region *region) {
    PyObject *type, *error, *traceback, *result = NULL;
    Region *current = switch_region(NULL);
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    PyObject *frame_state = region->on_error == Py_None ? NULL : make_frame_state(frame);
    frame_drop(ts, frame);
    if (frame_state == NULL) {
        PyErr_Restore(type, error, traceback);
    } else {
        result = PyObject_CallFunctionObjArgs(region->on_error, frame_state, error, NULL);
        Py_DECREF(frame_state);
        Py_DECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
    }
    Py_XDECREF(switch_region(current));
    return result;
}

/* No entry holds: asks the callback. */
static PyObject *run_miss(PyThreadState *ts, Frame *frame, Region *region) {
    hook_counts[COUNT_MISS]++;
    PyCodeObject *code = FRAME_CODE(frame);
    PyObject *answer = NULL;
    Hit hit;
    Mark mark = MARK_NONE;
    int held = 0;
    Region *current = switch_region(NULL); /* our strong reference keeps `region` alive */
    PyObject *frame_state = make_frame_state(frame);
    /* A waiting signal is seen here: the compiler's code may first meet it where errors are lost,
     * as in the callback of a weak reference. */
    if (frame_state != NULL && !(signals_wait(ts) && PyErr_CheckSignals() < 0)) {
        answer = PyObject_CallOneArg(region->callback, frame_state);
        if (answer == NULL && PyErr_ExceptionMatches(PyExc_RecursionError)) {
            PyErr_Clear(); /* the program may need fewer frames than its compiler */
            answer = Py_NewRef(Py_None);
        }
    }
    if (answer == NULL) {
        goto done;
    }
    if (Py_IS_TYPE(answer, &Entry_Type)) {
        Entry *entry = (Entry *)answer;
        RegionState *state = make_state(code, region);
        if (state == NULL || check_entry(code, entry) < 0) {
            remove_entry(entry); /* where the callback has added it */
            goto done;
        }
        if (entry->owner == NULL && add_entry(state, entry) < 0) {
            goto done;
        }
        Start start = frame_start(frame);
        held = check_guards(entry, &start, &hit);
        if (held == 0) {
            report_defect(region, frame_state, entry);
        }
    } else if (answer == skip_mark || answer == skip_recursive_mark) {
        mark = answer == skip_mark ? MARK_SKIP : MARK_SKIP_RECURSIVE;
        RegionState *state = make_state(code, region);
        if (state != NULL) {
            state->mark = mark;
        }
    } else if (answer != Py_None && answer != known_only_mark) {
        PyErr_Format(PyExc_TypeError, "a region's callback must return an Entry, None, SKIP, "
                                      "SKIP_RECURSIVE or KNOWN_ONLY, not %.100s",
                     Py_TYPE(answer)->tp_name);
    }
done:
    Py_XDECREF(frame_state);
    Py_XDECREF(switch_region(current));
    if (PyErr_Occurred()) {
        Py_XDECREF(answer);
        return run_failed(ts, frame, region);
    }
    PyObject *result;
    if (held == 1) {
        result = run_hit(ts, frame, &hit);
    } else if (mark == MARK_SKIP_RECURSIVE) {
        result = run_without_hook(ts, frame, 0);
    } else if (answer == known_only_mark) {
        result = run_known_only(ts, frame, region);
    } else {
        result = run_plain(ts, frame, 0);
    }
    Py_DECREF(answer);
    return result;
}

/* Runs an entry whose guards hold, if there is one; not inlined, for the hit lies on the stack. */
__attribute__((noinline)) static int run_known(PyThreadState *ts, Frame *frame, RegionState *state,
                                               PyObject **result) {
    Region *region = thread_region.region;
    Start start = frame_start(frame);
    Hit hit;
    thread_region.region = NULL; /* Python code that a guard runs is nobody's frame */
    int held = find_entry(state, &start, &hit, 0);
    thread_region.region = region;
    if (held == 1) {
        hook_counts[COUNT_HIT]++;
        *result = run_hit(ts, frame, &hit);
    }
    return held;
}

/* With a hook, a call of Python code by Python code takes some of the C stack, as it would not
 * without. True where the program has gone so deep that it must not. */
static inline int is_deep(void) {
    if (__builtin_expect(thread_region.stack_end == 0, 0)) {
        find_stack();
    }
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    return here - thread_region.stack_end < thread_region.stack_kept ||
           thread_region.depth >= DEEP;
}

HOT PyObject *frame_hook(PyThreadState *ts, Frame *frame, int throwflag) {
    if (thread_region.moved != NULL) {
        release_moved(thread_region.moved);
    }
    if (thread_region.last_called != NULL && frame_function(frame) == thread_region.last_called) {
        thread_region.last_called = NULL;
        thread_region.handed_on = frame;
    }
    Region *region = thread_region.region;
    PyCodeObject *code = FRAME_CODE(frame);
    if (thread_region.pending_code == code) {
        take_pending(frame);
    }
    if ((is_deep() || is_in_observer(ts)) && region != NULL) {
        return run_without_hook(ts, frame, throwflag);
    }
    if (region == NULL || throwflag || !(code->co_flags & CO_OPTIMIZED) ||
        (code->co_flags & NOT_PLAIN) || !frame_at_start(frame)) {
        return run_plain(ts, frame, throwflag);
    }
    CodeState *owner = code_state(code, 0);
    if (owner != NULL && owner->compiled) {
        return run_plain(ts, frame, 0);
    }
    RegionState *state = find_state(owner, region);
    if (state != NULL && state->mark != MARK_NONE) {
        return state->mark == MARK_SKIP ? run_plain(ts, frame, 0)
                                        : run_without_hook(ts, frame, 0);
    }
    if (is_tracing(ts)) {
        return run_plain(ts, frame, 0);
    }
    if (state != NULL && state->count > 0) {
        PyObject *result;
        int held = run_known(ts, frame, state, &result);
        if (held == 1) {
            return result;
        }
        if (held < 0) {
            return run_failed(ts, frame, region);
        }
    }
    return thread_region.known_only == region ? run_plain(ts, frame, 0)
                                              : run_miss(ts, frame, region);
}
