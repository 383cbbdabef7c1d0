// Operators that launch Triton kernels of the program: see dynamo/graph_operators/later_launches.py.
//
// In: the arguments of such an operator, on the dispatcher's stack. What a launch depends on is put
// into a key: the device, dtypes of tensors and whether they lie at multiples of 16 bytes, whether
// numbers are 1, multiples of 16 and of 32 bits, or all of them. Where a launch with this key is known,
// and nothing has changed that is watched, the driver gets the kernel; otherwise an operator that goes
// through Triton is called, and that may tell of the launch (`keep_launch`).
#include "tensor_guards.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using LaunchKernel = int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             void *, void **, void **);
using Key = std::string;

constexpr uintptr_t kUnaligned = 15;
constexpr int64_t kMultiple = 16;
constexpr size_t kMostLaunches = 1024;  // chosen, not measured
constexpr size_t kMostParameters = 256;
constexpr int64_t kGridSizes = 3;

struct Owned {  // a reference; the GIL is held where one ends
    PyObject *object = nullptr;
    explicit Owned(PyObject *given) : object(given) {}
    Owned(Owned &&other) noexcept : object(std::exchange(other.object, nullptr)) {}
    Owned(const Owned &) = delete;
    ~Owned() { Py_XDECREF(object); }
};

struct WithGil {
    PyGILState_STATE state = PyGILState_Ensure();
    ~WithGil() { PyGILState_Release(state); }
};

// Where the bits of a parameter come from: an argument, or `bits` (argument < 0).
struct Parameter {
    int64_t argument;
    bool is_float32;
    uint64_t bits;
};

// A dict's entry that has to be the same object, or missing still (null).
struct Watch {
    Owned dict, name, value;
};

struct Launch {
    Owned holds;  // the compiled kernel
    LaunchKernel start = nullptr;
    void *function = nullptr;
    unsigned threads = 0, shared = 0;
    int64_t grid = 0;  // its number among the operator's
    std::vector<Parameter> parameters;
    std::vector<Watch> watches;
    std::vector<Owned> empty_lists;
};

struct Launches {
    std::string kinds;        // of the arguments: t(ensor), i(nt), f(loat), b(ool)
    std::vector<bool> exact;  // arguments whose value is part of the key
    bool with_sizes = false;  // sizes and strides of tensors are, too
    c10::DeviceType device = c10::DeviceType::CUDA;
    Owned current_device, current_stream;
    std::unordered_map<Key, std::shared_ptr<Launch>> known;
    Launches(PyObject *device, PyObject *stream) : current_device(device), current_stream(stream) {}
};

struct Pending {
    Launches *launches;
    const Key *key;
};
thread_local Pending pending{nullptr, nullptr};

struct IsPending {  // while an operator goes through Triton
    Pending before = pending;
    IsPending(Launches *launches, const Key *key) { pending = {launches, key}; }
    ~IsPending() { pending = before; }
};

void put(Key &key, int64_t number) { key.append(reinterpret_cast<const char *>(&number), sizeof number); }

bool put_tensor(Key &key, const Launches &of, const c10::IValue &value, uint64_t &bits) {
    if (!value.isTensor() || !value.toTensor().defined()) {
        return false;
    }
    const at::Tensor &tensor = value.toTensor();
    if (tensor.device().type() != of.device || tensor.layout() != c10::kStrided) {
        return false;
    }
    auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    bits = address;
    put(key, static_cast<int64_t>(tensor.scalar_type()) << 1 | ((address & kUnaligned) == 0));
    if (of.with_sizes) {
        put(key, tensor.dim());
        for (int64_t axis = 0; axis < tensor.dim(); axis++) {
            put(key, tensor.size(axis));
            put(key, tensor.stride(axis));
        }
    }
    return true;
}

void put_number(Key &key, int64_t number, bool exact) {
    if (exact) {
        put(key, number);
        return;
    }
    bool small = number >= std::numeric_limits<int32_t>::min() && number <= std::numeric_limits<int32_t>::max();
    key.push_back(static_cast<char>((number == 1) | (number % kMultiple == 0) << 1 | small << 2));
}

// The key of a call, and the bits of its arguments; false for a call that only Triton knows.
bool read_call(const Launches &of, const c10::IValue *given, Key &key, std::vector<uint64_t> &bits) {
    for (size_t i = 0; i < of.kinds.size(); i++) {
        const c10::IValue &value = given[i];
        switch (of.kinds[i]) {
            case 't':
                if (!put_tensor(key, of, value, bits[i])) {
                    return false;
                }
                break;
            case 'i':
                if (!value.isInt()) {
                    return false;
                }
                bits[i] = static_cast<uint64_t>(value.toInt());
                put_number(key, value.toInt(), of.exact[i]);
                break;
            case 'b':
                if (!value.isBool()) {
                    return false;
                }
                bits[i] = value.toBool();
                if (of.exact[i]) {
                    put(key, value.toBool());
                }
                break;
            default: {
                if (!value.isDouble()) {
                    return false;
                }
                double number = value.toDouble();
                std::memcpy(&bits[i], &number, sizeof number);
                if (of.exact[i]) {
                    put(key, static_cast<int64_t>(bits[i]));
                }
            }
        }
    }
    return true;
}

