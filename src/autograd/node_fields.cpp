#include "autograd/node_fields.h"

#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <bit>
#include <complex>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "autograd/root_node.h"

namespace magneto::autograd {

namespace {

using torch::autograd::CopySlices;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

template <typename T>
concept Whole = std::is_integral_v<T> || std::is_enum_v<T>;

void visit(FieldVisitor& to, SavedVariable& saved) { to.tensor(saved); }
void visit(FieldVisitor& to, Whole auto number) { to.number(static_cast<int64_t>(number)); }
void visit(FieldVisitor& to, double number) { to.number(std::bit_cast<int64_t>(number)); }
void visit(FieldVisitor& to, c10::SymInt& number) { to.symint(number, /*in_list=*/false); }

void visit(FieldVisitor& to, const at::Scalar& scalar) {
  visit(to, scalar.type());
  const auto number =
      scalar.isFloatingPoint() || scalar.isComplex() ? scalar.toComplexDouble() : c10::complex<double>(0, 0);
  visit(to, number.real());
  visit(to, number.imag());
  to.number(scalar.isIntegral(/*includeBool=*/true) ? scalar.toLong() : 0);
}

void visit(FieldVisitor& to, const std::string& text) {
  visit(to, text.size());
  for (const char letter : text) visit(to, letter);
}

void visit(FieldVisitor& to, const at::TensorOptions& options) {
  visit(to, c10::typeMetaToScalarType(options.dtype()));
  visit(to, options.layout());
  visit(to, options.device().type());
  visit(to, options.device().index());
  visit(to, options.requires_grad());
  visit(to, options.pinned_memory());
  const auto format = options.memory_format_opt();
  to.number(format ? static_cast<int64_t>(*format) : -1);
}

void visit(FieldVisitor& to, std::vector<c10::SymInt>& sizes) {
  visit(to, sizes.size());
  for (c10::SymInt& size : sizes) to.symint(size, /*in_list=*/true);
}

template <typename T>
void visit(FieldVisitor& to, std::vector<T>& items);
template <typename T>
void visit(FieldVisitor& to, std::optional<T>& item);

template <typename T>
void visit(FieldVisitor& to, c10::OptionalArray<T>& items) {
  visit(to, items.list);
}

void visit(FieldVisitor& to, torch::autograd::TypeAndSize& of) {
  visit(to, of.sym_sizes);
  visit(to, of.options);
}

/// Its plain strides are read unchecked where no size is a symbol.
void visit(FieldVisitor& to, at::TensorGeometry& of) {
  visit(to, of.mutable_sizes());
  const bool symbolic = !c10::asIntArrayRefSlowOpt(of.sym_sizes()).has_value();
  const auto fixed = [&](const c10::SymInt& number) {
    return symbolic ? number : c10::SymInt(number.guard_int(__FILE__, __LINE__));
  };
  std::vector<c10::SymInt> strides = of.sym_strides().vec();
  c10::SymInt offset = of.sym_storage_offset();
  visit(to, strides);
  visit(to, offset);
  std::ranges::transform(strides, of.mutable_strides().begin(), fixed);
  of.mutable_storage_offset() = fixed(offset);
  of.recompute();
}

template <typename T>
void visit(FieldVisitor& to, std::vector<T>& items) {
  visit(to, items.size());
  for (T& item : items) visit(to, item);
}
void visit(FieldVisitor& to, std::vector<bool>& items) {
  visit(to, items.size());
  for (const bool item : items) visit(to, item);
}

template <typename T>
void visit(FieldVisitor& to, std::optional<T>& item) {
  visit(to, item.has_value());
  if (item) visit(to, *item);
}

using VisitNode = void (*)(Node&, FieldVisitor&);

std::unordered_map<std::type_index, VisitNode> make_table() {
  std::unordered_map<std::type_index, VisitNode> table;
#define FIELD(name) visit(to, of.name);
#define NODE(type, fields)                                                                   \
  table.emplace(typeid(torch::autograd::generated::type), [](Node& node, FieldVisitor& to) { \
    [[maybe_unused]] auto& of = static_cast<torch::autograd::generated::type&>(node);        \
    fields                                                                                   \
  });
#include "node_fields.inc"
#undef NODE
#undef FIELD
  table.emplace(typeid(torch::autograd::CopyBackwards), [](Node& node, FieldVisitor& to) {
    visit(to, static_cast<torch::autograd::CopyBackwards&>(node).src_options);
  });
  table.emplace(typeid(CopySlices), [](Node& node, FieldVisitor& to) {
    auto& of = static_cast<CopySlices&>(node);
    visit(to, of.base);
    visit(to, of.view);
    to.number(static_cast<int64_t>(typeid(*of.fn).hash_code()));
    visit(to, of.fn->next_edge(0).is_valid());
    visit_fields(*of.fn, to);
  });
  return table;
}

const std::unordered_map<std::type_index, VisitNode>& table() {
  static const auto& made = *new std::unordered_map(make_table());
  return made;
}

}  // namespace

bool has_known_fields(const Node& node) {
  const auto* write = dynamic_cast<const CopySlices*>(&node);
  if (write && (!write->fn || write->view_fn || !has_known_fields(*write->fn))) return false;
  return table().contains(typeid(node)) || typeid(node) == typeid(RootNode);
}

void visit_fields(Node& node, FieldVisitor& visitor) {
  if (typeid(node) != typeid(RootNode)) table().at(typeid(node))(node, visitor);  // which has saved nothing
}

}  // namespace magneto::autograd
