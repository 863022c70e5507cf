// What `echelon verify` compares with one process: ways to train a tiny model. Those of ranks that
// each have the whole model are listed here; verify_matrix.h has the meshes.
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
  bool mesh = false;                           // its closed forms are those of verify_mesh_forms.h

  at::ScalarType type() const;
  bool narrow() const { return type() != at::kDouble; }
  std::uint64_t element() const;      // bytes of a parameter
  std::uint64_t sum_element() const;  // and of a gradient where it is summed
  // How far parameters may be from those of one process, or losses in bf16 and fp16.
  double bound() const;
};

// Five steps in fp64 of 24 samples of 8 tokens, two blocks of width 16.
JobOptions tiny_job();

// All of ranks that have the whole model: data parallel by every algorithm, parameter servers, ZeRO
// and narrow types. `folder` is for what is kept on disk.
std::vector<Strategy> replica_strategies(int world, int hosts, const std::string& folder);

// The one process whose parameters, or losses, a strategy's must be. It computes nothing again, and
// has its batch in one piece, where that does not change how it rounds: a dropout mask that
// depended on who draws it would show.
JobOptions alone(const Strategy& strategy);

// What two jobs have in common that must end with the same parameters, as text.
std::string computation(JobOptions options);

}  // namespace echelon
