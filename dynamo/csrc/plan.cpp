// The short cut of a guard program.
//
// A full walk in which all guards held leaves *anchors* (values of the frame that are the same objects
// from call to call), *stamps* (words of memory and what they held: versions of dicts, classes of
// instances, lengths of lists, metadata of tensors) and the instructions that have to run every time.
// While anchors and stamps are as they were, all that depends on them is as it was.
//
// Why each address may be read: an anchor is alive, because the frame holds it, and each later stamp
// lies in an object that the stamps before it prove to be alive and of its class, held by its parent.
// What a tuple, list or dict of this call alone holds (`*args`, `**kwargs`) is read anew and compared,
// and is an anchor then. An anchor that is another object call after call is none in the next plan.
// A new dict never gets an old version, so that what a dict holds is the same object. An object that
// is found elsewhere may be a new one at an old address: of such nothing is believed but what is read.
#include "plan.h"

#include <algorithm>
#include <utility>

#include "dict_words.h"
#include "tensor_guards.h"

typedef int64_t __attribute__((may_alias)) word;

struct Stamp {
    const word *at;
    int64_t expected;
};

struct Anchor {
    uint16_t opcode;
    int32_t index;
    int32_t at;  // the register, or -1
    PyObject *expected;
};

// A value that the early instructions have fetched, which has to be the same object.
struct Fetched {
    int32_t at;
    PyObject *expected;
};

constexpr unsigned SOON = 8;    // calls; an anchor that changes sooner was no good one
constexpr uint8_t GIVE_UP = 2;  // plans that it has ended so; both chosen, not measured

struct FastPlan {
    bool valid = false;
    std::vector<Anchor> anchors;
    std::vector<Fetched> fetched;
    std::vector<Stamp> stamps;
    std::vector<uint8_t> changes;  // by register: how many plans an anchor has ended soon
    unsigned held_for = 0;         // calls
    std::vector<const Instruction *> early, late;  // run before and after the stamps are compared
    std::vector<PyObject *> values;
    std::vector<PyObject *> held;  // small values whose address must not be used again
    DictWords dicts;
    // A plan that fails at once is not worth making again soon.
    unsigned wait = 0, patience = 1;
};

namespace {

PyObject *anchor_value(const GuardScope *scope, uint16_t opcode, int32_t index) {
    switch (opcode) {
        case OP_LOCAL: return slot_object(scope->slots[scope->local_index[index]]);
        case OP_GLOBALS: return scope->globals;
        case OP_BUILTINS: return scope->builtins;
        case OP_MODULE: return PyImport_GetModuleDict();
        case OP_CELL:
            return scope->closure
                       ? PyTuple_GET_ITEM(scope->closure, scope->cell_index[index]) : nullptr;
        default: return nullptr;
    }
}

bool can_change_class(PyObject *object) {
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(object);
}

// Decides for each instruction whether it can be skipped, and by which stamps.
struct Maker {
    Program *program;
    FastPlan &plan;
    const GuardScope *scope;
    std::vector<char> pinned;     // registers: the same object while anchors and stamps hold
    std::vector<char> versioned;  // registers: the version of the dict is stamped
    std::vector<char> stable;     // registers worth pinning: instances, closures of functions
    std::vector<char> loose;      // registers that do not need the stamps
    // Registers that are not only at the same address but the same object: what a dict of known version
    // holds, and what is kept alive. Another object may have taken the place of any other.
    std::vector<char> sure, typed;

    Maker(Program *p, const GuardScope *s)
        : program(p), plan(*p->plan), scope(s), pinned(p->values->size()),
          versioned(p->values->size()), stable(p->values->size()), loose(p->values->size()), sure(p->values->size()),
          typed(p->values->size()) {
        // From the end, as what depends on a value comes after it.
        auto &all = *program->instructions;
        for (auto in = all.rbegin(); in != all.rend(); ++in) {
            if (in->src >= 0 && (in->opcode == OP_DICT || in->opcode == OP_IS_WEAK ||
                                 in->opcode == OP_CODE || in->opcode == OP_ATTR ||
                                 (in->opcode == OP_CONTENTS && stable[in->dst]))) {
                stable[in->src] = 1;
            }
        }
    }

