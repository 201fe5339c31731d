// Transposed reads, a square of two loops at a time; see Tile in schedule.h.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace magneto::codegen {

using loops::Loop;

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

/// Starts of the block's sides, of a unit; other parallel loops' variables.
void Emitter::emit_sides(Value* flat) {
  const Tile& tile = schedule_.tile;
  parts_.resize(kernel_.variable_count);
  std::vector<Loop> loops, sides;
  for (const Loop& loop : kernel_.parallel) {
    const auto side = std::find_if(tile.across.begin(), tile.across.end(),
                                   [&](const Tile::Side& candidate) { return candidate.variable == loop.variable; });
    if (side != tile.across.end()) {
      loops.push_back({side->origin, shapes::ceil_div(loop.extent, side->length)});
      sides.push_back(loop);
    } else if (loop.variable != tile.lanes.variable) {
      loops.push_back(loop);
    }
  }
  decompose(flat, loops);
  for (size_t i = 0; i < tile.across.size(); ++i) {
    const Tile::Side& side = tile.across[i];
    Value* length = b.getInt64(static_cast<uint64_t>(side.length));
    Value* start = b.CreateMul(variables_[side.origin], length);
    variables_[side.origin] = start;
    parts_[static_cast<size_t>(side.variable)] = {
        start, b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateAdd(start, length), uniform(sides[i].extent))};
  }
}

/// The block's loops but the lanes' and `without`.
void Emitter::emit_side_loops(int32_t without, const std::function<void()>& body) {
  std::function<void(size_t)> nest = [&](size_t depth) {
    if (depth == schedule_.tile.across.size()) return body();
    const int32_t variable = schedule_.tile.across[depth].variable;
    if (variable == without) return nest(depth + 1);
    const auto [begin, end] = parts_[static_cast<size_t>(variable)];
    emit_loop(begin, end, 1, [&](Value* row) {
      variables_[static_cast<size_t>(variable)] = row;
      nest(depth + 1);
    });
  };
  nest(0);
}

/// Kernels without stages. A unit is a block's length of each loop across; along the lanes' loop its blocks follow each
/// other.
void Emitter::emit_tiles(Value* begin, Value* end) {
  const Tile& tile = schedule_.tile;
  const Loop& inner = kernel_.parallel.back();
  lanes_ = {};
  emit_loop(begin, end, 1, [&](Value* flat) {
    emit_sides(flat);
    Value* side = b.getInt64(Tile::kSide);
    Value* extent = uniform(inner.extent);
    emit_loop(b.getInt64(0), extent, Tile::kSide, [&](Value* lane_begin) {
      variables_[static_cast<size_t>(tile.lanes.origin)] = lane_begin;
      Value* lane_end = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateAdd(lane_begin, side), extent);
      parts_[static_cast<size_t>(inner.variable)] = {lane_begin, lane_end};
      for (const Tile::Turned& load : tile.loads) emit_side_loops(load.along, [&] { emit_turned(load, false); });
      emit_side_loops(-1, [&] {
        if (tile.across[0].length == Tile::kLongSide) {
          Value* row = variables_[static_cast<size_t>(tile.across[0].variable)];
          Value* within = b.CreateSub(row, variables_[static_cast<size_t>(tile.across[0].origin)]);
          for (const Tile::Turned& load : tile.loads) read_tile_ahead(load, within);
          variables_[static_cast<size_t>(tile.across[0].variable)] = row;
        }
        emit_lane_loop(inner, schedule_.rows, lane_begin, lane_end, [&] { emit_blocks(); });
      });
      for (const Tile::Turned& store : tile.stores) emit_side_loops(store.along, [&] { emit_turned(store, true); });
    });
  });
}

/// Kernels with stages. A unit is some rows of a parallel loop, with all of the stages' loop.
void Emitter::emit_strips(Value* begin, Value* end) {
  const Tile& tile = schedule_.tile;
  const Tile::Side& side = tile.across[0];
  lanes_ = {};
  emit_loop(begin, end, 1, [&](Value* flat) {
    emit_sides(flat);
    const auto part = parts_[static_cast<size_t>(side.variable)];
    parts_[static_cast<size_t>(tile.stage.variable)] = {b.getInt64(0), uniform(tile.stage.extent)};
    for (const Tile::Turned& load : tile.loads) emit_turned(load, false);
    if (schedule_.rows.variable >= 0) {
      emit_lane_loop(kernel_.parallel.back(), schedule_.rows, part.first, part.second, [&] { emit_blocks(); });
    } else {
      emit_loop(part.first, part.second, 1, [&](Value* row) {
        variables_[static_cast<size_t>(side.variable)] = row;
        known_.clear();
        emit_blocks();
      });
    }
    for (const Tile::Turned& store : tile.stores) emit_turned(store, true);
  });
}

