// What the files of the guard program share: instructions, registers, the program object.
#ifndef DYNAMO_MACHINE_H
#define DYNAMO_MACHINE_H
#include "compare.h"
#include "program.h"

#include <cstdint>
#include <vector>

#include "opcodes.h"
#include "shape_machine.h"

#define NAME_OF(name) OP_##name,
enum Opcode : uint16_t { GUARD_OPCODES(NAME_OF) OPCODE_COUNT };
#undef NAME_OF

struct Instruction {
    uint16_t opcode;
    int32_t dst, src, extra, guard;
    PyObject *arg;     // strong; a weak reference where `target` is its object
    PyObject *target;  // IS_TYPE, IS, IS_WEAK, OBJECT: what is compared with or fetched (borrowed)
    void *spec;        // tensor facts, global state, shape words, register list
    PyObject *dict;    // TAG_TEST: the dict last sealed (borrowed, only compared)
    uint64_t version;  // TAG_TEST: its version then
    mutable bool python;  // it has had to run Python code
};

struct FastPlan;

struct Program {
    PyObject_HEAD
    std::vector<Instruction> *instructions;
    std::vector<PyObject *> *values;
    std::vector<PyObject *> *owned;
    std::vector<int> *collected;
    FastPlan *plan;
    PyObject *local_names, *cell_names, *payload, *weakrefs;
    void (*on_death)(void *);  // called with `owner` when an object dies that the program is about
    void *owner;
    bool running, runs_python, dead;
};

enum Outcome { HOLDS = -1, NEEDS_PYTHON = -2, FAILED_WITH_ERROR = -3 };

struct Run {
    const GuardScope *scope;
    PyObject **values;
    std::vector<PyObject *> *owned;
    bool python;  // Python code may run: own all values, ignore tags
    // Containers found to compare (and hash) their keys without Python code.
    PyObject *plain = nullptr, *plain_hashes = nullptr;
    // Of dicts whose entries were asked for by their number, by the dict's address.
    DictCursor cursors[4] = {};

    DictCursor *cursor_of(PyObject *dict) {  // none where Python code could change the dict
        return python ? nullptr : &cursors[(uintptr_t)dict >> 6 & 3];
    }

    PyObject *own(PyObject *value) {  // of a new reference
        if (value != nullptr) {
            owned->push_back(value);
        } else {
            PyErr_Clear();
        }
        return value;
    }
    PyObject *borrow(PyObject *value) {
        if (python && value != nullptr) {
            owned->push_back(Py_NewRef(value));
        }
        return value;
    }
};

// Number of the instruction that failed, or an Outcome.
int execute(Program *program, Run &run);
// One instruction that is no tag: 1 holds, 0 fails, -1 error, NEEDS_PYTHON.
int step(Run &run, const Instruction &in);

#endif
