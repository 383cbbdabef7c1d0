// Facts of tensors, read from c10 without Python.
//
// In: tuples that `tensor_facts` made earlier. Out: whether they still hold, and in which words of
// memory that can be seen.
#include "tensor_guards.h"

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

namespace {

PyTypeObject *tensor_base = nullptr, *tensor_class = nullptr;
PyObject *function_name = nullptr;
Py_ssize_t impl_offset = 0;  // where a Python tensor keeps its TensorImpl*

// Finds both by looking at one tensor, whose `_cdata` is the address of its TensorImpl.
bool find_layout() {
    if (impl_offset != 0) {
        return true;
    }
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *internals = torch ? PyObject_GetAttrString(torch, "_C") : nullptr;
    PyObject *base = internals ? PyObject_GetAttrString(internals, "TensorBase") : nullptr;
    PyObject *probe = base ? PyObject_CallMethod(torch, "empty", "i", 0) : nullptr;
    PyObject *address = probe ? PyObject_GetAttrString(probe, "_cdata") : nullptr;
    void *impl = address ? PyLong_AsVoidPtr(address) : nullptr;
    for (Py_ssize_t at = sizeof(PyObject); impl && at <= 48; at += sizeof(void *)) {
        if (*(void **)((char *)probe + at) == impl) {
            impl_offset = at;
            tensor_base = (PyTypeObject *)Py_NewRef(base);
            tensor_class = (PyTypeObject *)Py_NewRef(Py_TYPE(probe));
            function_name = PyUnicode_InternFromString("__torch_function__");
            break;
        }
    }
    Py_XDECREF(address);
    Py_XDECREF(probe);
    Py_XDECREF(base);
    Py_XDECREF(internals);
    Py_XDECREF(torch);
    if (impl_offset == 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "this torch keeps tensors in an unknown layout");
    }
    return impl_offset != 0;
}

c10::TensorImpl *impl_of(PyObject *value) {
    if (tensor_base == nullptr || !PyObject_TypeCheck(value, tensor_base)) {
        return nullptr;
    }
    return *(c10::TensorImpl **)((char *)value + impl_offset);
}

// The aligned word in which an address lies.
const int64_t *word_of(const void *address) {
    return (const int64_t *)((uintptr_t)address & ~(uintptr_t)7);
}

// A class may name the protected members of its base.
struct Fields : c10::TensorImpl {
    static constexpr auto keys = &Fields::key_set_;
    static constexpr auto dtype = &Fields::data_type_;
    static constexpr auto device = &Fields::device_opt_;
    static constexpr auto sizes = &Fields::sizes_and_strides_;
};
// Access is not checked in an explicit instantiation, which may so name a private member.
template <auto member>
struct Reveal {
    friend auto autograd_field() { return member; }
};
auto autograd_field();
template struct Reveal<&c10::TensorImpl::autograd_meta_>;

// Where a tensor keeps what guards read.
struct Members {
    const c10::TensorImpl *impl;
    const int64_t *keys, *dtype, *device, *dim, *autograd_slot;
    const torch::autograd::AutogradMeta *autograd;

    explicit Members(const c10::TensorImpl *of) : impl(of) {
        keys = (const int64_t *)&(of->*Fields::keys);
        dtype = word_of(&(of->*Fields::dtype));
        auto &device_member = of->*Fields::device;
        device = word_of((const char *)&device_member + sizeof device_member - 1);
        dim = (const int64_t *)&(of->*Fields::sizes);  // its first member
        autograd_slot = (const int64_t *)&(of->*autograd_field());
        autograd = (const torch::autograd::AutogradMeta *)of->autograd_meta();
    }
    bool contains(const void *first, const void *last) const {
        return (const char *)first > (const char *)impl &&
               (const char *)last < (const char *)impl + sizeof(c10::TensorImpl);
    }
};

struct TensorSpec {
    PyTypeObject *type;  // kept alive by the instruction's argument
    uint64_t keys;
    c10::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    std::vector<int64_t> sizes, strides;  // -1: any
};

bool read_numbers(PyObject *tuple, std::vector<int64_t> &out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        out.push_back(item == Py_None ? -1 : PyLong_AsLongLong(item));
    }
    return !PyErr_Occurred();
}

PyObject *tensor_facts(PyObject *, PyObject *value) {
    c10::TensorImpl *impl = find_layout() ? impl_of(value) : nullptr;
    if (impl == nullptr) {
        return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_TypeError, "not a tensor: %R", value);
    }
    return Py_BuildValue("Kiiii", (unsigned long long)impl->key_set().raw_repr(),
                         (int)impl->dtype().toScalarType(), (int)impl->device().type(),
                         (int)impl->device().index(), (int)impl->requires_grad());
}

PyMethodDef guard_functions[] = {
    {"tensor_facts", tensor_facts, METH_O,
     "(dispatch keys, dtype number, device type, device index, requires_grad) of a tensor."},
    {nullptr}};

}  // namespace

