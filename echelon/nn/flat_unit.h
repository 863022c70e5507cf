// Flat units. The parameters of a layer that are all trainable or all frozen, and whose gradients
// are summed over the same ranks, lie in one contiguous range as segments. A unit is a description
// without memory. Values, gradients, master copies and optimiser state are buffers of `numel`
// elements with the same segments.
//
// Segments with equal update rules are neighbours, those that decay first. Each parameter group of
// a unit is then one contiguous range, and an optimiser needs one operation per group, not one per
// parameter. Without rules of a user's own there are two groups. Every segment begins at a
// multiple of 32 elements (64 bytes in the smallest type, so the offsets hold for every type), and
// the unit is padded to that multiple. Padding is zero and stays zero.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/comm/dimension.h"
#include "echelon/nn/update_rule.h"

namespace echelon {

inline constexpr std::int64_t segment_alignment = 32;  // elements

struct Segment {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // within the unit, in elements
  std::int64_t numel = 0;
  UpdateRule update = {};
  bool counted = true;  // false: another rank counts it
};

struct FlatUnit {
  int layer = 0;
  bool trainable = true;
  bool copied = false;  // its one parameter also exists on other ranks, beside other parameters
  Dimensions summed_over = batch_dimensions;  // for its gradients (Parameter::summed_over)
  std::int64_t begin = 0;                     // within the Stack's trainable or frozen buffer
  std::int64_t numel = 0;                     // including padding
  std::vector<Segment> segments;
};

// A contiguous range of a unit that is updated in one operation: one parameter group or one
// parameter.
struct UpdateRange {
  std::int64_t begin = 0;  // within the Stack's buffer
  std::int64_t numel = 0;
  UpdateRule update = {};
  int parameter = -1;  // index among trainable parameters, in segment order; -1: several parameters
};

struct Parameter;

// Per layer, one unit for the frozen parameters and one for each set of trainable parameters that
// are summed over the same dimensions, if there are any. Each parameter that other ranks hold a
// copy of gets a unit of its own.
std::vector<FlatUnit> lay_out(const std::vector<const Parameter*>& parameters);

// Consecutive units of trainable parameters that are sharded together: each owner holds one of
// `shards` equal slices. A group is gathered and reduced as a whole, over the same ranks.
struct ShardGroup {
  std::int64_t begin = 0;  // within the Stack's buffer
  std::int64_t numel = 0;  // including padding: a multiple of shards * segment_alignment
  Dimensions summed_over = batch_dimensions;
};

// Groups the trainable units so that each group has at least `smallest` elements if possible. Pads
// the last unit of each group and moves the units behind it. A copied unit is a group of its own
// and is cut into the same slices on every rank, so owners that add in the same order get the same
// bits.
std::vector<ShardGroup> make_shard_groups(std::vector<FlatUnit>& units, int shards,
                                          std::int64_t smallest);

// The parts of [begin, end) of the Stack's buffer that this rank counts, in order: everything
// except the segments that another rank counts.
struct FlatRange {
  std::int64_t begin = 0, numel = 0;
};
std::vector<FlatRange> counted_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                      std::int64_t end);

enum class Grain { group, parameter };

// The ranges of the trainable units, none longer than `longest` elements.
std::vector<UpdateRange> update_ranges(const std::vector<FlatUnit>& units, Grain grain,
                                       std::int64_t longest);

}  // namespace echelon
