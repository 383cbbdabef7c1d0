// Torch's global state as a few words: what operations do beside what their arguments say.
//
// In: a tuple that `global_state()` made earlier. Out: whether it still holds. The thread's part is read
// from its thread-local objects; of the process's part (`at::Context`) the raw bytes are compared with
// those at which the words last held, and the words only when the bytes differ. What lies in
// libtorch_cpu is found by its symbol, so that only c10 is linked.
#include "tensor_guards.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <memory>
#include <tuple>

namespace {

// Access is not checked in an explicit instantiation, which may so name private members.
#define REVEAL(name, ...)                                               \
    template <auto... fields>                                           \
    struct Reveal_##name {                                              \
        friend auto name() { return std::make_tuple(fields...); }       \
    };                                                                  \
    auto name();                                                        \
    template struct Reveal_##name<__VA_ARGS__>;

using at::Context;
REVEAL(bounds, &Context::enabled_cudnn, &Context::fp32_precision)
REVEAL(deterministic_fields, &Context::_deterministic_algorithms,
       &Context::_deterministic_algorithms_warn_only,
       &Context::_deterministic_fill_uninitialized_memory, &Context::deterministic_mkldnn)
REVEAL(onednn_fields, &Context::enabled_mkldnn, &Context::enabled_nnpack,
       &Context::allow_tf32_onednn)
REVEAL(cudnn_fields, &Context::enabled_cudnn, &Context::deterministic_cudnn,
       &Context::benchmark_cudnn, &Context::allow_tf32_cudnn, &Context::benchmark_limit_cudnn)
REVEAL(attention_fields, &Context::enabled_flashSDP, &Context::enabled_fa3SDP,
       &Context::enabled_mem_efficientSDP, &Context::enabled_mathSDP, &Context::enabled_cudnnSDP,
       &Context::enabled_overrideable, &Context::allow_fp16_bf16_reduction_mathSDP)
REVEAL(attention_order, &Context::sdp_priority_order)
REVEAL(matmul_fields, &Context::float32_matmul_precision)
REVEAL(reduced_fields, &Context::allow_fp16_reduction_cpu,
       &Context::allow_fp16_accumulation_cublas, &Context::allow_fp16_reduction_cublas,
       &Context::allow_bf16_reduction_cublas)
REVEAL(dispatch_modes, &c10::impl::TorchDispatchModeTLS::stack_,
       &c10::impl::TorchDispatchModeTLS::infra_modes_)
REVEAL(function_fields, &at::impl::PythonTorchFunctionTLS::stack_,
       &at::impl::PythonTorchFunctionTLS::disabled_state_)
REVEAL(linear_fields, &Context::linalg_preferred_backend, &Context::blas_preferred_backend)

// Fields side by side in one number.
template <typename Fields>
int64_t pack(const Context &context, const Fields &fields) {
    int64_t result = 0;
    auto add = [&](auto value) {
        constexpr int bits = std::is_same_v<decltype(value), bool>  ? 1
                             : std::is_enum_v<decltype(value)> ? 4 : 16;
        result = result << bits | ((int64_t)value & ((1 << bits) - 1));
    };
    std::apply([&](auto... field) { (add(context.*field), ...); }, fields);
    return result;
}

template <typename F>
F find_symbol(const char *name) {
    static void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? (F)dlsym(library, name) : nullptr;
}

enum Word {
    GRAD, INFERENCE, FORWARD_GRAD, INCLUDED, EXCLUDED, DTYPE, DISPATCH_MODES, FUNCTION_MODES,
    FUNCTIONS_OFF, DUAL_LEVEL, SAVED_HOOKS, CAST_CPU, CAST_CUDA, CAST_OTHER, CAST_CACHE, THREADS,
    THREAD_WORDS,  // those above belong to the thread, those below to the process
    DETERMINISTIC = THREAD_WORDS, ONEDNN, CUDNN, ATTENTION, PRECISION, REDUCED, LINEAR, STATE_WORDS
};
const char *const STATE_NAMES[STATE_WORDS] = {
    "grad mode", "inference mode", "forward grad mode", "dispatch keys included",
    "dispatch keys excluded", "default dtype", "dispatch modes", "function modes",
    "__torch_function__ switch", "forward mode of autograd", "hooks on saved tensors",
    "autocast on CPU", "autocast on CUDA",
    "autocast on other devices", "autocast cache", "threads", "deterministic algorithms",
    "oneDNN and NNPACK", "cuDNN", "attention kernels", "float32 precision (TF32)",
    "reduced precision of products", "linear algebra backend"};
