// Words of memory that tell whether a dict has changed.
//
// Dicts of CPython 3.11 and 3.12 have a version, which is such a word. From 3.13 on watchers hear of
// the changes of a dict: ours counts them. There the values of an instance's dict may lie in the
// instance, where setting an attribute is announced to nobody; such a dict first gets its own.
#include "dict_words.h"

#if DICTS_ARE_WATCHED
#include <deque>
#include <unordered_map>

struct WatchedDict {
    PyObject *dict;  // borrowed; null once it is dead
    uint64_t *changes;
    size_t users;
};

namespace {

constexpr int NOT_ASKED = -2;
int watcher = NOT_ASKED;  // number of our watcher; negative without one

// These outlive the interpreter, which still changes dicts while it ends.
auto &all_watched = *new std::unordered_map<PyObject *, WatchedDict *>;
auto &all_words = *new std::deque<uint64_t>;  // side by side: a plan looks at many
auto &unused_words = *new std::vector<uint64_t *>;

uint64_t *new_word() {
    if (unused_words.empty()) {
        return &all_words.emplace_back(0);
    }
    uint64_t *word = unused_words.back();
    unused_words.pop_back();
    return word;
}

int note_change(PyDict_WatchEvent event, PyObject *dict, PyObject *, PyObject *) {
    auto found = all_watched.find(dict);
    if (found == all_watched.end()) {
        return 0;
    }
    ++*found->second->changes;
    if (event == PyDict_EVENT_DEALLOCATED) {
        found->second->dict = nullptr;
        all_watched.erase(found);
    }
    return 0;
}

bool can_watch() {
    if (watcher == NOT_ASKED) {
        watcher = PyDict_AddWatcher(note_change);
        if (watcher < 0) {
            PyErr_Clear();  // all numbers are taken
        }
    }
    return watcher >= 0;
}

// Gives a dict a table of its own for its values, as taking away its last item does.
bool take_values_home(PyObject *dict) {
    if (((PyDictObject *)dict)->ma_values == nullptr) {
        return true;
    }
    if (PyDict_GET_SIZE(dict) == 0) {
        return false;
    }
    PyObject *popitem = PyObject_GetAttrString((PyObject *)&PyDict_Type, "popitem");
    PyObject *last = popitem ? PyObject_CallOneArg(popitem, dict) : nullptr;
    Py_XDECREF(popitem);
    int failed = last == nullptr ||
                 PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1)) < 0;
    Py_XDECREF(last);
    PyErr_Clear();
    return !failed && ((PyDictObject *)dict)->ma_values == nullptr;
}

}  // namespace

const uint64_t *DictWords::add(PyObject *dict) {
    if (!can_watch() || !take_values_home(dict)) {
        return nullptr;
    }
    WatchedDict *&known = all_watched[dict];
    if (known == nullptr) {
        known = new WatchedDict{dict, new_word(), 0};
        PyDict_Watch(watcher, dict);
    }
    known->users++;
    watched.push_back(known);
    return known->changes;
}

void DictWords::clear() {
    for (WatchedDict *item : watched) {
        if (--item->users == 0) {
            if (item->dict != nullptr) {
                PyDict_Unwatch(watcher, item->dict);
                all_watched.erase(item->dict);
            }
            unused_words.push_back(item->changes);
            delete item;
        }
    }
    watched.clear();
}

#else

const uint64_t *DictWords::add(PyObject *dict) {
    const uint64_t *word = dict_version_address(dict);
    return *word != 0 ? word : nullptr;
}

void DictWords::clear() {}

#endif