    PyObject *value(int at) { return plan.values[at]; }
    template <typename T>
    bool stamp(const T *at) {
        static_assert(sizeof(T) == 8);
        plan.stamps.push_back({(const word *)at, *(const word *)at});
        return true;
    }
    // From here on the register holds an object of the class that it has now.
    void stamp_type(int at) {
        if (!typed[at] && (!sure[at] || can_change_class(value(at)))) {
            stamp(&value(at)->ob_type);
        }
        typed[at] = 1;
    }
    // The register's object is kept alive while the plan is, where that costs nothing.
    bool hold_small(const Instruction &in) {
        PyObject *of = value(in.dst);
        if (of == Py_None || PyBool_Check(of) || PyLong_CheckExact(of) || PyFloat_CheckExact(of) ||
            PyUnicode_CheckExact(of)) {
            hold(in);
        }
        return true;
    }
    bool hold(const Instruction &in) {
        plan.held.push_back(Py_NewRef(value(in.dst)));
        return sure[in.dst] = 1;
    }
    bool stamp_dict(PyObject *dict) {
        const uint64_t *word = plan.dicts.add(dict);
        return word != nullptr && stamp(word);
    }
    bool stamp_version(int at) {
        PyObject *dict = value(at);
        stamp_type(at);
        if (!PyDict_Check(dict) || (!versioned[at] && !stamp_dict(dict))) {
            return false;
        }
        return versioned[at] = 1;
    }
    bool anchor(const Instruction &in) {
        plan.anchors.push_back(
            {in.opcode, in.extra, in.dst, anchor_value(scope, in.opcode, in.extra)});
        return true;
    }
    bool is_anchor(int at) { return stable[at] && plan.changes[at] < GIVE_UP; }
    // An item of what belongs to one call: the early instructions read it, and it is compared.
    bool fetch(const Instruction &in) {
        if (in.opcode != OP_ITEM || !loose[in.src] || pinned[in.src] || !is_anchor(in.dst)) {
            return false;
        }
        PyObject *from = value(in.src);
        if (!PyTuple_CheckExact(from) && !PyDict_CheckExact(from) && !PyList_CheckExact(from)) {
            return false;
        }
        plan.fetched.push_back({in.dst, value(in.dst)});
        return true;
    }

