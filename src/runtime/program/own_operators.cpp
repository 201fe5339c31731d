// Operators of our own: what a graph has to do and ATen has no operator for. Those that need Python:
// python_operators.cpp.
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/select.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <mutex>
#include <span>

#include "ops/operator.h"
#include "runtime/plan/plan.h"
#include "shapes/relation.h"

namespace magneto::runtime {

namespace {

/// torch.Generator.manual_seed. (Optional: a schema knows no other generators.)
void seed_generator(std::optional<at::Generator> generator, int64_t seed) {
  TORCH_CHECK(generator && generator->defined(), "magneto::seed_generator: expected a generator");
  const std::scoped_lock lock(generator->mutex());
  generator->set_current_seed(static_cast<uint64_t>(seed));
}

/// torch.Generator.get_state and set_state. None: the default one.
at::Generator given_or_default(std::optional<at::Generator> generator) {
  return generator && generator->defined() ? *generator : at::globalContext().defaultGenerator(at::kCPU);
}
at::Tensor generator_state(std::optional<at::Generator> generator) {
  at::Generator from = given_or_default(std::move(generator));
  const std::scoped_lock lock(from.mutex());
  return from.get_state();
}
void set_generator_state(std::optional<at::Generator> generator, const at::Tensor& state) {
  at::Generator to = given_or_default(std::move(generator));
  const std::scoped_lock lock(to.mutex());
  to.set_state(state);
}

/// `tensor[index]` with a tensor of one integer: as in eager a view, whose place is read from the data.
at::Tensor select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  return at::select(self, dim, index.item<int64_t>());
}

/// `self.data`: the same memory, with a version counter of its own and no history.
at::Tensor data(const at::Tensor& self) { return self.variable_data(); }

/// Autograd has nothing to do.
at::Tensor data_without_history(const at::Tensor& self) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("magneto::data", "").typed<at::Tensor(const at::Tensor&)>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(self);
}

/// The same under autograd. Its derivative is that of the operator that eager calls, with the place in a comparison: so
/// it is a part of the kernels that add up the gradient, and has a derivative again.
class SelectWithGradient : public torch::autograd::Function<SelectWithGradient> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& self, int64_t dim,
                            const at::Tensor& index) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("magneto::select", "")
                               .typed<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&)>();
    context->save_for_backward({index});
    context->saved_data["dim"] = dim;
    context->saved_data["size"] = self.sym_size(dim);
    const at::AutoDispatchBelowAutograd below;
    return op.call(self, dim, index);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor& gradient = gradients.at(0);
    if (!gradient.defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const int64_t dim = context->saved_data["dim"].toInt();
    const c10::SymInt size = context->saved_data["size"].toSymInt();
    const at::Tensor index = context->get_saved_variables().at(0).to(at::kLong);
    at::Tensor here = at::arange(c10::Scalar(size), index.options()).eq(index.remainder(c10::Scalar(size)));
    for (int64_t i = dim; i < gradient.dim(); ++i) here = here.unsqueeze(-1);
    return {at::where(here, gradient.unsqueeze(dim), 0).contiguous(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor select_with_gradient(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  return SelectWithGradient::apply(self, dim, index);
}

/// `self.item()`, as an operand that is still beside tensors what a Python number is.
at::Tensor item(const at::Tensor& self) { return at::native::wrapped_scalar_tensor(self.item()); }

// NOLINTBEGIN(performance-unnecessary-value-param): kernels take sizes by value

/// A number that follows from sizes, as such an operand.
at::Tensor number(c10::SymInt value) { return at::native::wrapped_scalar_tensor(value.expect_int()); }

/// The same as a tensor like any other, to be handed on.
at::Tensor size(c10::SymInt value) { return at::scalar_tensor(value.expect_int(), at::kLong); }

/// The same of a float.
at::Tensor plain_float(const at::Scalar& value) { return at::scalar_tensor(value, at::kDouble); }

/// What the capture went on with, and only the data says. Where it does not hold, CPython runs the segment.
void check(c10::SymInt difference, int64_t kind, std::string_view question) {
  TORCH_CHECK(shapes::holds(static_cast<shapes::Relation::Kind>(kind), difference.expect_int()), kNotSo, question);
}

// NOLINTEND(performance-unnecessary-value-param)

/// What the capture has seen on its own call's data.
void assume(const at::Tensor& condition, std::string_view what) { TORCH_CHECK(condition.item<bool>(), kNotSo, what); }

/// The operator of ATen of that name, with plain numbers for sizes.
void run_with_numbers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  for (c10::IValue& arg : std::span(stack->data() + stack->size() - count, count)) {
    if (arg.isSymInt()) arg = arg.toSymInt().expect_int();
    if (!arg.isSymIntList()) continue;
    std::vector<int64_t> numbers;
    for (const c10::SymInt& size : arg.toSymIntVector()) numbers.push_back(size.expect_int());
    arg = std::move(numbers);
  }
  const c10::OperatorName& own = op.operator_name();
  const std::string name = "aten" + own.name.substr(own.name.find("::"));
  c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), own.overload_name.c_str()).callBoxed(stack);
}

