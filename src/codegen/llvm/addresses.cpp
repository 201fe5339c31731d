#include "codegen/llvm/addresses.h"

#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Instructions.h>
#include <llvm/Support/CommandLine.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace magneto::codegen {
namespace {

/// A part of an index: `value` `scale` times, which changes with a loop of that depth (0: with none).
struct Term {
  llvm::Value* value;
  uint64_t scale;
  unsigned depth;
};

/// An index as a sum. Numbers wrap, as the machine's do.
class Index {
 public:
  Index(const llvm::LoopInfo& loops, llvm::Value* value) : loops_(loops) { add(value, 1); }

  std::vector<Term> terms;
  uint64_t constant = 0;

 private:
  void add(llvm::Value* value, uint64_t scale) {
    using Op = llvm::Instruction;
    if (const auto* number = llvm::dyn_cast<llvm::ConstantInt>(value)) {
      constant += scale * number->getZExtValue();
      return;
    }
    const auto* sum = llvm::dyn_cast<llvm::BinaryOperator>(value);
    const auto* factor = sum ? llvm::dyn_cast<llvm::ConstantInt>(sum->getOperand(1)) : nullptr;
    if (sum && sum->getOpcode() == Op::Add) {
      add(sum->getOperand(0), scale);
      add(sum->getOperand(1), scale);
    } else if (sum && sum->getOpcode() == Op::Sub) {
      add(sum->getOperand(0), scale);
      add(sum->getOperand(1), -scale);
    } else if (factor && sum->getOpcode() == Op::Mul) {
      add(sum->getOperand(0), scale * factor->getZExtValue());
    } else if (factor && sum->getOpcode() == Op::Shl && factor->getZExtValue() < 64) {
      add(sum->getOperand(0), scale << factor->getZExtValue());
    } else {
      const auto same = std::find_if(terms.begin(), terms.end(), [&](const Term& term) { return term.value == value; });
      if (same != terms.end()) {
        same->scale += scale;
      } else {
        const auto* instruction = llvm::dyn_cast<llvm::Instruction>(value);
        terms.push_back({value, scale, instruction ? loops_.getLoopDepth(instruction->getParent()) : 0});
      }
    }
  }

  const llvm::LoopInfo& loops_;
};

void split(llvm::GetElementPtrInst& address, const llvm::LoopInfo& loops) {
  Index index(loops, address.getOperand(1));
  std::stable_sort(index.terms.begin(), index.terms.end(),
                   [](const Term& a, const Term& b) { return a.depth < b.depth; });
  llvm::IRBuilder<> b(&address);
  llvm::Value* pointer = address.getPointerOperand();
  llvm::Value* step = nullptr;
  for (size_t i = 0; i < index.terms.size(); ++i) {
    const Term& term = index.terms[i];
    llvm::Value* scaled = term.scale == 1 ? term.value : b.CreateMul(term.value, b.getInt64(term.scale));
    step = step ? b.CreateAdd(step, scaled) : scaled;
    if (i + 1 < index.terms.size() && index.terms[i + 1].depth == term.depth) continue;
    pointer = b.CreateGEP(address.getSourceElementType(), pointer, step);
    step = nullptr;
  }
  if (index.constant != 0) {
    pointer = b.CreateGEP(address.getSourceElementType(), pointer, b.getInt64(index.constant));
  }
  address.replaceAllUsesWith(pointer);
  address.eraseFromParent();
}

}  // namespace

void split_addresses(llvm::Function& function) {
  llvm::DominatorTree dominators(function);
  const llvm::LoopInfo loops(dominators);
  std::vector<llvm::GetElementPtrInst*> addresses;
  for (llvm::BasicBlock& block : function) {
    for (llvm::Instruction& instruction : block) {
      auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(&instruction);
      if (address && address->getNumIndices() == 1 && address->getOperand(1)->getType()->isIntegerTy(64)) {
        addresses.push_back(address);
      }
    }
  }
  for (llvm::GetElementPtrInst* address : addresses) split(*address, loops);
}

void leave_addresses_alone() {
  llvm::cl::Option* option = llvm::cl::getRegisteredOptions().lookup("disable-lsr");
  if (!option || option->addOccurrence(0, "disable-lsr", "true")) throw std::logic_error("LLVM has no -disable-lsr");
}

}  // namespace magneto::codegen
