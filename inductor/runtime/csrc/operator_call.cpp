// `OperatorCall`: one call of an operator of the library, from the wrapper of a graph on a GPU.
//
// OperatorCall(name, overload, operands, results, alone) is called with the tensors that its operands
// show, and returns the tensor (alone) or a tuple with one item for each of `results`. An operand, one
// for each argument of the schema, is ("whole", tensor), ("view", tensor, size, stride, offset, dtype),
// ("views", operands or None) or ("constant", value), where `tensor` is a position among what it is
// called with. A result is (size, stride, dtype), or None where nothing wants it; a tensor of other
// strides is copied into these. The call is made below autograd, and autocast is off: both are in the
// graph already. It costs a third of the same call through Python.
#include <Python.h>
#include <structmember.h>

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "gpu.h"
#include "launcher.h"
#include "program.h"

namespace py = pybind11;

namespace inductor {
namespace {

struct Operand {
  size_t argument;
  int64_t element;  // -1: the argument itself, otherwise the index in its list
  int64_t tensor;   // position among the tensors of the call; -1: None in a list
  bool whole;
  int64_t offset;
  TensorMeta meta;
};

struct Operator {
  c10::OperatorHandle handle;
  torch::jit::Stack prototype;
  std::vector<Operand> operands;
  std::vector<ListArgument> lists;
  std::vector<std::optional<TensorMeta>> results;
  size_t tensors = 0;
  bool alone = false;
};

struct OperatorCallObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Operator* op;
};

TensorMeta read_meta(const py::tuple& row, size_t first, size_t dtype) {
  TensorMeta meta;
  meta.size = row[first].cast<std::vector<int64_t>>();
  meta.stride = row[first + 1].cast<std::vector<int64_t>>();
  REQUIRE(PyExc_TypeError, THPDtype_Check(py::object(row[dtype]).ptr()), "a dtype was expected");
  meta.dtype = reinterpret_cast<THPDtype*>(py::object(row[dtype]).ptr())->scalar_type;
  REQUIRE(PyExc_ValueError, meta.size.size() == meta.stride.size(), "size and stride differ in length");
  meta.elements = 1;
  for (int64_t size : meta.size) meta.elements *= size;
  return meta;
}

void read_tensor(Operator& op, size_t argument, int64_t element, const py::tuple& row) {
  auto kind = row[0].cast<std::string>();
  Operand operand{argument, element, row[1].cast<int64_t>(), kind == "whole", 0, {}};
  if (!operand.whole) {
    operand.meta = read_meta(row, 2, 5);
    operand.offset = row[4].cast<int64_t>();
  }
  op.tensors = std::max(op.tensors, static_cast<size_t>(operand.tensor) + 1);
  op.operands.push_back(std::move(operand));
}

void read_list(Operator& op, size_t argument, const py::tuple& rows) {
  op.lists.push_back({argument, rows.size(), list_kind(op.handle.schema().arguments()[argument])});
  for (size_t i = 0; i < rows.size(); ++i) {
    auto element = static_cast<int64_t>(i);
    if (py::object(rows[i]).is_none()) {
      op.operands.push_back({argument, element, -1, true, 0, {}});
    } else {
      read_tensor(op, argument, element, rows[i].cast<py::tuple>());
    }
  }
}

void read_operands(Operator& op, const py::tuple& operands) {
  const auto& arguments = op.handle.schema().arguments();
  REQUIRE(PyExc_ValueError, operands.size() == arguments.size(), op.handle.schema().name(),
          ": every argument of the schema must be given");
  for (size_t i = 0; i < operands.size(); ++i) {
    auto row = operands[i].cast<py::tuple>();
    auto kind = row[0].cast<std::string>();
    if (kind == "constant") {
      op.prototype.push_back(parse_constant(arguments[i], row[1]));
      continue;
    }
    op.prototype.emplace_back();
    if (kind == "views") {
      read_list(op, i, row[1].cast<py::tuple>());
    } else {
      read_tensor(op, i, -1, row);
    }
  }
}

at::Tensor tensor_of(const Operand& operand, const at::Tensor& base) {
  if (operand.whole) return base;
  auto item = static_cast<int64_t>(c10::elementSize(operand.meta.dtype));
  int64_t begin = base.storage_offset() * static_cast<int64_t>(base.element_size()) / item;
  c10::DispatchKey key = c10::computeDispatchKey(operand.meta.dtype, c10::kStrided, base.device());
  at::Tensor view = at::detail::make_tensor<at::TensorImpl>(
      c10::Storage(base.storage()), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(operand.meta.dtype));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(operand.meta.size, operand.meta.stride,
                                                    begin + operand.offset);
  return view;
}

torch::jit::Stack stack_of(const Operator& op, const at::Tensor* const* given) {
  torch::jit::Stack stack(op.prototype);
  push_lists(op.lists, stack);
  for (const Operand& operand : op.operands) {
    if (operand.tensor < 0) continue;
    at::Tensor tensor = tensor_of(operand, *given[operand.tensor]);
    set_operand(stack[operand.argument], operand.element, std::move(tensor));
  }
  return stack;
}

// As readers expect it; undefined where there are none.
at::Tensor checked_result(const Operator& op, const std::optional<TensorMeta>& meta, at::Tensor result) {
  if (!meta) return at::Tensor();
  const auto& name = op.handle.schema().name();
  REQUIRE(PyExc_RuntimeError, result.defined(), "operator ", name, " returned nothing");
  REQUIRE(PyExc_RuntimeError, result.sizes() == c10::IntArrayRef(meta->size), "operator ", name,
          " returned a tensor of size ", result.sizes(), " where compilation saw ",
          c10::IntArrayRef(meta->size));
  REQUIRE(PyExc_RuntimeError, result.scalar_type() == meta->dtype, "operator ", name,
          " returned a tensor of another dtype than compilation saw");
  if (!same_strides(*meta, result.strides())) {
    at::Tensor moved = at::empty_strided(meta->size, meta->stride, result.options());
    result = moved.copy_(result);
  }
  return result;
}

std::vector<at::Tensor> results_of(const Operator& op, torch::jit::Stack& stack) {
  std::vector<at::Tensor> found;
  if (stack.size() == 1 && stack[0].isTensorList()) {
    found = stack[0].toTensorVector();
  } else {
    for (c10::IValue& value : stack) {
      found.push_back(value.isTensor() ? std::move(value).toTensor() : at::Tensor());
    }
  }
  REQUIRE(PyExc_RuntimeError, found.size() >= op.results.size(), "operator ",
          op.handle.schema().name(), " returned ", found.size(), " values");
  for (size_t i = 0; i < op.results.size(); ++i) {
    found[i] = checked_result(op, op.results[i], std::move(found[i]));
  }
  found.resize(op.results.size());
  return found;
}

PyObject* wrap_result(at::Tensor&& result) {
  if (!result.defined()) Py_RETURN_NONE;
  PyObject* wrapped = THPVariable_Wrap(std::move(result));
  if (wrapped == nullptr) throw python_error();
  return wrapped;
}

PyObject* run_operator(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Operator& op = *reinterpret_cast<OperatorCallObject*>(self)->op;
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  REQUIRE(PyExc_TypeError, count == op.tensors && names == nullptr, op.handle.schema().name(),
          " takes ", op.tensors, " tensors here, got ", count);
  if (is_recording()) return record_operator(self, args, count);
  std::vector<const at::Tensor*> given(count);
  for (size_t i = 0; i < count; ++i) {
    REQUIRE(PyExc_TypeError, THPVariable_Check(args[i]), "argument ", i, " of ",
            op.handle.schema().name(), " is no tensor");
    given[i] = &THPVariable_Unpack(args[i]);
  }
  std::vector<at::Tensor> found = call_with_tensors(self, given.data());
  if (op.alone) return wrap_result(std::move(found[0]));
  auto results = THPObjectPtr(PyTuple_New(static_cast<Py_ssize_t>(found.size())));
  if (!results) throw python_error();
  for (size_t i = 0; i < found.size(); ++i) {
    PyTuple_SET_ITEM(results.get(), static_cast<Py_ssize_t>(i), wrap_result(std::move(found[i])));
  }
  return results.release();
}

PyObject* call_operator(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  return guarded([&] { return run_operator(self, args, flags, names); });
}

PyObject* make_operator(PyTypeObject* type, PyObject* args) {
  const char* name = nullptr;
  const char* overload = nullptr;
  PyObject *operands = nullptr, *results = nullptr;
  int alone = 0;
  if (!PyArg_ParseTuple(args, "ssO!O!p", &name, &overload, &PyTuple_Type, &operands, &PyTuple_Type,
                        &results, &alone)) {
    return nullptr;
  }
  auto op = std::make_unique<Operator>(
      Operator{c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), {}, {}, {}, {}});
  read_operands(*op, py::reinterpret_borrow<py::tuple>(operands));
  for (auto row : py::reinterpret_borrow<py::tuple>(results)) {
    op->results.emplace_back();
    if (!row.is_none()) op->results.back() = read_meta(row.cast<py::tuple>(), 0, 2);
  }
  op->alone = alone != 0;
  REQUIRE(PyExc_ValueError, !op->alone || op->results.size() == 1, name, " has one result alone");
  auto* self = reinterpret_cast<OperatorCallObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) throw python_error();
  self->vectorcall = &call_operator;
  self->op = op.release();
  return reinterpret_cast<PyObject*>(self);
}