    // True where the register is pinned.
    bool pin(const Instruction &in) {
        PyObject *from = in.src >= 0 ? value(in.src) : nullptr;
        switch (in.opcode) {
            case OP_OBJECT: return sure[in.dst] = 1;
            case OP_GLOBALS:
            case OP_BUILTINS: return anchor(in);
            case OP_LOCAL:
            case OP_CELL: return is_anchor(in.dst) && anchor(in);
            case OP_MODULE: return pin_module(in);
            case OP_CONTENTS:
                if (!pinned[in.src] || !stable[in.dst]) {
                    return false;
                }
                stamp_type(in.src);
                return stamp(&((PyCellObject *)from)->ob_ref);
            case OP_TYPE_OF: return pinned[in.src] && stamp(&from->ob_type);
            case OP_DICT: return pinned[in.src] && pin_dict(in, from, value(in.dst));
            case OP_ITEM: return pinned[in.src] && pin_item(in, from);
            case OP_ATTR:
                return pinned[in.src] && (pin_part(in, from) || pin_slot(in, from));
            case OP_KEY_AT:
            case OP_VALUE_AT:
                return pinned[in.src] && PyDict_CheckExact(from) && stamp_version(in.src) &&
                       (sure[in.dst] = 1);
            default: return false;
        }
    }
    bool pin_module(const Instruction &in) {
        PyObject *modules = PyImport_GetModuleDict();
        for (const Anchor &known : plan.anchors) {
            if (known.opcode == OP_MODULE) {
                return sure[in.dst] = 1;
            }
        }
        if (!stamp_dict(modules)) {
            return false;
        }
        plan.anchors.push_back({OP_MODULE, 0, -1, modules});
        return sure[in.dst] = 1;
    }
    bool pin_dict(const Instruction &in, PyObject *owner, PyObject *dict) {
        if (PyModule_Check(owner)) {
            return sure[in.src] && (sure[in.dst] = 1);
        }
        if (PyType_Check(owner)) {
            return sure[in.src] && type_dict((PyTypeObject *)owner) == dict;
        }
        stamp_type(in.src);
        PyObject **slot = _PyObject_GetDictPtr(owner);
        return slot != nullptr && *slot == dict && stamp(slot);
    }
    // A tuple of classes, which is not kept alive: another at its place has the same items.
    bool stamp_tuple(const Instruction &in) {
        auto *tuple = (PyTupleObject *)value(in.dst);
        stamp(&tuple->ob_base.ob_size);
        for (Py_ssize_t i = 0; i < Py_SIZE(tuple); i++) {
            stamp(&tuple->ob_item[i]);
        }
        return sure[in.dst] = 1;
    }
    // The bases of a class written in Python in their order, and its names.
    bool pin_class_part(const Instruction &in, PyObject *from) {
        auto *type = (PyTypeObject *)from;
        if (!sure[in.src] || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
            return false;
        }
        if (PyUnicode_CompareWithASCIIString(in.arg, "__mro__") == 0) {
            return type->tp_mro == value(in.dst) && stamp(&type->tp_mro) && stamp_tuple(in);
        }
        auto *heap = (PyHeapTypeObject *)type;
        const std::pair<const char *, PyObject **> parts[] = {
            {"__name__", &heap->ht_name}, {"__qualname__", &heap->ht_qualname}};
        for (auto [name, part] : parts) {
            if (PyUnicode_CompareWithASCIIString(in.arg, name) == 0) {
                return *part == value(in.dst) && stamp(part) && hold(in);
            }
        }
        return false;
    }
    // `function.__code__` and the like.
    bool pin_part(const Instruction &in, PyObject *from) {
        if (PyType_Check(from)) {
            return pin_class_part(in, from);
        }
        if (!sure[in.src] || !Py_IS_TYPE(from, &PyFunction_Type)) {
            return false;
        }
        auto *function = (PyFunctionObject *)from;
        const std::pair<const char *, PyObject **> parts[] = {
            {"__code__", &function->func_code},
            {"__closure__", &function->func_closure},
            {"__defaults__", &function->func_defaults},
            {"__kwdefaults__", &function->func_kwdefaults}};
        for (auto [name, part] : parts) {
            if (PyUnicode_CompareWithASCIIString(in.arg, name) == 0) {
                PyObject *held = *part != nullptr ? *part : Py_None;
                return held == value(in.dst) && stamp(part) && hold(in);
            }
        }
        return false;
    }
    // An attribute in a slot (`__slots__`, or a member of a C class) that the class itself declares.
    bool pin_slot(const Instruction &in, PyObject *from) {
        PyTypeObject *type = Py_TYPE(from);
        bool heap = type->tp_flags & Py_TPFLAGS_HEAPTYPE;
        PyObject *own = heap ? type_dict(type) : nullptr;
        if (heap && !dict_has_only_names(own)) {
            return false;
        }
        PyObject *found = heap ? PyDict_GetItemWithError(own, in.arg) : _PyType_Lookup(type, in.arg);
        if (found == nullptr || !Py_IS_TYPE(found, &PyMemberDescr_Type) ||
            type->tp_getattro != PyObject_GenericGetAttr) {
            return false;
        }
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        auto **slot = (PyObject **)((char *)from + member->offset);
        bool plain = member->type == T_OBJECT || member->type == T_OBJECT_EX;
        if (!plain || member->flags & ~READONLY || *slot == nullptr || *slot != value(in.dst)) {
            return false;
        }
        stamp_type(in.src);
        if (heap) {  // the class may get another attribute of this name, or another way to read any
            if (!stamp_dict(own)) {
                return false;
            }
            stamp(&type->tp_getattro);
        }
        return stamp(slot) && hold_small(in);
    }
    bool pin_item(const Instruction &in, PyObject *from) {
        if (PyDict_Check(from)) {
            return stamp_version(in.src) && (sure[in.dst] = 1);
        }
        if (PyTuple_Check(from)) {
            return sure[in.src] && (sure[in.dst] = 1);
        }
        if (!PyList_Check(from) || !PyLong_CheckExact(in.arg)) {
            return false;
        }
        PyListObject *list = (PyListObject *)from;
        Py_ssize_t at = in.extra < 0 ? in.extra + Py_SIZE(list) : in.extra;
        stamp_type(in.src);
        return stamp(&list->ob_base.ob_size) && stamp(&list->ob_item) &&
               stamp(&list->ob_item[at]) && hold_small(in);
    }

