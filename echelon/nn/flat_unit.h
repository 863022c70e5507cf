// Flat units: the parameters of a layer that share one trainability, and whose gradients are summed
// over the same ranks, lie in one contiguous range, as segments. A unit is described without
// memory; values, gradients, master copies and optimiser state are buffers of `numel` elements with
// the same segments.
//
// Segments that decay come first, so that each decay group of a unit is one contiguous range and an
// optimiser needs one operation a group, not one a parameter. Every segment begins at a multiple of
// 32 elements (64 bytes in the smallest type, so the offsets hold for every type), and the unit is
// padded to that multiple; padding is zero and stays zero.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/comm/dimension.h"

namespace echelon {

inline constexpr std::int64_t segment_alignment = 32;  // elements

struct Segment {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // within the unit, in elements
  std::int64_t numel = 0;
  bool decay = true;
  bool counted = true;  // false: another rank counts it
};

struct FlatUnit {
  int layer = 0;
  bool trainable = true;
  bool copied = false;  // its one parameter is on other ranks too, with other neighbours
  Dimensions summed_over = batch_dimensions;  // its gradients (Parameter::summed_over)
  std::int64_t begin = 0;                     // within the Stack's buffer of this trainability
  std::int64_t numel = 0;                     // with padding
  std::vector<Segment> segments;
};

// A contiguous range of a unit that is updated alike: of one decay group, or of one parameter.
struct UpdateRange {
  std::int64_t begin = 0;  // within the Stack's buffer
  std::int64_t numel = 0;
  bool decay = true;
  int parameter = -1;  // among the trainable ones, in the order of segments; -1: of several
};

struct Parameter;

// One unit for the frozen parameters of a layer and one for the trainable ones that are summed over
// the same dimensions, where there are any; and one more for each of which other ranks have copies.
std::vector<FlatUnit> lay_out(const std::vector<const Parameter*>& parameters);

// Consecutive units of trainable parameters that several owners share: each has one of `shards`
// even slices. What is gathered and reduced at a time, over the same ranks.
struct ShardGroup {
  std::int64_t begin = 0;  // within the Stack's buffer
  std::int64_t numel = 0;  // with padding: divides by shards * segment_alignment
  Dimensions summed_over = batch_dimensions;
};

// Groups of at least `smallest` elements, as far as there are so many; pads the last unit of each
// and moves those behind it. A copy is a group of its own, cut in the same slices wherever it is:
// so owners that add in the same order have the same bits in all of them.
std::vector<ShardGroup> split_batch(std::vector<FlatUnit>& units, int shards,
                                    std::int64_t smallest);

// The parts of [begin, end) of the Stack's buffer that this rank counts, in order: all but the
// segments that another rank does.
struct FlatRange {
  std::int64_t begin = 0, numel = 0;
};
std::vector<FlatRange> counted_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                      std::int64_t end);

enum class Grain { decay_group, parameter };

// The ranges of trainable units, none longer than `longest` elements.
std::vector<UpdateRange> update_ranges(const std::vector<FlatUnit>& units, Grain grain,
                                       std::int64_t longest);

}  // namespace echelon