/// Asks for a row's share of the next tile. Beyond the last one nothing happens.
void Emitter::read_tile_ahead(const Tile::Turned& load, Value* row) {
  const Tile& tile = schedule_.tile;
  const int64_t bytes = loops::dtype_bytes(kernel_.buffers[load.buffer].dtype);
  Value* side = b.getInt64(Tile::kSide);
  Value* elements = b.CreateMul(row, side);
  Value* long_side = b.getInt64(Tile::kLongSide);
  Value* next = b.CreateAdd(variables_[tile.lanes.origin], side);
  variables_[load.lane] = b.CreateAdd(next, b.CreateUDiv(elements, long_side));
  variables_[load.along] = b.CreateAdd(variables_[tile.across[0].origin], b.CreateURem(elements, long_side));
  Value* pointer =
      b.CreateGEP(memory_type(kernel_.buffers[load.buffer].dtype), buffers_[load.buffer].pointer, uniform(load.index));
  for (int64_t line = 0; line < bytes; ++line) prefetch(pointer, 64 * line);
}

/// Fills a load's scratch, or writes a store's: small squares are read along the loop in which they are contiguous and
/// turned in registers. A load's square over the edge reads its last row again, and masked lanes of the other loop; a
/// store's is masked in both.
void Emitter::emit_turned(const Tile::Turned& turned, bool store) {
  const loops::Dtype dtype = kernel_.buffers[turned.buffer].dtype;
  Type* type = memory_type(dtype);
  const auto bytes = static_cast<int>(loops::dtype_bytes(dtype));
  const int side = std::min(16, 64 / bytes);
  Type* vector = lanes_type(type, static_cast<unsigned>(side));
  const auto [lane_begin, lane_end] = parts_[static_cast<size_t>(turned.lane)];
  const auto [along_begin, along_end] = parts_[static_cast<size_t>(turned.along)];
  const auto is_whole = [&](int32_t variable) {
    for (const Loop& loop : kernel_.parallel) {
      if (loop.variable == variable) return loop.extent.is_constant() && loop.extent.number() % side == 0;
    }
    return schedule_.tile.stage.extent.number() % side == 0;
  };
  const bool whole_lanes = is_whole(turned.lane), whole_along = is_whole(turned.along);
  const auto memory_at = [&](Value* lane, Value* along) {
    variables_[turned.lane] = lane;
    variables_[turned.along] = along;
    return b.CreateGEP(type, buffers_[turned.buffer].pointer, uniform(turned.index));
  };
  const auto scratch_at = [&](Value* lane, Value* along) {
    variables_[turned.lane] = lane;
    variables_[turned.along] = along;
    return b.CreateGEP(type, buffers_[turned.scratch].pointer, uniform(turned.place));
  };
  const auto plus = [&](Value* start, int k) { return b.CreateAdd(start, b.getInt64(static_cast<uint64_t>(k))); };
  // What lies in one row of memory is read together: it is in one page.
  emit_loop(lane_begin, lane_end, side, [&](Value* column) {
    emit_loop(along_begin, along_end, side, [&](Value* row) {
      Value* mask = nullptr;
      if (!whole_along) {
        Value* left = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(along_end, row),
                                              b.getInt64(static_cast<uint64_t>(side)));
        mask = b.CreateICmpULT(lane_numbers(b.getInt32Ty(), static_cast<unsigned>(side)),
                               splat(b.CreateTrunc(left, b.getInt32Ty()), static_cast<unsigned>(side)));
      }
      std::vector<Value*> rows;
      for (int k = 0; k < side; ++k) {
        if (store) {
          rows.push_back(b.CreateAlignedLoad(vector, scratch_at(column, plus(row, k)), llvm::Align(1)));
          continue;
        }
        Value* at = plus(column, k);
        if (!whole_lanes) {
          at = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, b.CreateSub(lane_end, b.getInt64(1)));
        }
        Value* pointer = memory_at(at, row);
        rows.push_back(
            mask ? b.CreateMaskedLoad(vector, pointer, llvm::Align(1), mask, llvm::Constant::getNullValue(vector))
                 : static_cast<Value*>(b.CreateAlignedLoad(vector, pointer, llvm::Align(1))));
      }
      transpose(b, rows);
      for (int k = 0; k < side; ++k) {
        Value* value = rows[static_cast<size_t>(k)];
        if (!store) {
          b.CreateAlignedStore(value, scratch_at(column, plus(row, k)), llvm::Align(1));
          continue;
        }
        Value* at = plus(column, k);
        Value* allowed = mask;
        if (!whole_lanes) {
          Value* there = splat(b.CreateICmpSLT(at, lane_end), static_cast<unsigned>(side));
          allowed = mask ? b.CreateAnd(mask, there) : there;
        }
        if (allowed) {
          b.CreateMaskedStore(value, memory_at(at, row), llvm::Align(1), allowed);
        } else {
          b.CreateAlignedStore(value, memory_at(at, row), llvm::Align(1));
        }
      }
    });
  });
}

}  // namespace magneto::codegen
