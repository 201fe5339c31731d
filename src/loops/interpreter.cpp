#include "loops/interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "loops/narrow.h"
#include "loops/scalar.h"

namespace magneto::loops {

std::string bounds_message(const std::string& pattern, int64_t index, int64_t size) {
  std::string result = pattern;
  const auto fill = [&](std::string_view name, int64_t number) {
    if (const size_t at = result.find(name); at != std::string::npos) {
      result.replace(at, name.size(), std::to_string(number));
    }
  };
  fill("{index}", index);
  fill("{size}", size);
  return result;
}

namespace {

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, std::span<void* const> buffers, std::span<const int64_t> symbols)
      : kernel_(kernel), symbols_(symbols), values_(kernel.value_count), variables_(kernel.variable_count) {
    size_t argument = 0;
    for (const Buffer& buffer : kernel.buffers) {
      sizes_.push_back(number(buffer.size));
      if (buffer.role == Role::Scratch) {
        scratch_.emplace_back(static_cast<size_t>(sizes_.back() * dtype_bytes(buffer.dtype)));
        data_.push_back(nullptr);
      } else {
        data_.push_back(static_cast<char*>(buffers[argument++]));
      }
    }
    size_t next = 0;
    for (size_t i = 0; i < data_.size(); ++i) {
      if (kernel.buffers[i].role == Role::Scratch) data_[i] = scratch_[next++].data();
    }
  }

  void run() {
    nest(kernel_.parallel, 0, [&] {
      for (const Block& block : kernel_.blocks) run_block(block);
    });
  }

 private:
  /// The state of a reduction or a scan.
  struct Accumulator {
    Scalar value;
    int64_t index = 0;
    bool empty = true;
    double mean = 0, m2 = 0, count = 0;
    double sum = 0;  // sums of floats, more exactly than any order in f32
  };

  template <typename Body>
  void nest(const std::vector<Loop>& loops, size_t depth, const Body& body) {
    if (depth == loops.size()) return body();
    const int64_t extent = number(loops[depth].extent);
    for (int64_t i = 0; i < extent; ++i) {
      variables_[loops[depth].variable] = i;
      nest(loops, depth + 1, body);
    }
  }

  int64_t number(Expr expr) const {
    return shapes::evaluate(expr, [&](Expr leaf) -> int64_t {
      switch (leaf.kind()) {
        case shapes::ExprKind::Symbol:
          return symbols_[kernel_.position_of(leaf.id())];
        case shapes::ExprKind::Variable:
          return variables_[leaf.id()];
        default:
          return values_[leaf.id()].i;
      }
    });
  }

  void run_block(const Block& block) {
    accumulators_.assign(block.code.size(), {});
    nest(block.loops, 0, [&] {
      for (size_t i = 0; i < block.code.size(); ++i) run_instruction(block.code[i], accumulators_[i]);
    });
    for (size_t i = 0; i < block.code.size(); ++i) {
      if (facts(block.code[i].op).op_class == OpClass::Reduce) finish(block.code[i], accumulators_[i]);
    }
  }

  void* element(const Instruction& instruction) {
    const int64_t at = number(instruction.index);
    if (at < 0 || at >= sizes_[instruction.buffer]) {
      throw std::logic_error("b" + std::to_string(instruction.buffer) + "[" + std::to_string(at) + "] is outside its " +
                             std::to_string(sizes_[instruction.buffer]) + " elements");
    }
    return data_[instruction.buffer] + at * dtype_bytes(kernel_.buffers[instruction.buffer].dtype);
  }

  bool masked_off(ValueId mask) const { return mask != kNoValue && !values_[mask].i; }

  void run_instruction(const Instruction& instruction, Accumulator& accumulator) {
    const auto& operands = instruction.operands;
    switch (facts(instruction.op).op_class) {
      case OpClass::Special:
        return run_special(instruction);
      case OpClass::Reduce:
        return accumulate(instruction, accumulator);
      case OpClass::Scan:
        return scan(instruction, accumulator);
      case OpClass::Compare:
        values_[instruction.result] =
            Scalar::of_int(compare(instruction.op, values_[operands[0]], values_[operands[1]], dtypes_of(operands[0])));
        return;
      case OpClass::Math: {
        Scalar inputs[3];
        for (int i = 0; i < facts(instruction.op).operands; ++i) inputs[i] = values_[operands[i]];
        values_[instruction.result] = compute(instruction.op, instruction.dtype, inputs);
        return;
      }
    }
  }