using State = std::array<int64_t, STATE_WORDS>;

struct Torch {
    bool (*cast_enabled)(c10::DeviceType) = find_symbol<bool (*)(c10::DeviceType)>(
        "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE");
    c10::ScalarType (*cast_dtype)(c10::DeviceType) =
        find_symbol<c10::ScalarType (*)(c10::DeviceType)>(
            "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE");
    bool (*cast_cache)() =
        find_symbol<bool (*)()>("_ZN2at8autocast25is_autocast_cache_enabledEv");
    const at::impl::PythonTorchFunctionTLS &(*functions)() =
        find_symbol<const at::impl::PythonTorchFunctionTLS &(*)()>(
            "_ZN2at4impl22PythonTorchFunctionTLS9get_stateEv");
    const at::impl::SavedTensorDefaultHooksTLS &(*saved_hooks)() =
        find_symbol<const at::impl::SavedTensorDefaultHooksTLS &(*)()>(
            "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv");
    std::shared_ptr<void> (*dual_level)(uint64_t) =
        find_symbol<std::shared_ptr<void> (*)(uint64_t)>(
            "_ZN5torch8autograd14ForwardADLevel14try_get_by_idxEm");
    int (*threads)() = find_symbol<int (*)()>("_ZN2at15get_num_threadsEv");
    const Context *context = nullptr;
    Torch() {
        auto get = find_symbol<const Context *(*)()>("_ZN2at13globalContextEv");
        context = get ? get() : nullptr;
    }
    static const Torch &get() {
        static const Torch torch;
        return torch;
    }
};

// Where this thread keeps its part: asked for once in a thread, for each call into torch's libraries
// touches memory that is cold.
struct Places {
    const c10::AutogradState *autograd;
    const c10::impl::PODLocalDispatchKeySet *keys;
    const c10::impl::TorchDispatchModeTLS *dispatch;
    const at::impl::PythonTorchFunctionTLS *functions;      // null where it is not found
    const at::impl::SavedTensorDefaultHooksTLS *saved;  // null where it is not found

    static const Places &get() {
        static thread_local __attribute__((tls_model("initial-exec"))) Places places{};
        if (__builtin_expect(places.autograd == nullptr, 0)) {
            const Torch &torch = Torch::get();
            places.keys = &c10::impl::raw_local_dispatch_key_set;
            places.dispatch = &c10::impl::TorchDispatchModeTLS::get_state();
            places.functions = torch.functions ? &torch.functions() : nullptr;
            places.saved = torch.saved_hooks ? &torch.saved_hooks() : nullptr;
            places.autograd = &c10::AutogradState::get_tls_state();
        }
        return places;
    }
};

// The settings of `at::Context` as bytes: its flags, and the values of its table of precisions.
struct Settings {
    static constexpr size_t FLAGS = 192, PRECISIONS = 16;
    std::array<char, FLAGS> flags{};
    std::array<int32_t, PRECISIONS> precisions{};

    // Where they lie: [first, last), and the values in the table, which never move.
    struct Fields {
        const char *first = nullptr;
        size_t size = 0;
        std::array<const int32_t *, PRECISIONS> values{};
        size_t count = 0;
        bool known = false;

        Fields() {
            const Context *context = Torch::get().context;
            if (context == nullptr) {
                return;
            }
            const auto &table = context->*std::get<1>(bounds());
            first = (const char *)&(context->*std::get<0>(bounds()));
            size = (size_t)((const char *)&table - first);
            known = size <= FLAGS && table.size() <= PRECISIONS;
            for (const auto &row : table) {
                static_assert(sizeof row.second == 4);
                if (known) {
                    values[count++] = (const int32_t *)&row.second;
                }
            }
        }
    };
    static const Fields &fields() {
        static const Fields found;
        return found;
    }
    void read() {
        const Fields &at = fields();
        if (at.known) {
            std::memcpy(flags.data(), at.first, at.size);
            for (size_t i = 0; i < at.count; i++) {
                precisions[i] = *at.values[i];
            }
        }
    }
    bool unchanged() const {
        const Fields &at = fields();
        if (!at.known || std::memcmp(flags.data(), at.first, at.size) != 0) {
            return false;
        }
        int32_t different = 0;
        for (size_t i = 0; i < at.count; i++) {
            different |= precisions[i] ^ *at.values[i];
        }
        return different == 0;
    }
    int64_t packed_precisions() const {
        int64_t result = 0;
        for (size_t i = 0; i < fields().count; i++) {
            result = result * 5 + precisions[i];
        }
        return result;
    }
};

