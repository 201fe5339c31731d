#include "runtime/program/sized_plan.h"

#include <algorithm>

#include "codegen/kernel.h"

namespace magneto::runtime {

FrameSizes::FrameSizes(const SizedPlan& plan, const std::vector<Register>& captured)
    : sizes(plan.sizes.size()), registers(captured), kernels(plan.kernels.size()) {
  size_t count = 0;
  for (const SizedPlan::Work& work : plan.kernels) count += work.symbols.size();
  symbols.resize(count);
  size_t next = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    kernels[k].symbols = symbols.data() + next;
    next += plan.kernels[k].symbols.size();
  }
}

void FrameSizes::resize(const SizedPlan& plan) {
  plan.sizes.run(values.data(), sizes.data());
  for (const SizedPlan::Field& field : plan.fields) {
    Register& info = registers[field.reg];
    const int64_t size = sizes[field.size];
    switch (field.part) {
      case SizedPlan::Part::Size:
        info.sizes[field.dim] = size;
        break;
      case SizedPlan::Part::Stride:
        info.strides[field.dim] = size;
        break;
      case SizedPlan::Part::ViewOffset:
        info.offset = size;
        break;
      case SizedPlan::Part::Bytes:
        info.bytes = size;
        break;
    }
  }
  arena_bytes = 0;
  for (const SizedPlan::Planned& planned : plan.arena) {
    int64_t offset = 0;
    for (const int32_t below : planned.behind) {
      offset = std::max(offset, registers[below].offset + arena_space(registers[below].bytes));
    }
    registers[planned.reg].offset = offset;
    arena_bytes = std::max(arena_bytes, offset + arena_space(registers[planned.reg].bytes));
  }
  for (const auto& [reg, place] : plan.shared) registers[reg].offset = registers[place].offset;
  int64_t* symbol = symbols.data();
  for (size_t k = 0; k < kernels.size(); ++k) {
    const SizedPlan::Work& work = plan.kernels[k];
    for (const int32_t id : work.symbols) *symbol++ = values.data()[shapes::Expr::place(id)];
    if (work.units < 0) continue;  // interpreted
    kernels[k].units = sizes[work.units];
    kernels[k].serial = kernels[k].may_be_serial && kernels[k].units <= codegen::grain_for(sizes[work.cost]);
  }
}

}  // namespace magneto::runtime
