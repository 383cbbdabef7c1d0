// What a graph that writes into its inputs asks of many tensors at each call.
//
// In: tuples of tensors. Out: whether some overlap; or their version counters are moved.
#include "tensor_guards.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace {

using Span = std::pair<uintptr_t, uintptr_t>;  // first byte, byte behind the last one

bool find_span(PyObject *value, Span &span) {
    return tensor_span(value, &span.first, &span.second) != 0;
}

// `others` against spans that are sorted and apart.
bool touches(const std::vector<Span> &spans, PyObject *others) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(others); i++) {
        Span other;
        if (!find_span(PyTuple_GET_ITEM(others, i), other)) {
            continue;
        }
        auto behind = std::upper_bound(
            spans.begin(), spans.end(), other.first,
            [](uintptr_t start, const Span &span) { return start < span.second; });
        if (behind != spans.end() && behind->first < other.second) {
            return true;
        }
    }
    return false;
}

PyObject *share_memory(PyObject *, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "two tuples of tensors are needed");
        return nullptr;
    }
    std::vector<Span> spans;
    spans.reserve((size_t)PyTuple_GET_SIZE(args[0]));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
        Span span;
        if (find_span(PyTuple_GET_ITEM(args[0], i), span)) {
            spans.push_back(span);
        }
    }
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); i++) {
        if (spans[i].first < spans[i - 1].second) {
            Py_RETURN_TRUE;
        }
    }
    return PyBool_FromLong(touches(spans, args[1]));
}

PyObject *count_writes(PyObject *, PyObject *targets) {
    if (!PyTuple_Check(targets)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of tensors is needed");
        return nullptr;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(targets); i++) {
        auto *impl = (c10::TensorImpl *)tensor_impl(PyTuple_GET_ITEM(targets, i));
        if (impl == nullptr) {
            return PyErr_Occurred() ? nullptr
                                    : PyErr_Format(PyExc_TypeError, "not a tensor: %R",
                                                   PyTuple_GET_ITEM(targets, i));
        }
        if (!impl->is_inference()) {
            impl->bump_version();
        }
    }
    Py_RETURN_NONE;
}

PyMethodDef memory_functions[] = {
    {"share_memory", (PyCFunction)(void (*)(void))share_memory, METH_FASTCALL,
     "share_memory(mutated, others): whether one of the first overlaps with another tensor."},
    {"count_writes", count_writes, METH_O,
     "count_writes(targets): their version counters move, as by an operator that writes."},
    {nullptr}};

}  // namespace

extern "C" int memory_add_functions(PyObject *module) {
    return PyModule_AddFunctions(module, memory_functions);
}