extern "C" {

void *tensor_spec_new(PyObject *facts) {
    unsigned long long keys;
    int dtype, device, index, requires_grad;
    PyObject *type, *sizes, *strides;
    if (!find_layout() ||
        !PyArg_ParseTuple(facts, "O!(Kiiii)O!O!", &PyType_Type, &type, &keys, &dtype, &device,
                          &index, &requires_grad, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) {
        return nullptr;
    }
    if (!PyType_IsSubtype((PyTypeObject *)type, tensor_base)) {
        return PyErr_Format(PyExc_TypeError, "%R is no class of tensors", type);
    }
    auto *spec = new TensorSpec{
        (PyTypeObject *)type, keys, (c10::ScalarType)dtype,
        c10::Device((c10::DeviceType)device, (c10::DeviceIndex)index), requires_grad != 0, {}, {}};
    if (!read_numbers(sizes, spec->sizes) || !read_numbers(strides, spec->strides) ||
        spec->sizes.size() != spec->strides.size()) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a tensor has as many strides as sizes");
        }
        delete spec;
        return nullptr;
    }
    return spec;
}

void tensor_spec_free(void *spec) { delete (TensorSpec *)spec; }

HOT int tensor_spec_holds(const void *given, PyObject *value) {
    const TensorSpec &spec = *(const TensorSpec *)given;
    if (Py_TYPE(value) != spec.type) {
        return 0;
    }
    auto *impl = *(c10::TensorImpl **)((char *)value + impl_offset);  // spec.type is a tensor's
    if (impl == nullptr || impl->key_set().raw_repr() != spec.keys ||
        impl->dtype().toScalarType() != spec.dtype || impl->device() != spec.device ||
        impl->requires_grad() != spec.requires_grad ||
        impl->dim() != (int64_t)spec.sizes.size()) {
        return 0;
    }
    auto sizes = impl->sizes(), strides = impl->strides();
    for (size_t i = 0; i < spec.sizes.size(); i++) {
        if ((spec.sizes[i] >= 0 && sizes[i] != spec.sizes[i]) ||
            (spec.strides[i] >= 0 && strides[i] != spec.strides[i])) {
            return 0;
        }
    }
    return 1;
}

int tensor_places(const void *given, PyObject *value, const int64_t **places, int limit) {
    const TensorSpec &spec = *(const TensorSpec *)given;
    auto *slot = (c10::TensorImpl **)((char *)value + impl_offset);
    const c10::TensorImpl *impl = *slot;
    auto sizes = impl->sizes(), strides = impl->strides();
    size_t dim = spec.sizes.size();
    const Members members(impl);
    if (sizes.size() != dim || *members.dim != (int64_t)dim || 2 * (int)dim + 8 > limit ||
        (dim > 0 && !members.contains(&sizes[0], &strides[dim - 1]))) {
        return 0;  // more dimensions than lie in the object, or sizes by some other rule
    }
    int count = 0;
    places[count++] = (const int64_t *)&((PyObject *)value)->ob_type;
    places[count++] = (const int64_t *)slot;
    places[count++] = members.keys;
    places[count++] = members.dtype;
    if (members.device != members.dtype) {
        places[count++] = members.device;
    }
    places[count++] = members.dim;
    for (size_t i = 0; i < dim; i++) {
        if (spec.sizes[i] >= 0) {
            places[count++] = &sizes[i];
        }
        if (spec.strides[i] >= 0) {
            places[count++] = &strides[i];
        }
    }
    places[count++] = members.autograd_slot;
    if (members.autograd != nullptr) {
        places[count++] = (const int64_t *)&members.autograd->grad_fn_;
        places[count++] = word_of(&members.autograd->requires_grad_);
    }
    return count;
}

int tensor_number(PyObject *value, int what, int dim, long long *out) {
    c10::TensorImpl *impl = find_layout() ? impl_of(value) : nullptr;
    if (impl == nullptr) {
        PyErr_Clear();
        return 0;
    }
    if (what <= 1 && dim >= impl->dim()) {
        return 0;
    }
    switch (what) {
        case 0: *out = impl->sizes()[(size_t)dim]; return 1;
        case 1: *out = impl->strides()[(size_t)dim]; return 1;
        case 2: *out = impl->storage_offset(); return 1;
        case 3: *out = impl->dim(); return 1;
        case 4: *out = impl->numel(); return 1;
        default: return 0;
    }
}

int tensor_asks_class(PyObject *value) {
    if (impl_of(value) == nullptr || Py_TYPE(value) == tensor_class) {
        return 0;
    }
    PyObject *own = _PyType_Lookup(Py_TYPE(value), function_name);
    return own == nullptr || !PyCFunction_Check(own);  // torch's own, which says no, is one
}

void *tensor_impl(PyObject *value) { return find_layout() ? impl_of(value) : nullptr; }

int tensor_span(PyObject *value, uintptr_t *first, uintptr_t *last) {
    auto *impl = (c10::TensorImpl *)tensor_impl(value);
    if (impl == nullptr || !impl->has_storage() || impl->numel() == 0) {
        return 0;
    }
    int64_t extent = 1;
    auto sizes = impl->sizes(), strides = impl->strides();
    for (size_t i = 0; i < sizes.size(); i++) {
        extent += (sizes[i] - 1) * strides[i];
    }
    size_t item = impl->dtype().itemsize();
    *first = (uintptr_t)impl->storage().data() + impl->storage_offset() * item;
    *last = *first + extent * item;
    return impl->storage().data() != nullptr;
}

int tensor_add_functions(PyObject *module) {
    if (global_state_add_names(module) < 0 || memory_add_functions(module) < 0 ||
        launch_add_functions(module) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, guard_functions);
}
}
