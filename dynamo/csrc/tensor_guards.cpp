// Facts of tensors and torch's global state, read from c10 without Python.
//
// In: tuples that `tensor_facts` and `global_state` made earlier. Out: whether they still hold. What
// lies in libtorch_cpu is found by its symbol, so that only c10 is linked.
#include "tensor_guards.h"

#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <dlfcn.h>

#include <array>
#include <vector>

namespace {

PyTypeObject *tensor_base = nullptr;
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

template <typename F>
F find_symbol(const char *name) {
    static void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? (F)dlsym(library, name) : nullptr;
}

struct Switches {
    using Flag = bool (*)(const void *);
    bool (*autocast_enabled)(c10::DeviceType) = find_symbol<bool (*)(c10::DeviceType)>(
        "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE");
    c10::ScalarType (*autocast_dtype)(c10::DeviceType) =
        find_symbol<c10::ScalarType (*)(c10::DeviceType)>(
            "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE");
    int64_t (*function_modes)() =
        find_symbol<int64_t (*)()>("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    int (*functions_disabled)() =
        find_symbol<int (*)()>("_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv");
    int (*threads)() = find_symbol<int (*)()>("_ZN2at15get_num_threadsEv");
    void *context = nullptr;
    Flag flags[4] = {
        find_symbol<Flag>("_ZNK2at7Context23deterministicAlgorithmsEv"),
        find_symbol<Flag>("_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"),
        find_symbol<Flag>("_ZNK2at7Context34deterministicFillUninitializedMemoryEv"),
        find_symbol<Flag>("_ZNK2at7Context17userEnabledMkldnnEv"),
    };
    Switches() {
        auto get = find_symbol<void *(*)()>("_ZN2at13globalContextEv");
        context = get ? get() : nullptr;
    }
};

constexpr size_t STATE_WORDS = 12;
const char *const STATE_NAMES[STATE_WORDS] = {
    "grad mode", "inference mode", "dispatch keys included", "dispatch keys excluded",
    "default dtype", "dispatch modes", "function modes", "__torch_function__ switch",
    "autocast on CPU", "autocast on CUDA", "deterministic algorithms", "threads"};
using State = std::array<int64_t, STATE_WORDS>;

int64_t autocast_word(const Switches &s, c10::DeviceType device) {
    if (!s.autocast_enabled || !s.autocast_dtype || !s.autocast_enabled(device)) {
        return 0;
    }
    return 1 + (int64_t)s.autocast_dtype(device);
}

State current_state() {
    static const Switches s;
    auto keys = c10::impl::tls_local_dispatch_key_set();
    auto &autograd = c10::AutogradState::get_tls_state();
    int64_t flags = 0;
    for (int i = 0; s.context != nullptr && i < 4; i++) {
        flags |= (int64_t)(s.flags[i] && s.flags[i](s.context)) << i;
    }
    return {autograd.get_grad_mode(),
            autograd.get_inference_mode(),
            (int64_t)keys.included_.raw_repr(),
            (int64_t)keys.excluded_.raw_repr(),
            (int64_t)c10::get_default_dtype_as_scalartype(),
            c10::impl::TorchDispatchModeTLS::stack_len(),
            s.function_modes ? s.function_modes() : 0,
            s.functions_disabled ? s.functions_disabled() : 0,
            autocast_word(s, c10::kCPU),
            autocast_word(s, c10::kCUDA),
            flags,
            s.threads ? s.threads() : 0};
}

PyObject *global_state(PyObject *, PyObject *) {
    State state = current_state();
    PyObject *tuple = PyTuple_New(STATE_WORDS);
    for (size_t i = 0; tuple != nullptr && i < STATE_WORDS; i++) {
        PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(state[i]));
    }
    return tuple;
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

PyMethodDef functions[] = {
    {"global_state", global_state, METH_NOARGS, "Torch's global state as numbers (STATE_NAMES)."},
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

int tensor_spec_holds(const void *given, PyObject *value) {
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

void *global_state_new(PyObject *facts) {
    if (!PyTuple_Check(facts) || PyTuple_GET_SIZE(facts) != (Py_ssize_t)STATE_WORDS) {
        PyErr_SetString(PyExc_TypeError, "a tuple made by global_state() is needed");
        return nullptr;
    }
    auto *state = new State;
    for (size_t i = 0; i < STATE_WORDS; i++) {
        (*state)[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(facts, i));
    }
    if (PyErr_Occurred()) {
        delete state;
        return nullptr;
    }
    return state;
}

void global_state_free(void *spec) { delete (State *)spec; }
int global_state_holds(const void *spec) { return current_state() == *(const State *)spec; }

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

void *tensor_storage(PyObject *value) {
    c10::TensorImpl *impl = impl_of(value);
    return impl != nullptr && impl->has_storage() && impl->storage().nbytes() > 0
               ? (void *)impl->storage().unsafeGetStorageImpl()
               : nullptr;
}

int tensor_add_functions(PyObject *module) {
    PyObject *names = PyTuple_New(STATE_WORDS);
    for (size_t i = 0; names != nullptr && i < STATE_WORDS; i++) {
        PyTuple_SET_ITEM(names, i, PyUnicode_FromString(STATE_NAMES[i]));
    }
    if (names == nullptr || PyModule_AddObject(module, "STATE_NAMES", names) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
}
