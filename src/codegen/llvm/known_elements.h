// Short rows, which are one vector: what a stage has loaded or stored, later stages have in registers.
#pragma once

#include <llvm/IR/Value.h>

#include <optional>
#include <vector>

#include "codegen/llvm/schedule.h"

namespace magneto::codegen {

/// What elements of memory have been found to be in the row at hand. Masks are those of the lanes that are there.
class KnownElements {
 public:
  explicit KnownElements(const Schedule& schedule) : schedule_(schedule), in_registers_(rows_in_registers()) {}

  /// Another row begins.
  void clear() { known_.clear(); }
  /// Accesses are those of this block from here on; behind a stage, of rows.
  void enter(size_t block) { stage_ = is_one_vector(block) ? static_cast<int64_t>(block) : -1; }
  void leave() { stage_ = -1; }

  /// Null: not known.
  llvm::Value* find(const loops::Instruction& load, llvm::Value* mask) const;
  void note_load(const loops::Instruction& load, llvm::Value* mask, llvm::Value* value);
  /// `value`: for all lanes.
  void note_store(const loops::Instruction& store, llvm::Value* mask, llvm::Value* value);
  /// Scratch memory in which each stage finds what it needs among the known elements: it is never stored.
  bool in_registers(loops::BufferId buffer) const { return in_registers_[static_cast<size_t>(buffer)]; }

 private:
  struct Element {
    loops::BufferId buffer;
    shapes::Expr index;  // the stage's variable replaced by one for all stages
    llvm::Value* mask;
    llvm::Value* value;
  };

  bool is_one_vector(size_t block) const;
  std::optional<shapes::Expr> place_of(const loops::Instruction& instruction) const;
  std::vector<bool> rows_in_registers() const;

  const Schedule& schedule_;
  int64_t stage_ = -1;  // in which all of a row is one vector; -1: none
  std::vector<Element> known_;
  const std::vector<bool> in_registers_;  // by buffer
};

}  // namespace magneto::codegen