// The sizes of one of the grids; false where Triton has to look at them.
bool read_grid(const c10::IValue &sizes, int64_t number, unsigned *grid) {
    std::vector<int64_t> all;
    if (sizes.isIntList()) {
        all = sizes.toIntVector();
    } else if (sizes.isList()) {
        for (const c10::IValue &size : sizes.toListRef()) {
            if (!size.isInt()) {
                return false;
            }
            all.push_back(size.toInt());
        }
    } else {
        return false;
    }
    if (static_cast<int64_t>(all.size()) < (number + 1) * kGridSizes) {
        return false;
    }
    int64_t programs = 1;
    for (int64_t axis = 0; axis < kGridSizes; axis++) {
        int64_t size = all[number * kGridSizes + axis];
        if (size <= 0 || size > std::numeric_limits<int32_t>::max() / programs) {
            return false;
        }
        programs *= size;
        grid[axis] = static_cast<unsigned>(size);
    }
    return true;
}

bool nothing_changed(const Launch &launch) {
    for (const Watch &watch : launch.watches) {
        PyObject *now = PyDict_GetItemWithError(watch.dict.object, watch.name.object);
        if (now != watch.value.object || (now == nullptr && PyErr_Occurred())) {
            PyErr_Clear();  // Triton's way meets it again
            return false;
        }
    }
    for (const Owned &list : launch.empty_lists) {
        if (PyList_GET_SIZE(list.object) != 0) {
            return false;
        }
    }
    return true;
}

// The number that a function of Python gives; false where it raises, as Triton's way will again.
bool ask(PyObject *function, PyObject *argument, int64_t &number) {
    PyObject *found = argument != nullptr ? PyObject_CallOneArg(function, argument)
                                          : PyObject_CallNoArgs(function);
    number = found != nullptr ? static_cast<int64_t>(PyLong_AsUnsignedLongLongMask(found)) : 0;
    Py_XDECREF(found);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

bool start(const Launch &launch, const c10::IValue &sizes, std::vector<uint64_t> &bits, int64_t stream) {
    unsigned grid[kGridSizes];
    if (!read_grid(sizes, launch.grid, grid)) {
        return false;
    }
    uint64_t values[kMostParameters];
    void *parameters[kMostParameters + 2];
    size_t count = 0;
    for (const Parameter &parameter : launch.parameters) {
        values[count] = parameter.argument < 0 ? parameter.bits : bits[parameter.argument];
        if (parameter.is_float32) {
            double wide;
            std::memcpy(&wide, &values[count], sizeof wide);
            auto narrow = static_cast<float>(wide);
            std::memcpy(&values[count], &narrow, sizeof narrow);
        }
        parameters[count] = &values[count];
        count++;
    }
    void *nothing = nullptr;  // two pointers to scratch memory, which Triton appends
    parameters[count] = parameters[count + 1] = &nothing;
    PyThreadState *state = PyEval_SaveThread();  // the driver may wait for a place in its queue
    int code = launch.start(launch.function, grid[0], grid[1], grid[2], launch.threads, 1, 1, launch.shared,
                            reinterpret_cast<void *>(stream), parameters, nullptr);
    PyEval_RestoreThread(state);
    return code == 0;  // else, as without a context in this thread, Triton launches it, or says why not
}

class Operator final : public c10::OperatorKernel {
  public:
    Operator(Launches *launches, c10::OperatorHandle slow) : launches_(launches), slow_(std::move(slow)) {}

    void operator()(const c10::OperatorHandle &, c10::DispatchKeySet, torch::jit::Stack *stack) {
        Key key;
        bool is_known = false;
        const c10::IValue *given = stack->data() + stack->size() - launches_->kinds.size() - 1;
        std::vector<uint64_t> bits(launches_->kinds.size());
        if (read_call(*launches_, given, key, bits)) {
            WithGil gil;
            int64_t device = 0, stream = 0;
            if (ask(launches_->current_device.object, nullptr, device)) {
                put(key, device);
                is_known = true;
                auto found = launches_->known.find(key);
                if (found != launches_->known.end()) {
                    std::shared_ptr<Launch> launch = found->second;
                    Owned index(PyLong_FromLongLong(device));
                    if (nothing_changed(*launch) && ask(launches_->current_stream.object, index.object, stream) &&
                        start(*launch, given[launches_->kinds.size()], bits, stream)) {
                        torch::jit::drop(*stack, launches_->kinds.size() + 1);
                        return;
                    }
                }
            }
        }
        IsPending now(is_known ? launches_ : nullptr, &key);
        slow_.callBoxed(stack);
    }

  private:
    Launches *launches_;  // for good, as the operator
    c10::OperatorHandle slow_;
};

const char *const kCapsule = "dynamo.kernel_launches";

PyObject *launch_operator(PyObject *, PyObject *args) {
    const char *library = nullptr, *name = nullptr, *slow = nullptr, *kinds = nullptr;
    PyObject *exact = nullptr, *device = nullptr, *stream = nullptr;
    int with_sizes = 0, on_cuda = 0;
    if (!PyArg_ParseTuple(args, "ssssO!ppOO", &library, &name, &slow, &kinds, &PyTuple_Type, &exact,
                          &with_sizes, &on_cuda, &device, &stream)) {
        return nullptr;
    }
    auto launches = std::make_unique<Launches>(Py_NewRef(device), Py_NewRef(stream));
    launches->kinds = kinds;
    launches->with_sizes = with_sizes != 0;
    launches->device = on_cuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(exact); i++) {
        launches->exact.push_back(PyTuple_GET_ITEM(exact, i) == Py_True);
    }
    if (launches->exact.size() != launches->kinds.size()) {
        return PyErr_Format(PyExc_ValueError, "a flag for each kind is needed");
    }
    try {
        auto handle = c10::Dispatcher::singleton().findSchemaOrThrow((std::string(library) + "::" + slow).c_str(), "");
        Launches *given = launches.release();  // as long as the process
        auto *mine = new torch::Library(torch::Library::FRAGMENT, library, std::nullopt, __FILE__, __LINE__);
        mine->impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                         torch::CppFunction::makeFromBoxedFunctor(
                                             std::make_unique<Operator>(given, std::move(handle)))));
        return PyCapsule_New(given, kCapsule, nullptr);
    } catch (const std::exception &error) {
        return PyErr_Format(PyExc_RuntimeError, "%s", error.what());
    }
}