// The dtype counts while autocast is off, too: a program may ask for it, or enter autocast later.
int64_t autocast(const Torch &torch, c10::DeviceType device, bool may_be_on) {
    bool on = may_be_on && torch.cast_enabled(device);
    return 2 * (int64_t)torch.cast_dtype(device) + on;
}

// 0: none. 1: torch's own, which change no value (`save_on_cpu`, checkpoints). 2: the program's.
int64_t saved_tensor_hooks(const at::impl::SavedTensorDefaultHooksTLS *hooks) {
    if (hooks == nullptr || hooks->stack.empty()) {
        return 0;
    }
    const c10::SafePyObject &pack = hooks->stack.top().first;
    auto *function = (PyObject *)pack.ptr(&pack.pyinterpreter());
    PyObject *module = PyObject_GetAttrString(function, "__module__");
    const char *name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
    bool own = name != nullptr && std::strncmp(name, "torch.", 6) == 0;
    Py_XDECREF(module);
    PyErr_Clear();
    return own ? 1 : 2;
}

// What a function mode is known by: a default device by the device, others by their class (entries
// keep it alive; what the trace reads of the mode is guarded as of any object).
int64_t mode_key(PyObject *mode) {
    static PyObject *name = PyUnicode_InternFromString("device");
    static PyObject *module = PyImport_ImportModule("torch.utils._device");
    static PyObject *type = module ? PyObject_GetAttrString(module, "DeviceContext") : nullptr;
    if ((PyObject *)Py_TYPE(mode) != type) {
        return (int64_t)Py_TYPE(mode);
    }
    PyObject *device = PyObject_GetAttr(mode, name);
    int64_t key = device == nullptr ? -1 : (int64_t)PyObject_Hash(device);
    Py_XDECREF(device);
    if (key == -1) {
        PyErr_Clear();
        return (int64_t)mode;
    }
    return (int64_t)((uint64_t)key * 2 + 1);
}

int64_t dispatch_mode_count(const c10::impl::TorchDispatchModeTLS &state) {
    int64_t count = (int64_t)(state.*std::get<0>(dispatch_modes())).size();
    for (const auto &mode : state.*std::get<1>(dispatch_modes())) {
        count += mode.has_value();
    }
    return count;
}

// Function modes and the switch that turns `__torch_function__` off.
void read_functions(const at::impl::PythonTorchFunctionTLS &functions, int64_t *state) {
    const auto &modes = functions.*std::get<0>(function_fields());
    state[FUNCTION_MODES] = (int64_t)modes.size();
    for (const auto &mode : modes) {
        auto *object = mode->ptr(&mode->pyinterpreter());
        state[FUNCTION_MODES] =
            (int64_t)((uint64_t)state[FUNCTION_MODES] * 31 + (uint64_t)mode_key(object));
    }
    state[FUNCTIONS_OFF] = functions.*std::get<1>(function_fields());
}

