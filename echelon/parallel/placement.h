// Which rank holds which part of a model, as a value. For the values, the gradients and the
// optimiser state of the parameter groups (Stack::groups) it says whether every rank holds all of
// them or one slice, whether the unsharded group takes pooled memory while a step needs it, and
// where slices are stored. Every strategy along the data dimension is one such value:
//
//                  values   gradients   state
//   data parallel  whole    whole       whole
//   ZeRO-1         whole    whole       slices
//   ZeRO-2         whole    slices      slices
//   ZeRO-3         slices   slices      slices
//
// Steps, updates, forecasts and saved states read this value. No other code knows ZeRO stages.
#pragma once

#include <cstdint>

#include "echelon/parallel/zero/options.h"

namespace echelon {

struct Placement {
  enum class Store { device, host, disk };
  struct Part {
    bool sliced = false;  // each owner keeps one slice of every group
    // If sliced: the unsharded group takes memory from a pool while layers use it. Otherwise a
    // single owner has the whole group, and layers work in its slice.
    bool pooled = false;
    Store store = Store::device;  // where the slices are stored
  };
  Part values, gradients, state;
  int owners = 1;         // ranks with one slice each, if all groups are summed over the same ranks
  bool replicas = false;  // other ranks own the same slices; gradients are summed over them too

  bool is_sharded() const { return state.sliced; }
  bool offloads() const { return state.store != Store::device; }
  bool offloads_values() const { return values.store != Store::device; }
};

// The placement for parallel.zero = `stage`; 0 is plain data parallelism. `fp32_sums`: gradients
// are computed in a narrower type and summed in fp32.
Placement placement_of(std::int64_t stage, const ZeroOptions& zero, int owners, bool replicas,
                       bool fp32_sums);

}  // namespace echelon
