// Who holds which part of a model, as a value: for the values, gradients and optimiser state of its
// parameter groups (Stack::groups), whether every rank has the whole or one slice of it, whether
// the whole then has pooled memory while a step needs it, and where slices are kept. Every strategy
// along the data dimension is one of these:
//
//                  values   gradients   state
//   data parallel  whole    whole       whole
//   ZeRO-1         whole    whole       slices
//   ZeRO-2         whole    slices      slices
//   ZeRO-3         slices   slices      slices
//
// Steps, updates, forecasts and saved states read this value. Nothing else knows stages.
#pragma once

#include <cstdint>

#include "echelon/parallel/zero/options.h"

namespace echelon {

struct Placement {
  enum class Store { device, host, disk };
  struct Part {
    bool sliced = false;  // each owner keeps one slice of every group
    // Sliced: the whole group gets memory from a pool while layers use it. Otherwise one owner has
    // all of it, and layers work in its slice.
    bool pooled = false;
    Store store = Store::device;  // of the slices
  };
  Part values, gradients, state;
  int owners = 1;         // ranks with one slice each, where all sum the same parameters
  bool replicas = false;  // other ranks own the same slices; gradients are summed across them

  bool is_sharded() const { return state.sliced; }
  bool offloads() const { return state.store != Store::device; }
  bool offloads_values() const { return values.store != Store::device; }
};

// The placement of parallel.zero = `stage`: 0 is data parallel. `fp32_sums`: gradients are computed
// in a narrower type than they are summed in.
Placement placement_of(std::int64_t stage, const ZeroOptions& zero, int owners, bool replicas,
                       bool fp32_sums);

}  // namespace echelon