c10::TypePtr with_symbols(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::IntType) return c10::SymIntType::get();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return c10::OptionalType::create(with_symbols(optional->getElementType()));
  }
  if (const auto list = type->cast<c10::ListType>()) return c10::ListType::create(with_symbols(list->getElementType()));
  return type;
}

c10::Argument with_symbols(const c10::Argument& arg) {
  std::optional<c10::AliasInfo> alias;
  if (arg.alias_info()) alias = *arg.alias_info();
  return {arg.name(),       arg.type(),      with_symbols(arg.real_type()), arg.N(), arg.default_value(),
          arg.kwarg_only(), std::move(alias)};
}

/// An operator of ours whose schema says SymInt where that of ATen's of the same name says int. (Not made as text:
/// streams make locales, and in C++ programs that are linked to a static libstdc++ there is none yet while libraries
/// are loaded.)
void define_sized(torch::Library& library, std::string_view op) {
  const std::string own(op.substr(op.find("::") + 2));
  const c10::OperatorName name = ops::parsed("aten::" + own);
  const c10::FunctionSchema& numbers =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str()).schema();
  std::vector<c10::Argument> args;
  for (const c10::Argument& arg : numbers.arguments()) args.push_back(with_symbols(arg));
  library.def(numbers.cloneWithName("magneto" + name.name.substr(name.name.find("::")), name.overload_name)
                  .cloneWithArguments(std::move(args)));
  library.impl(own.c_str(), c10::DispatchKey::CompositeExplicitAutograd,
               torch::CppFunction::makeFromBoxedFunction<&run_with_numbers>());
}

TORCH_LIBRARY(magneto, library) {
#define ROW_call_sized(op, ...) define_sized(library, op);
#include "ops/rows.def"
  library.def("item(Tensor self) -> Tensor");
  library.impl("item", c10::DispatchKey::CompositeExplicitAutograd, item);
  library.def("number(SymInt value) -> Tensor");
  library.impl("number", c10::DispatchKey::CompositeExplicitAutograd, number);
  library.def("size(SymInt value) -> Tensor");
  library.impl("size", c10::DispatchKey::CompositeExplicitAutograd, size);
  library.def("float(Scalar value) -> Tensor");
  library.impl("float", c10::DispatchKey::CompositeExplicitAutograd, plain_float);
  library.def("check(SymInt difference, int kind, str question) -> ()");
  library.impl("check", c10::DispatchKey::CompositeExplicitAutograd, check);
  library.def("seed_generator(Generator? generator, int seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("seed_generator", c10::DispatchKey::CompositeExplicitAutograd, seed_generator);
  library.def("generator_state(Generator? generator) -> Tensor", {at::Tag::nondeterministic_seeded});
  library.impl("generator_state", c10::DispatchKey::CompositeExplicitAutograd, generator_state);
  library.def("set_generator_state(Generator? generator, Tensor state) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("set_generator_state", c10::DispatchKey::CompositeExplicitAutograd, set_generator_state);
  library.def("assume(Tensor condition, str what) -> ()");
  library.impl("assume", c10::DispatchKey::CompositeExplicitAutograd, assume);
  library.def("select(Tensor(a) self, int dim, Tensor index) -> Tensor(a)");
  library.impl("select", c10::DispatchKey::CompositeExplicitAutograd, select);
  library.def("data(Tensor(a) self) -> Tensor(a)");
  library.impl("data", c10::DispatchKey::CompositeExplicitAutograd, data);
  library.impl("data", c10::DispatchKey::Autograd, data_without_history);
  library.impl("select", c10::DispatchKey::Autograd, select_with_gradient);
}

}  // namespace

}  // namespace magneto::runtime