    // True where the check holds while anchors and stamps do.
    bool covered(const Instruction &in) {
        if (in.opcode == OP_DISTINCT) {
            bool all = true;
            for (int at : *(const std::vector<int> *)in.spec) {
                all = all && pinned[at];
            }
            return all;
        }
        if (in.src < 0 || !pinned[in.src]) {
            return false;
        }
        PyObject *of = value(in.src);
        switch (in.opcode) {
            case OP_IS:
            case OP_IS_WEAK: return true;
            case OP_IS_TYPE:
                stamp_type(in.src);
                return true;
            case OP_CODE:
                stamp_type(in.src);
                return stamp(&((PyFunctionObject *)of)->func_code);
            case OP_EQUAL: return in.extra && sure[in.src];  // 1: only an immutable value is equal
            case OP_EMPTY:
                stamp_type(in.src);
                return stamp(&((PyDictObject *)of)->ma_used);
            case OP_DICT_HAS:
            case OP_DICT_LACKS: return PyDict_Check(of) && stamp_version(in.src);
            case OP_DICT_KEYS: return PyDict_CheckExact(of) && stamp_version(in.src);
            case OP_LENGTH: return cover_length(in, of);
            case OP_TRUTH:
                return (PyList_CheckExact(of) || PyDict_CheckExact(of)) && cover_length(in, of);
            case OP_SAME:
            case OP_NOT_SAME: return pinned[in.extra];
            case OP_TENSOR: return cover_tensor(in, of);
            default: return false;
        }
    }
    bool cover_length(const Instruction &in, PyObject *of) {
        if (PyTuple_Check(of) || PyUnicode_Check(of) || PyBytes_Check(of)) {
            return sure[in.src];
        }
        stamp_type(in.src);
        if (PyList_Check(of)) {
            return stamp(&((PyListObject *)of)->ob_base.ob_size);
        }
        return PyDict_Check(of) && stamp(&((PyDictObject *)of)->ma_used);
    }
    bool cover_tensor(const Instruction &in, PyObject *of) {
        constexpr int LIMIT = 32;
        const int64_t *places[LIMIT];
        int count = tensor_places(in.spec, of, places, LIMIT);
        for (int i = 0; i < count; i++) {
            stamp(places[i]);
        }
        return count > 0;
    }

    bool is_early(const Instruction &in) {
        switch (in.opcode) {
            case OP_SAME:
            case OP_NOT_SAME:
            case OP_DISTINCT:
            case OP_DISTINCT_STORAGE:
            case OP_SHAPE: return false;
            default: return in.src < 0 || loose[in.src];
        }
    }
    void make() {
        for (const Instruction &in : *program->instructions) {
            bool tag = in.opcode == OP_TAG_TEST || in.opcode == OP_TAG_SEAL;
            bool fetches = in.opcode < OP_TAG_TEST;
            if (tag || (fetches ? (bool)(pinned[in.dst] = pin(in)) : covered(in))) {
                continue;
            }
            bool early = is_early(in);
            if (fetches) {
                loose[in.dst] = early;
                pinned[in.dst] = early && fetch(in);
            }
            (early ? plan.early : plan.late).push_back(&in);
        }
    }
};

// Index of the instruction that fails, HOLDS, or an Outcome.
HOT int run_all(Program *program, Run &run, const std::vector<const Instruction *> &list) {
    for (const Instruction *in : list) {
        int held = step(run, *in);
        if (held == 1) {
            continue;
        }
        return held == 0              ? (int)(in - program->instructions->data())
               : held == NEEDS_PYTHON ? NEEDS_PYTHON
                                      : FAILED_WITH_ERROR;
    }
    return HOLDS;
}

void drop(FastPlan &plan) {
    plan.valid = false;
    plan.dicts.clear();
    std::vector<PyObject *> held;
    held.swap(plan.held);
    for (PyObject *value : held) {
        Py_DECREF(value);
    }
}

// An anchor is another object now: worth noting where that has ended the plan soon.
void note_change(FastPlan &plan, int at) {
    if (at >= 0) {
        plan.changes[at] = plan.held_for < SOON ? std::min<unsigned>(plan.changes[at] + 1, GIVE_UP) : 0;
    }
}

HOT bool has_anchors(FastPlan &plan, const GuardScope *scope) {
    bool same = true;
    for (const Anchor &anchor : plan.anchors) {
        if (__builtin_expect(anchor_value(scope, anchor.opcode, anchor.index) != anchor.expected, 0)) {
            same = false;
            note_change(plan, anchor.at);
        }
    }
    return same;
}

HOT bool has_fetched(FastPlan &plan, PyObject *const *values) {
    bool same = true;
    for (const Fetched &one : plan.fetched) {
        if (__builtin_expect(values[one.at] != one.expected, 0)) {
            same = false;
            note_change(plan, one.at);
        }
    }
    return same;
}

HOT bool unchanged(const FastPlan &plan) {
    for (const Stamp *s = plan.stamps.data(), *end = s + plan.stamps.size(); s < end; s++) {
        if (__builtin_expect(*s->at != s->expected, 0)) {
            return false;
        }
    }
    return true;
}

}  // namespace

