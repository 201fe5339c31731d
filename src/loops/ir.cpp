#include "loops/ir.h"

#include <algorithm>

namespace magneto::loops {
namespace {

struct DtypeFacts {
  std::string_view text;
  int64_t bytes;
  DtypeClass dtype_class;
};
constexpr DtypeFacts kDtypes[] = {
#define X(name, text, type, bytes, class) {text, bytes, DtypeClass::class},
#include "loops/dtypes.def"
#undef X
};

constexpr OpFacts kOps[] = {
#define X(name, text, class, operands, dtypes) {text, OpClass::class, operands, dtypes},
#include "loops/ops.def"
#undef X
};

}  // namespace

std::string_view dtype_text(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].text; }
int64_t dtype_bytes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }
DtypeClass dtype_class(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].dtype_class; }
Dtype value_dtype(Dtype dtype) { return dtype == Dtype::BF16 || dtype == Dtype::F16 ? Dtype::F32 : dtype; }
const OpFacts& facts(Op op) { return kOps[static_cast<size_t>(op)]; }

Builder::Builder(std::string name) { kernel_.name = std::move(name); }

size_t Kernel::position_of(int32_t symbol) const {
  return static_cast<size_t>(std::ranges::find(symbols, symbol, &Symbol::id) - symbols.begin());
}

Expr Builder::symbol(int32_t id, shapes::Range range) {
  if (kernel_.position_of(id) == kernel_.symbols.size()) kernel_.symbols.push_back({id, range});
  return Expr::symbol(id);
}

BufferId Builder::buffer(Dtype dtype, Role role, Expr size, std::string name) {
  kernel_.buffers.push_back({dtype, role, size, std::move(name)});
  return static_cast<BufferId>(kernel_.buffers.size()) - 1;
}

Expr Builder::parallel(Expr extent) {
  kernel_.parallel.push_back({kernel_.variable_count, extent});
  return Expr::variable(kernel_.variable_count++);
}

std::vector<Expr> Builder::stage(const std::vector<Expr>& extents) {
  Block block;
  std::vector<Expr> variables;
  for (const Expr extent : extents) {
    block.loops.push_back({kernel_.variable_count, extent});
    variables.push_back(Expr::variable(kernel_.variable_count++));
  }
  kernel_.blocks.push_back(std::move(block));
  return variables;
}

Block& Builder::block() {
  if (kernel_.blocks.empty()) row();
  return kernel_.blocks.back();
}

ValueId Builder::append(Instruction instruction) {
  if (instruction.op != Op::Store && instruction.op != Op::StoreAdd) {
    instruction.result = kernel_.value_count++;
    dtypes_.push_back(instruction.dtype);
  }
  block().code.push_back(instruction);
  return instruction.result;
}

ValueId Builder::constant(Dtype dtype, double number) {
  if (!is_float(dtype)) return constant_int(dtype, static_cast<int64_t>(number));
  return append(
      {.op = Op::Constant, .dtype = dtype, .number = dtype == Dtype::F32 ? static_cast<float>(number) : number});
}

ValueId Builder::constant_int(Dtype dtype, int64_t number) {
  if (is_float(dtype)) return constant(dtype, static_cast<double>(number));
  return append({.op = Op::Constant, .dtype = dtype, .integer = number});
}

ValueId Builder::index(Expr expr) { return append({.op = Op::Index, .dtype = Dtype::I64, .index = expr}); }

ValueId Builder::load(BufferId buffer, Expr index, ValueId mask, ValueId other) {
  return append({.op = Op::Load,
                 .dtype = value_dtype(kernel_.buffers.at(buffer).dtype),
                 .operands = {mask, other, kNoValue},
                 .buffer = buffer,
                 .index = index});
}

void Builder::store(BufferId buffer, Expr index, ValueId value, ValueId mask) {
  append(
      {.op = Op::Store, .dtype = dtype(value), .operands = {value, mask, kNoValue}, .buffer = buffer, .index = index});
}

void Builder::store_add(BufferId buffer, Expr index, ValueId value, ValueId mask) {
  append({.op = Op::StoreAdd,
          .dtype = dtype(value),
          .operands = {value, mask, kNoValue},
          .buffer = buffer,
          .index = index});
}

ValueId Builder::cast(Dtype to, ValueId value) {
  return append({.op = Op::Cast, .dtype = to, .operands = {value, kNoValue, kNoValue}});
}

ValueId Builder::bounds(ValueId index, Expr size, std::string message, ValueId mask) {
  const auto found = std::find(kernel_.messages.begin(), kernel_.messages.end(), message);
  const auto number = static_cast<int32_t>(found - kernel_.messages.begin());
  if (found == kernel_.messages.end()) kernel_.messages.push_back(std::move(message));
  return append(
      {.op = Op::Bounds, .dtype = Dtype::I64, .operands = {index, mask, kNoValue}, .index = size, .message = number});
}

ValueId Builder::select(ValueId condition, ValueId a, ValueId b) {
  return append({.op = Op::Select, .dtype = dtype(a), .operands = {condition, a, b}});
}

ValueId Builder::op(Op op, ValueId a, ValueId b, ValueId c) {
  Dtype result = dtype(a);
  if (facts(op).op_class == OpClass::Compare) result = Dtype::Bool;
  if (op == Op::ReduceArgmax || op == Op::ReduceArgmin || op == Op::ScanArgmax || op == Op::ScanArgmin)
    result = Dtype::I64;
  if (op == Op::ReduceSumWide) result = Dtype::F64;
  return append({.op = op, .dtype = result, .operands = {a, b, c}});
}

}  // namespace magneto::loops
