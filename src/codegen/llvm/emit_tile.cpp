// Transposed reads, a square of two loops at a time; see Tile in schedule.h.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace magneto::codegen {

using loops::Loop;
using shapes::Expr;

namespace {

/// rows[i][j] becomes rows[j][i]: blocks of 1, 2, 4, ... elements change places across the diagonal.
void transpose(llvm::IRBuilder<>& b, std::vector<llvm::Value*>& rows) {
  const size_t side = rows.size();
  for (size_t distance = 1; distance < side; distance *= 2) {
    std::vector<int> upper, lower;
    for (size_t j = 0; j < side; ++j) {
      upper.push_back(static_cast<int>(j & distance ? side + j - distance : j));
      lower.push_back(static_cast<int>(j & distance ? side + j : j + distance));
    }
    for (size_t i = 0; i < side; ++i) {
      if (i & distance) continue;
      llvm::Value* x = rows[i];
      llvm::Value* y = rows[i + distance];
      rows[i] = b.CreateShuffleVector(x, y, upper);
      rows[i + distance] = b.CreateShuffleVector(x, y, lower);
    }
  }
}

}  // namespace

/// Units are strips of the second last loop, of `across_side` rows each; along the lanes' loop the tiles of a strip
/// follow each other.
void Emitter::emit_tiles(Value* begin, Value* end) {
  const Tile& tile = schedule_.tile;
  std::vector<Loop> loops(kernel_.parallel.begin(), kernel_.parallel.end() - 1);
  const Loop across = loops.back();
  const Loop& inner = kernel_.parallel.back();
  loops.back() = {tile.across_origin, shapes::ceil_div(across.extent, tile.across_side)};
  lanes_ = {};
  emit_loop(begin, end, 1, [&](Value* flat) {
    decompose(flat, loops);
    Value* across_side = b.getInt64(static_cast<uint64_t>(tile.across_side));
    Value* across_begin = b.CreateMul(variables_[tile.across_origin], across_side);
    variables_[tile.across_origin] = across_begin;
    Value* side = b.getInt64(Tile::kSide);
    Value* across_extent = uniform(across.extent);
    Value* across_end =
        b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateAdd(across_begin, across_side), across_extent);
    Value* extent = uniform(inner.extent);
    emit_loop(b.getInt64(0), extent, Tile::kSide, [&](Value* lane_begin) {
      variables_[tile.lane_origin] = lane_begin;
      Value* lane_end = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateAdd(lane_begin, side), extent);
      for (const Tile::Load& load : tile.loads) emit_turned(load, lane_end, across_end);
      emit_loop(across_begin, across_end, 1, [&](Value* row) {
        if (tile.across_side == Tile::kLongSide) {
          for (const Tile::Load& load : tile.loads) read_tile_ahead(load, b.CreateSub(row, across_begin));
        }
        variables_[across.variable] = row;
        emit_lane_loop(inner, schedule_.rows, lane_begin, lane_end, [&] { emit_blocks(); });
      });
    });
  });
}

/// Asks for a row's share of the next tile. Beyond the last one nothing happens.
void Emitter::read_tile_ahead(const Tile::Load& load, Value* row) {
  const Tile& tile = schedule_.tile;
  const int64_t bytes = loops::dtype_bytes(kernel_.buffers[load.buffer].dtype);
  Value* side = b.getInt64(Tile::kSide);
  Value* elements = b.CreateMul(row, side);
  Value* long_side = b.getInt64(static_cast<uint64_t>(tile.across_side));
  Value* next = b.CreateAdd(variables_[tile.lane_origin], side);
  variables_[schedule_.rows.variable] = b.CreateAdd(next, b.CreateUDiv(elements, long_side));
  variables_[tile.across] = b.CreateAdd(variables_[tile.across_origin], b.CreateURem(elements, long_side));
  Value* pointer =
      b.CreateGEP(memory_type(kernel_.buffers[load.buffer].dtype), buffers_[load.buffer], uniform(load.index));
  for (int64_t line = 0; line < bytes; ++line) prefetch(pointer, 64 * line);
}

/// Fills a load's scratch: small squares are read along the loop in which they are contiguous and turned in registers.
/// A square over the edge reads its last row again, and masked lanes of the other loop.
void Emitter::emit_turned(const Tile::Load& load, Value* lanes_end, Value* across_end) {
  const Tile& tile = schedule_.tile;
  Type* type = memory_type(kernel_.buffers[load.buffer].dtype);
  const auto bytes = static_cast<int>(loops::dtype_bytes(kernel_.buffers[load.buffer].dtype));
  const int side = std::min(16, 64 / bytes);
  Type* vector = lanes_type(type, static_cast<unsigned>(side));
  const int32_t lane = schedule_.rows.variable;
  Value* lane_begin = variables_[tile.lane_origin];
  Value* across_begin = variables_[tile.across_origin];
  const auto is_whole = [](Expr extent) { return extent.is_constant() && extent.number() % Tile::kSide == 0; };
  const Loop& inner = kernel_.parallel.back();
  const Loop& across = kernel_.parallel[kernel_.parallel.size() - 2];
  // What lies in one row of memory is read together: it is in one page.
  emit_loop(lane_begin, lanes_end, side, [&](Value* column) {
    emit_loop(across_begin, across_end, side, [&](Value* row) {
      Value* mask = nullptr;
      if (!is_whole(across.extent)) {
        Value* left = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(across_end, row),
                                              b.getInt64(static_cast<uint64_t>(side)));
        mask = b.CreateICmpULT(lane_numbers(b.getInt32Ty(), static_cast<unsigned>(side)),
                               splat(b.CreateTrunc(left, b.getInt32Ty()), static_cast<unsigned>(side)));
      }
      std::vector<Value*> rows;
      variables_[across.variable] = row;
      for (int k = 0; k < side; ++k) {
        Value* at = b.CreateAdd(column, b.getInt64(static_cast<uint64_t>(k)));
        if (!is_whole(inner.extent)) {
          at = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, b.CreateSub(lanes_end, b.getInt64(1)));
        }
        variables_[lane] = at;
        Value* pointer = b.CreateGEP(type, buffers_[load.buffer], uniform(load.index));
        rows.push_back(
            mask ? b.CreateMaskedLoad(vector, pointer, llvm::Align(1), mask, llvm::Constant::getNullValue(vector))
                 : static_cast<Value*>(b.CreateAlignedLoad(vector, pointer, llvm::Align(1))));
      }
      transpose(b, rows);
      Value* top = b.CreateSub(row, across_begin);
      Value* left = b.CreateSub(column, lane_begin);
      for (int k = 0; k < side; ++k) {
        Value* line = b.CreateMul(b.CreateAdd(top, b.getInt64(static_cast<uint64_t>(k))), b.getInt64(Tile::kSide));
        b.CreateAlignedStore(rows[static_cast<size_t>(k)],
                             b.CreateGEP(type, buffers_[load.scratch], b.CreateAdd(line, left)), llvm::Align(1));
      }
    });
  });
}

}  // namespace magneto::codegen