  Dtype dtypes_of(ValueId value) {
    if (dtypes_.empty()) {
      dtypes_.resize(kernel_.value_count);
      for (const Block& block : kernel_.blocks) {
        for (const Instruction& instruction : block.code) {
          if (instruction.result != kNoValue) dtypes_[instruction.result] = instruction.dtype;
        }
      }
    }
    return dtypes_[value];
  }

  void run_special(const Instruction& instruction) {
    const auto& operands = instruction.operands;
    Scalar result;
    switch (instruction.op) {
      case Op::Constant:
        result = is_float(instruction.dtype) ? Scalar::of_float(instruction.number)
                                             : Scalar::of_int(wrap(instruction.dtype, instruction.integer));
        break;
      case Op::Index:
        result = Scalar::of_int(number(instruction.index));
        break;
      case Op::Load:
        result = masked_off(operands[0])
                     ? values_[operands[1]]
                     : load_element(kernel_.buffers[instruction.buffer].dtype, element(instruction));
        break;
      case Op::Store:
        if (masked_off(operands[1])) return;
        store_element(kernel_.buffers[instruction.buffer].dtype, element(instruction), values_[operands[0]]);
        return;
      case Op::StoreAdd: {
        if (masked_off(operands[1])) return;
        const Dtype dtype = kernel_.buffers[instruction.buffer].dtype;
        void* at = element(instruction);
        const Scalar sum[2] = {load_element(dtype, at), values_[operands[0]]};
        store_element(dtype, at, compute(Op::Add, value_dtype(dtype), sum));
        return;
      }
      case Op::Cast:
        result = cast(dtypes_of(operands[0]), instruction.dtype, values_[operands[0]]);
        break;
      case Op::Bounds: {
        if (masked_off(operands[1])) {
          result = Scalar::of_int(0);
          break;
        }
        const int64_t size = number(instruction.index), index = values_[operands[0]].i;
        if (index < -size || index >= size) {
          throw BoundsError(bounds_message(kernel_.messages[instruction.message], index, size), instruction.message,
                            index, size);
        }
        result = Scalar::of_int(index < 0 ? index + size : index);
        break;
      }
      case Op::Select:
        result = values_[operands[0]].i ? values_[operands[1]] : values_[operands[2]];
        break;
      case Op::WelfordM2:
        result = m2_of(operands[0]);
        break;
      default:
        throw std::logic_error("no such instruction");
    }
    values_[instruction.result] = result;
  }

  Scalar& m2_of(ValueId mean) {
    if (m2_.size() < values_.size()) m2_.resize(values_.size());
    return m2_[mean];
  }

  void accumulate(const Instruction& instruction, Accumulator& a) {
    const Scalar value = values_[instruction.operands[0]];
    const Dtype dtype = dtypes_of(instruction.operands[0]);
    switch (instruction.op) {
      case Op::ReduceSum:
      case Op::ReduceSumWide:
        if (is_float(dtype)) {
          a.sum += value.f;
        } else {
          a.value.i =
              wrap(dtype, static_cast<int64_t>(static_cast<uint64_t>(a.value.i) + static_cast<uint64_t>(value.i)));
        }
        break;
      case Op::ReduceProd:
        if (is_float(dtype)) {
          a.sum = a.empty ? value.f : a.sum * value.f;
        } else {
          const Scalar pair[2] = {a.empty ? Scalar::of_int(1) : a.value, value};
          a.value = compute(Op::Mul, dtype, pair);
        }
        break;
      case Op::ReduceMax:
      case Op::ReduceMin: {
        const Scalar pair[2] = {a.value, value};
        a.value = a.empty ? value : compute(instruction.op == Op::ReduceMax ? Op::Max : Op::Min, dtype, pair);
        break;
      }
      case Op::ReduceAny:
        a.value.i |= value.i;
        break;
      case Op::ReduceAll:
        a.value.i = (a.empty || a.value.i) && value.i;
        break;
      case Op::ReduceArgmax:
      case Op::ReduceArgmin: {
        const Op better = instruction.op == Op::ReduceArgmax ? Op::Gt : Op::Lt;
        const int64_t index = values_[instruction.operands[1]].i;
        const bool was_nan = is_float(dtype) && std::isnan(a.value.f), is_nan = is_float(dtype) && std::isnan(value.f);
        const bool same = is_nan ? was_nan : compare(Op::Eq, value, a.value, dtype);
        const bool wins = is_nan ? !was_nan : !was_nan && compare(better, value, a.value, dtype);
        if (a.empty || wins || (same && index < a.index)) {
          a.value = value;
          a.index = index;
        }
        break;
      }
      case Op::ReduceWelford: {
        a.count += 1;
        const double delta = value.f - a.mean;
        a.mean += delta / a.count;
        a.m2 += delta * (value.f - a.mean);
        break;
      }
      default:
        break;
    }
    a.empty = false;
  }

