// The strategies that `echelon verify` compares with one process. Those of ranks that each have the
// whole model are listed here; matrix.h has the meshes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/job/options.h"

namespace echelon {

struct Strategy {
  std::string name;  // "data parallel, ring, a bucket a layer"
  JobOptions options = {};
  Algorithm algorithm = Algorithm::automatic;  // of sums of gradients over ranks
  std::vector<std::int64_t> shares = {};       // of the batch; empty: even
  bool masters = false;                        // compares updates, does not train
  bool mesh = false;                           // its closed forms are in mesh_forms.h

  at::ScalarType type() const;
  bool narrow() const { return type() != at::kDouble; }
  std::uint64_t element() const;      // bytes of a parameter
  std::uint64_t sum_element() const;  // and of a gradient in a sum over ranks
  // The largest allowed difference of parameters from one process; in bf16 and fp16, of losses.
  double bound() const;
};

// Five steps in fp64 of 24 samples of 8 tokens, two blocks of width 16.
JobOptions tiny_job();

// All strategies of ranks that have the whole model: data parallel with every algorithm, parameter
// servers, ZeRO and narrow types. `folder` is for offload to disk.
std::vector<Strategy> replica_strategies(int world, int hosts, const std::string& folder);

// The job of one process whose parameters or losses a strategy must reproduce. It uses no
// recompute, and no micro-batches where that does not change the rounding: a dropout mask that
// depended on the rank that draws it would show.
JobOptions alone(const Strategy& strategy);

// The options that determine the final parameters, as text: jobs with the same text must agree.
std::string computation(JobOptions options);

}  // namespace echelon
