// Reads the Python description of a compiled graph, a dict, into `Graph`:
//   name: text; arena_bytes: int; release_gil: bool
//   slots: (kind, position, dtype, size, stride); kind is input, packed (an input that is oneDNN's),
//     constant, arena, output or extern
//   views: (slot, offset in elements, dtype, size, stride)
//   constants: tensors
//   externs: (operator, overload, operands, results); an operand is ("view", index),
//     ("views", indices, -1 for None) or ("constant", value), one for each argument of the schema;
//     results: slot of each returned tensor, -1 if it is not wanted
//   outputs: ("view", index), ("input", index) or ("object", value)
//   steps (may be missing): tuples that begin with a name and the names of the ranges around it;
//     more items, and more keys, are for readers in Python
#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include "launcher.h"

namespace py = pybind11;

namespace inductor {
namespace {

TensorMeta parse_meta(const py::handle& dtype, const py::handle& size, const py::handle& stride) {
  TensorMeta meta;
  REQUIRE(PyExc_RuntimeError, THPDtype_Check(dtype.ptr()), "a dtype was expected");
  meta.dtype = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  meta.size = size.cast<std::vector<int64_t>>();
  meta.stride = stride.cast<std::vector<int64_t>>();
  REQUIRE(PyExc_RuntimeError, meta.size.size() == meta.stride.size(), "size and stride differ in length");
  meta.elements = 1;
  int64_t span = 1;
  for (size_t i = 0; i < meta.size.size(); ++i) {
    meta.elements *= meta.size[i];
    span += (meta.size[i] - 1) * meta.stride[i];
  }
  if (meta.elements > 0) meta.span_bytes = static_cast<size_t>(span) * c10::elementSize(meta.dtype);
  return meta;
}

SlotKind parse_kind(const std::string& kind) {
  if (kind == "input" || kind == "packed") return SlotKind::kInput;
  if (kind == "constant") return SlotKind::kConstant;
  if (kind == "arena") return SlotKind::kArena;
  if (kind == "output") return SlotKind::kOutput;
  REQUIRE(PyExc_RuntimeError, kind == "extern", "unknown kind of slot: ", kind);
  return SlotKind::kExtern;
}

void add_slot(Graph& graph, const py::tuple& row) {
  Slot slot{parse_kind(row[0].cast<std::string>()), row[1].cast<int64_t>(),
            parse_meta(row[2], row[3], row[4])};
  slot.packed = row[0].cast<std::string>() == "packed";
  auto index = static_cast<int64_t>(graph.slots.size());
  if (slot.kind == SlotKind::kInput) {
    REQUIRE(PyExc_RuntimeError, slot.position == static_cast<int64_t>(graph.input_slots.size()),
                "inputs must come in order");
    graph.input_slots.push_back(index);
  } else if (slot.kind == SlotKind::kArena) {
    REQUIRE(PyExc_RuntimeError, slot.position + slot.meta.span_bytes <= graph.arena_bytes, "outside the arena");
    graph.arena_slots.push_back(index);
  } else if (slot.kind == SlotKind::kOutput) {
    graph.output_slots.push_back(index);
  }
  graph.slots.push_back(std::move(slot));
}

void add_view(Graph& graph, const py::tuple& row) {
  View view{row[0].cast<int64_t>(), row[1].cast<int64_t>(), false,
            parse_meta(row[2], row[3], row[4])};
  const TensorMeta& whole = graph.slots.at(view.slot).meta;
  view.whole = view.offset == 0 && view.meta.dtype == whole.dtype && view.meta.size == whole.size &&
               view.meta.stride == whole.stride;
  graph.views.push_back(std::move(view));
}

}  // namespace

ListKind list_kind(const c10::Argument& argument) {
  auto list = argument.type()->cast<c10::ListType>();
  REQUIRE(PyExc_RuntimeError, list, "argument ", argument.name(), " does not take a list");
  bool optional = list->getElementType()->kind() == c10::TypeKind::OptionalType;
  return optional ? ListKind::kOptionalTensors : ListKind::kTensors;
}

// A number where the schema wants a tensor promotes like a number: it is "wrapped".
c10::IValue parse_constant(const c10::Argument& argument, const py::handle& value) {
  if (argument.type()->kind() == c10::TypeKind::TensorType && PyNumber_Check(value.ptr()) &&
      !THPVariable_Check(value.ptr())) {
    c10::Scalar value_of = torch::jit::toIValue(value, c10::NumberType::get()).toScalar();
    at::Tensor number = at::scalar_to_tensor(value_of);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  return torch::jit::toIValue(value, argument.type(), argument.N());
}

namespace {

void add_operand(ExternCall& call, size_t index, const py::tuple& row) {
  auto kind = row[0].cast<std::string>();
  const c10::Argument& argument = call.op.schema().arguments().at(index);
  if (kind == "view") {
    call.operands.push_back({index, -1, row[1].cast<int64_t>()});
    call.prototype.emplace_back();
  } else if (kind == "views") {
    auto views = row[1].cast<std::vector<int64_t>>();
    call.lists.push_back({index, views.size(), list_kind(argument)});
    for (size_t i = 0; i < views.size(); ++i) {
      call.operands.push_back({index, static_cast<int64_t>(i), views[i]});
    }
    call.prototype.emplace_back();
  } else {
    REQUIRE(PyExc_RuntimeError, kind == "constant", "unknown kind of operand: ", kind);
    call.prototype.push_back(parse_constant(argument, row[1]));
  }
}

void add_extern(Graph& graph, const py::tuple& row) {
  auto name = row[0].cast<std::string>();
  auto overload = row[1].cast<std::string>();
  ExternCall call{c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()),
                  false, true, {}, {}, {}, {}};
  call.keeps_no_operand = name.rfind("aten::", 0) == 0 || name.rfind("mkldnn::", 0) == 0;
  for (const char* own : {"aten::", "mkldnn::", "mkl::", "prims::", "quantized::", "dynamo_", "_c10d_", "c10d",
                          "fsdp::", "_dtensor::", "symm_mem::", "inductor::", "rngprims::", "_quantized::"}) {
    if (name.rfind(own, 0) == 0) call.by_fake = false;
  }
  auto operands = row[2].cast<py::list>();
  REQUIRE(PyExc_RuntimeError, operands.size() == call.op.schema().arguments().size(), name,
              ": every argument of the schema must be given");
  for (size_t i = 0; i < operands.size(); ++i) add_operand(call, i, operands[i].cast<py::tuple>());
  call.results = row[3].cast<std::vector<int64_t>>();
  graph.externs.push_back(std::move(call));
}

void add_output(Graph& graph, const py::tuple& row) {
  auto kind = row[0].cast<std::string>();
  GraphOutput output{GraphOutput::Kind::kObject, 0, nullptr};
  if (kind == "view") {
    output.kind = GraphOutput::Kind::kView;
    output.index = row[1].cast<int64_t>();
    const Slot& slot = graph.slots.at(graph.views.at(output.index).slot);
    REQUIRE(PyExc_RuntimeError, slot.kind != SlotKind::kArena, "an output can't live in the arena");
  } else if (kind == "input") {
    output.kind = GraphOutput::Kind::kInput;
    output.index = row[1].cast<int64_t>();
  } else {
    REQUIRE(PyExc_RuntimeError, kind == "object", "unknown kind of output: ", kind);
    output.object = py::object(row[1]).release().ptr();
  }
  graph.outputs.push_back(output);
}

}  // namespace

void parse_graph(PyObject* spec_object, Graph& graph) {
  auto spec = py::reinterpret_borrow<py::dict>(spec_object);
  graph.name = spec["name"].cast<std::string>();
  graph.arena_bytes = spec["arena_bytes"].cast<size_t>();
  graph.release_gil = spec["release_gil"].cast<bool>();
  for (auto row : spec["slots"]) add_slot(graph, py::reinterpret_borrow<py::tuple>(row));
  for (auto row : spec["views"]) add_view(graph, py::reinterpret_borrow<py::tuple>(row));
  for (auto row : spec["constants"]) {
    REQUIRE(PyExc_RuntimeError, THPVariable_Check(row.ptr()), "a constant must be a tensor");
    graph.constants.push_back(THPVariable_Unpack(row.ptr()));
  }
  for (auto row : spec["externs"]) add_extern(graph, py::reinterpret_borrow<py::tuple>(row));
  for (auto row : spec["outputs"]) add_output(graph, py::reinterpret_borrow<py::tuple>(row));
  if (!spec.contains("steps")) return;
  for (auto row : spec["steps"]) {
    auto facts = py::reinterpret_borrow<py::tuple>(row);
    graph.steps.push_back({graph.name + ": " + facts[0].cast<std::string>(),
                           facts[1].cast<std::vector<std::string>>()});
  }
}

}  // namespace inductor