// What the thread is in. Autocast is on where its dispatch keys are not excluded.
HOT void read_thread(int64_t *state) {
    const Torch &torch = Torch::get();
    const Places &places = Places::get();
    const c10::impl::LocalDispatchKeySet keys(*places.keys);
    state[GRAD] = places.autograd->get_grad_mode();
    state[INFERENCE] = places.autograd->get_inference_mode();
    state[FORWARD_GRAD] = places.autograd->get_fw_grad_mode();
    state[INCLUDED] = (int64_t)keys.included_.raw_repr();
    state[EXCLUDED] = (int64_t)keys.excluded_.raw_repr();
    state[DTYPE] = (int64_t)c10::get_default_dtype_as_scalartype();
    state[DISPATCH_MODES] = dispatch_mode_count(*places.dispatch);
    state[FUNCTION_MODES] = state[FUNCTIONS_OFF] = 0;
    if (places.functions != nullptr) {
        read_functions(*places.functions, state);
    }
    state[DUAL_LEVEL] = torch.dual_level && torch.dual_level(0) != nullptr;
    state[SAVED_HOOKS] = saved_tensor_hooks(places.saved);
    state[CAST_CPU] = state[CAST_CUDA] = state[CAST_OTHER] = state[CAST_CACHE] = 0;
    if (torch.cast_enabled && torch.cast_dtype) {
        bool may_be_on = !keys.excluded_.has_all(c10::autocast_dispatch_keyset);
        state[CAST_CPU] = autocast(torch, c10::kCPU, may_be_on);
        state[CAST_CUDA] = autocast(torch, c10::kCUDA, may_be_on);
        if (may_be_on) {
            for (auto device : {c10::kXPU, c10::kHPU, c10::kMPS, c10::kMTIA, c10::kPrivateUse1}) {
                state[CAST_OTHER] = state[CAST_OTHER] * 128 + autocast(torch, device, true);
            }
        }
        state[CAST_CACHE] = torch.cast_cache && torch.cast_cache();
    }
    state[THREADS] = torch.threads ? torch.threads() : 0;
}

void read_process(State &state) {
    if (Torch::get().context == nullptr) {
        return;
    }
    const Context &context = *Torch::get().context;
    Settings settings;
    settings.read();
    state[DETERMINISTIC] = pack(context, deterministic_fields());
    state[ONEDNN] = pack(context, onednn_fields());
    state[CUDNN] = pack(context, cudnn_fields());
    state[ATTENTION] = pack(context, attention_fields());
    for (auto kernel : context.*std::get<0>(attention_order())) {
        state[ATTENTION] = state[ATTENTION] * 16 + (int64_t)kernel;
    }
    state[PRECISION] = settings.packed_precisions() * 16 + pack(context, matmul_fields());
    state[REDUCED] = pack(context, reduced_fields());
    state[LINEAR] = pack(context, linear_fields());
}

struct Spec {
    State state;
    Settings settings;  // with which the process's words of `state` hold
    bool settled = false;
};

PyObject *global_state(PyObject *, PyObject *) {
    State state{};
    read_thread(state.data());
    read_process(state);
    PyObject *tuple = PyTuple_New(STATE_WORDS);
    for (size_t i = 0; tuple != nullptr && i < STATE_WORDS; i++) {
        PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(state[i]));
    }
    return tuple;
}

PyMethodDef state_functions[] = {
    {"global_state", global_state, METH_NOARGS, "Torch's global state as numbers (STATE_NAMES)."},
    {nullptr}};

}  // namespace

extern "C" {

void *global_state_new(PyObject *facts) {
    if (!PyTuple_Check(facts) || PyTuple_GET_SIZE(facts) != (Py_ssize_t)STATE_WORDS) {
        PyErr_SetString(PyExc_TypeError, "a tuple made by global_state() is needed");
        return nullptr;
    }
    auto *spec = new Spec{};
    for (size_t i = 0; i < STATE_WORDS; i++) {
        spec->state[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(facts, i));
    }
    if (PyErr_Occurred()) {
        delete spec;
        return nullptr;
    }
    return spec;
}

void global_state_free(void *spec) { delete (Spec *)spec; }

HOT int global_state_holds(void *given) {
    Spec &spec = *(Spec *)given;
    int64_t thread[THREAD_WORDS];
    read_thread(thread);
    int64_t different = 0;
    for (int i = 0; i < THREAD_WORDS; i++) {
        different |= thread[i] ^ spec.state[i];
    }
    if (different) {
        return 0;
    }
    if (spec.settled && spec.settings.unchanged()) {
        return 1;
    }
    State now = spec.state;
    read_process(now);
    if (now != spec.state) {
        return 0;
    }
    spec.settings.read();
    spec.settled = true;
    return 1;
}

int global_state_add_names(PyObject *module) {
    PyObject *names = PyTuple_New(STATE_WORDS);
    for (size_t i = 0; names != nullptr && i < STATE_WORDS; i++) {
        PyTuple_SET_ITEM(names, i, PyUnicode_FromString(STATE_NAMES[i]));
    }
    if (names == nullptr || PyModule_AddObject(module, "STATE_NAMES", names) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, state_functions);
}
}
