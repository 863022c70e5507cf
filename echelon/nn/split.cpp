#include "echelon/nn/split.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>

namespace echelon {
namespace {

// Views the cut dimension as two: the blocks, and the elements of a block.
at::Tensor by_block(const at::Tensor& tensor, const Split& split) {
  return tensor.unflatten(split.dimension, {split.blocks, -1});
}

at::Tensor part_of_uneven(const at::Tensor& whole, const Split& split) {
  std::vector<at::Tensor> blocks;
  std::int64_t begin = 0;
  for (const auto size : split.uneven) {
    const auto share = size / split.parts;
    blocks.push_back(whole.narrow(split.dimension, begin + split.index * share, share));
    begin += size;
  }
  return at::cat(blocks, split.dimension);
}

at::Tensor assemble_uneven(const std::vector<at::Tensor>& parts, const Split& split) {
  std::vector<at::Tensor> blocks;
  std::int64_t begin = 0;  // of the block within every part
  for (const auto size : split.uneven) {
    const auto share = size / split.parts;
    for (const auto& part : parts) blocks.push_back(part.narrow(split.dimension, begin, share));
    begin += share;
  }
  return at::cat(blocks, split.dimension);
}

}  // namespace

std::int64_t Split::filled() const {
  return std::clamp<std::int64_t>(block() - begin(), 0, block_part());
}

std::vector<std::int64_t> part_shape(std::vector<std::int64_t> whole_shape, const Split& split) {
  if (split.is_part()) whole_shape[std::size_t(split.dimension)] = split.size();
  return whole_shape;
}

at::Tensor part_of(const at::Tensor& whole, const Split& split) {
  if (!split.is_part()) return whole;
  if (!split.uneven.empty()) return part_of_uneven(whole, split);
  const int inside = split.dimension + 1;
  at::Tensor part =
      by_block(whole, split).narrow(inside, std::min(split.begin(), split.block()), split.filled());
  if (const auto missing = split.block_part() - split.filled(); missing > 0) {
    // Pairs of (before, after), last dimension first.
    std::vector<std::int64_t> padding(2 * std::size_t(part.dim() - inside), 0);
    padding.back() = missing;
    part = at::constant_pad_nd(part, padding);
  }
  return part.flatten(split.dimension, inside).contiguous();
}

at::Tensor assemble(const std::vector<at::Tensor>& parts, const Split& split) {
  if (!split.is_part()) return parts.front();
  if (!split.uneven.empty()) return assemble_uneven(parts, split);
  const int inside = split.dimension + 1;
  std::vector<at::Tensor> blocks;
  for (const auto& part : parts) blocks.push_back(by_block(part, split));
  return at::cat(blocks, inside)
      .narrow(inside, 0, split.block())
      .flatten(split.dimension, inside)
      .contiguous();
}

}  // namespace echelon