  void finish(const Instruction& instruction, const Accumulator& a) {
    const Dtype dtype = dtypes_of(instruction.operands[0]);
    Scalar result = a.value;
    switch (instruction.op) {
      case Op::ReduceSumWide:
        result = rounded(Dtype::F64, a.sum);
        break;
      case Op::ReduceSum:
        if (is_float(dtype)) result = rounded(dtype, a.sum);
        break;
      case Op::ReduceProd:
        if (is_float(dtype)) result = rounded(dtype, a.empty ? 1.0 : a.sum);
        if (!is_float(dtype) && a.empty) result.i = 1;
        break;
      case Op::ReduceMax:
      case Op::ReduceMin:
        if (a.empty) result = extreme(dtype, instruction.op == Op::ReduceMin);
        break;
      case Op::ReduceAll:
        if (a.empty) result.i = 1;
        break;
      case Op::ReduceArgmax:
      case Op::ReduceArgmin:
        result = Scalar::of_int(a.index);
        break;
      case Op::ReduceWelford:
        result = rounded(dtype, a.mean);
        m2_of(instruction.result) = rounded(dtype, a.m2);
        break;
      default:
        break;
    }
    values_[instruction.result] = result;
  }

  void scan(const Instruction& instruction, Accumulator& a) {
    const Scalar value = values_[instruction.operands[0]];
    const Dtype dtype = dtypes_of(instruction.operands[0]);
    const Scalar pair[2] = {a.value, value};
    Scalar& result = values_[instruction.result];
    switch (instruction.op) {
      case Op::ScanSum:
        if (is_float(dtype)) {
          a.sum += value.f;
          result = rounded(dtype, a.sum);
        } else {
          result = a.value = a.empty ? value : compute(Op::Add, dtype, pair);
        }
        break;
      case Op::ScanProd:
        if (is_float(dtype)) {
          a.sum = a.empty ? value.f : a.sum * value.f;
          result = rounded(dtype, a.sum);
        } else {
          result = a.value = a.empty ? value : compute(Op::Mul, dtype, pair);
        }
        break;
      case Op::ScanMax:
      case Op::ScanMin:
        result = a.value = a.empty ? value : compute(instruction.op == Op::ScanMax ? Op::Max : Op::Min, dtype, pair);
        break;
      case Op::ScanArgmax:
      case Op::ScanArgmin: {
        const Op better = instruction.op == Op::ScanArgmax ? Op::Ge : Op::Le;
        const bool nan = is_float(dtype) && std::isnan(value.f), was_nan = is_float(dtype) && std::isnan(a.value.f);
        if (a.empty || nan || (!was_nan && compare(better, value, a.value, dtype))) {
          a.value = value;
          a.index = values_[instruction.operands[1]].i;
        }
        result = Scalar::of_int(a.index);
        break;
      }
      default:
        break;
    }
    a.empty = false;
  }

  const Kernel& kernel_;
  std::span<const int64_t> symbols_;
  std::vector<Scalar> values_;
  std::vector<Scalar> m2_;
  std::vector<int64_t> variables_;
  std::vector<Dtype> dtypes_;
  std::vector<int64_t> sizes_;
  std::vector<char*> data_;
  std::vector<std::vector<char>> scratch_;
  std::vector<Accumulator> accumulators_;
};

}  // namespace

void interpret(const Kernel& kernel, std::span<void* const> buffers, std::span<const int64_t> symbols) {
  Interpreter(kernel, buffers, symbols).run();
}

}  // namespace magneto::loops