bool read_parameters(PyObject *rows, size_t arguments, Launch &launch) {
    if (PyTuple_GET_SIZE(rows) > static_cast<Py_ssize_t>(kMostParameters)) {
        PyErr_SetString(PyExc_ValueError, "too many parameters");
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        long long argument = 0, bits = 0;
        int is_float32 = 0;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "LpL", &argument, &is_float32, &bits)) {
            return false;
        }
        if (argument >= static_cast<long long>(arguments)) {
            PyErr_SetString(PyExc_ValueError, "no such argument");
            return false;
        }
        launch.parameters.push_back({argument, is_float32 != 0, static_cast<uint64_t>(bits)});
    }
    return true;
}

bool read_watches(PyObject *rows, PyObject *lists, Launch &launch) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        PyObject *dict = nullptr, *name = nullptr;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "O!O", &PyDict_Type, &dict, &name)) {
            return false;
        }
        PyObject *now = PyDict_GetItemWithError(dict, name);
        if (now == nullptr && PyErr_Occurred()) {
            return false;
        }
        launch.watches.push_back({Owned(Py_NewRef(dict)), Owned(Py_NewRef(name)), Owned(Py_XNewRef(now))});
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lists); i++) {
        PyObject *list = PyTuple_GET_ITEM(lists, i);
        if (!PyList_Check(list)) {
            PyErr_SetString(PyExc_TypeError, "a list is needed");
            return false;
        }
        launch.empty_lists.emplace_back(Py_NewRef(list));
    }
    return true;
}

PyObject *keep_launch(PyObject *, PyObject *args) {
    PyObject *capsule = nullptr, *holds = nullptr, *rows = nullptr, *watches = nullptr, *lists = nullptr;
    unsigned long long start = 0, function = 0;
    auto launch = std::make_shared<Launch>(Launch{Owned(nullptr)});
    long long grid = 0;
    if (!PyArg_ParseTuple(args, "OOKKIILO!O!O!", &capsule, &holds, &start, &function, &launch->threads,
                          &launch->shared, &grid, &PyTuple_Type, &rows, &PyTuple_Type, &watches, &PyTuple_Type,
                          &lists)) {
        return nullptr;
    }
    auto *launches = static_cast<Launches *>(PyCapsule_GetPointer(capsule, kCapsule));
    if (launches == nullptr) {
        return nullptr;
    }
    launch->holds.object = Py_NewRef(holds);
    launch->start = reinterpret_cast<LaunchKernel>(start);
    launch->function = reinterpret_cast<void *>(function);
    launch->grid = grid;
    if (!read_parameters(rows, launches->kinds.size(), *launch) || !read_watches(watches, lists, *launch)) {
        return nullptr;
    }
    if (pending.launches != launches) {
        Py_RETURN_FALSE;
    }
    if (launches->known.size() >= kMostLaunches) {
        launches->known.clear();
    }
    launches->known[*pending.key] = std::move(launch);
    Py_RETURN_TRUE;
}

PyMethodDef launch_functions[] = {
    {"launch_operator", launch_operator, METH_VARARGS,
     "launch_operator(library, name, slow, kinds, exact, with_sizes, on_cuda, current_device, current_stream):\n"
     "implements an operator; `slow` is the one that goes through Triton."},
    {"keep_launch", keep_launch, METH_VARARGS,
     "keep_launch(launches, holds, start, function, threads, shared, grid, parameters, watched, empty):\n"
     "how later calls like the one that goes through Triton now are launched; whether there is such a one."},
    {nullptr}};

}  // namespace

extern "C" int launch_add_functions(PyObject *module) { return PyModule_AddFunctions(module, launch_functions); }
