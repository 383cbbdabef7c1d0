/* Types and functions that the files of `dynamo._C` share. */
#ifndef DYNAMO_HOOK_H
#define DYNAMO_HOOK_H

#include "cpython_compat.h"
#include "program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RegionState RegionState;

/* One configuration of `dynamo.compile`; entries of code objects belong to one region. */
typedef struct {
    PyObject_HEAD
    PyObject *callback;
    PyObject *on_guard_defect, *on_error;
    PyObject *weakrefs;
    RegionState *states;
} Region;

/* Compiled code for one set of guards. */
typedef struct {
    PyObject_HEAD
    PyCodeObject *code;
    PyObject *program;
    PyObject *keepalive;
    PyObject *weakrefs;
    PyObject *note;
    int inputs_slot; /* fast local for the collected inputs; -1: none */
    /* Where all that the code does is to call `callee` with the collected inputs, which gives
     * `outputs` items: it returns the item picks[0] (pick_count -1) or a tuple of picks. */
    PyObject *callee;
    int outputs, pick_count, *picks;
    int *local_index;
    int *cell_index;
    RegionState *owner; /* NULL once invalid */
    unsigned long long hits;
} Entry;

/* What a frame starts with. */
typedef struct {
    PyObject *const *slots;
    PyObject *globals, *builtins;
    PyObject *closure; /* tuple or NULL */
} Start;

#define DIRECT_INPUTS 96

/* An entry whose guards hold, and what they collected: for a direct entry in items[1] and on. */
typedef struct {
    Entry *entry;     /* strong */
    PyObject *inputs; /* tuple or NULL */
    PyObject *items[DIRECT_INPUTS + 1];
} Hit;

typedef enum { MARK_NONE, MARK_SKIP, MARK_SKIP_RECURSIVE } Mark;

/* What one region knows of one code object. */
struct RegionState {
    Region *region;
    PyCodeObject *code; /* borrowed: the state dies with the code */
    RegionState *next_of_code;
    RegionState *previous_of_region, *next_of_region;
    Entry **entries;
    Py_ssize_t count, capacity;
    unsigned generation; /* grows whenever the list of entries changes */
    unsigned wasted;     /* entries that held once at most before what they are about died */
    Mark mark;
};

/* Hangs on a code object. */
typedef struct {
    RegionState *states;
    int compiled; /* code made by the compiler: never offered */
} CodeState;

/* Arguments on their way into a frame, see `call_moving`. */
typedef struct Moved {
    PyObject **items;
    Py_ssize_t count;
    struct Moved *outer;
} Moved;

typedef struct {
    Region *region; /* strong */
    Region **saved; /* stack of `with` statements; strong or NULL */
    Py_ssize_t saved_count, saved_capacity;
    PyCodeObject *pending_code; /* fallback call in progress */
    PyObject *pending_inputs;
    int pending_slot;
    Moved *moved;
    /* The frame whose new code runs, borrowed; the function that `run_last_calls` is calling; and
     * its frame, which gives a further last call back to it. */
    struct _PyInterpreterFrame *ending;
    PyObject *last_called;
    struct _PyInterpreterFrame *handed_on;
    int depth;
    Region *known_only; /* borrowed: frames without an entry are not offered to it */
    uintptr_t stack_end, stack_kept; /* lowest address, and how much above it is not for the hook */
} ThreadRegion;

extern __thread ThreadRegion thread_region;
extern PyTypeObject Region_Type, Entry_Type, FrameState_Type, Compiled_Type, Disabled_Type;
extern PyObject *skip_mark, *skip_recursive_mark, *known_only_mark;
extern unsigned long long hook_counts[4];
enum { COUNT_HIT, COUNT_MISS, COUNT_FALLBACK, COUNT_DEFECT };

/* entries.c */
int entries_init(void);
CodeState *code_state(PyCodeObject *code, int create);
RegionState *find_state(CodeState *state, Region *region);
RegionState *make_state(PyCodeObject *code, Region *region);
void free_region_states(Region *region);
void clear_state(RegionState *state);
int add_entry(RegionState *state, Entry *entry);
void remove_entry(Entry *entry);
PyObject *list_entries(RegionState *state);
Py_ssize_t count_entries(PyCodeObject *code); /* over all regions */

/* 1: *hit is an entry whose guards hold, now the first one. 0: there is none. -1: an error is set.
 * With `direct`, no entry behind one that is not direct is looked at. */
int find_entry(RegionState *state, const Start *start, Hit *hit, int direct);
int check_guards(Entry *entry, const Start *start, Hit *hit);
int count_arguments(PyCodeObject *code);

/* direct.c */
int set_direct(Entry *entry, PyObject *direct);
PyObject *call_directly(Hit *hit, const Start *start); /* gives up the hit */
PyObject *call_without_frame(Region *region, PyObject *function, PyObject *const *args,
                             size_t flags, PyObject *kwnames, int *done);

/* calls.c */
extern PyTypeObject LastCall_Type;
void release_moved(Moved *moved);
PyObject *call_moving(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *call_last(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *run_last_calls(PyObject *call); /* takes the call */

/* objects.c */
PyObject *read_item(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *read_dict(PyObject *module, PyObject *object);
PyObject *read_entry(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *store_attribute(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *store_item(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *store_ordered(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* sets.c */
PyObject *set_table(PyObject *module, PyObject *object);
PyObject *fill_set(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* results.c */
PyObject *checked_call(PyObject *module, PyObject *parts);

/* rescue.c */
PyObject *rescued_call(PyObject *module, PyObject *parts);

/* tracebacks.c */
PyObject *make_traceback(PyObject *module, PyObject *args);
PyObject *pass_on(PyObject *module, PyObject *args);

/* regions.c */
Region *switch_region(Region *next); /* takes and returns a strong reference (or NULL) */
PyObject *frame_hook(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throwflag);

#ifdef __cplusplus
}
#endif
#endif