void plan_drop(Program *program) {
    if (program->plan != nullptr) {
        drop(*program->plan);
    }
}

void plan_make(Program *program, const GuardScope *scope) {
    if (program->plan == nullptr) {
        program->plan = new FastPlan;
    }
    FastPlan &plan = *program->plan;
    if (plan.wait > 0) {
        plan.wait--;
        return;
    }
    // What the old plan held goes when the run is over: finalisers may change what registers borrow.
    program->owned->insert(program->owned->end(), plan.held.begin(), plan.held.end());
    plan.held.clear();
    drop(plan);
    plan.anchors.clear();
    plan.fetched.clear();
    plan.stamps.clear();
    plan.early.clear();
    plan.late.clear();
    plan.values = *program->values;
    plan.changes.resize(plan.values.size());
    plan.held_for = 0;
    Maker(program, scope).make();
    plan.valid = true;
}

void plan_free(Program *program) {
    if (program->plan != nullptr) {
        drop(*program->plan);
    }
    delete program->plan;
    program->plan = nullptr;
}

HOT Answer plan_run(Program *program, Run &run, int *failed) {
    FastPlan *plan = program->plan;
    if (plan == nullptr || !plan->valid) {
        return PLAN_UNKNOWN;
    }
    bool same = has_anchors(*plan, run.scope);
    run.values = plan->values.data();
    int outcome = same ? run_all(program, run, plan->early) : HOLDS;
    if (same && outcome == HOLDS) {
        same = has_fetched(*plan, run.values) && unchanged(*plan);
        outcome = same ? run_all(program, run, plan->late) : HOLDS;
    }
    if (!same) {
        plan->valid = false;  // what it holds goes when the next one is made, or with the program
        plan->patience = plan->patience < 1024 ? 2 * plan->patience : plan->patience;
        plan->wait = plan->patience;
        return PLAN_UNKNOWN;
    }
    if (outcome == HOLDS) {
        plan->patience = 1;
        plan->held_for += plan->held_for < SOON;
        return PLAN_HOLDS;
    }
    *failed = outcome;
    return outcome < 0 ? PLAN_UNKNOWN : PLAN_FAILS;
}

PyObject *plan_summary(Program *program) {
    const FastPlan *plan = program->plan;
    if (plan == nullptr || !plan->valid) {
        Py_RETURN_NONE;
    }
    PyObject *rest = PyList_New(0);
    for (auto *list : {&plan->early, &plan->late}) {
        for (const Instruction *in : *list) {
            PyObject *number = PyLong_FromSsize_t(in - program->instructions->data());
            if (number == nullptr || PyList_Append(rest, number) < 0) {
                Py_XDECREF(number);
                Py_DECREF(rest);
                return nullptr;
            }
            Py_DECREF(number);
        }
    }
    return Py_BuildValue("nnN", (Py_ssize_t)plan->anchors.size(),
                         (Py_ssize_t)plan->stamps.size(), rest);
}