PyObject* new_operator(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded([&] { return make_operator(type, args); });
}

void delete_operator(PyObject* self) {
  delete reinterpret_cast<OperatorCallObject*>(self)->op;
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef operator_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OperatorCallObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject operator_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

std::vector<at::Tensor> call_with_tensors(PyObject* call, const at::Tensor* const* given) {
  const Operator& op = *reinterpret_cast<OperatorCallObject*>(call)->op;
  torch::jit::Stack stack = stack_of(op, given);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  {
    pybind11::gil_scoped_release released;
    op.handle.callBoxed(&stack);
  }
  return results_of(op, stack);
}

std::vector<bool> wanted_results(PyObject* call, bool& alone) {
  const Operator& op = *reinterpret_cast<OperatorCallObject*>(call)->op;
  alone = op.alone;
  std::vector<bool> wanted;
  for (const auto& result : op.results) wanted.push_back(result.has_value());
  return wanted;
}

bool add_operator_type(PyObject* module) {
  operator_type.tp_name = "inductor.runtime._launch.OperatorCall";
  operator_type.tp_doc =
      "OperatorCall(name, overload, operands, results, alone): call it with tensors.";
  operator_type.tp_basicsize = sizeof(OperatorCallObject);
  operator_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  operator_type.tp_vectorcall_offset = offsetof(OperatorCallObject, vectorcall);
  operator_type.tp_call = PyVectorcall_Call;
  operator_type.tp_new = &new_operator;
  operator_type.tp_dealloc = &delete_operator;
  operator_type.tp_members = operator_members;
  return PyType_Ready(&operator_type) == 0 &&
         PyModule_AddObjectRef(module, "OperatorCall",
                               reinterpret_cast<PyObject*>(&operator_type)) == 0;
}

}  // namespace inductor
