// Closed forms of what the ranks of a mesh send and hold, and of the bubble of a pipeline, from the
// formulas of docs/pipeline.md, docs/tensor.md and docs/zero.md. p x d x t ranks, B samples of s
// tokens in a step, m micro-batches, width h, L blocks; a sum over n bytes and g ranks costs them
// 2 (g-1) n together, a gather or a reduce-scatter half of that.
//
//   tag             in a step, in elements, of all ranks
//   activations     B s h each way over each of the boundaries between stages; t times that where
//                   the ranks of a tensor group have all rows
//   tensor          B s h, 4 sums a block and 1 each for the embedding and the head; 10 halves, 2
//                   and 3 where rows are split; full recompute adds 1 sum a block, or 3 halves
//   vocabulary      3 sums of B s
//   norms           where rows are split, the norms' and the positions' gradients, each
//                   micro-batch; LARS and LAMB: two numbers a parameter
//   tied gradients  the table, between the first stage and the last
//   gradients       a sum over d; ZeRO: a reduce-scatter, or one a micro-batch
//   parameters      ZeRO 1 and 2: a gather, and one before the first step; 3: one each time that a
//                   layer is used and was not just before
//   norm, loss      one number each
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/verify/strategies.h"

namespace echelon {

// By tag of the ledger, without those that are zero.
std::map<std::string, std::uint64_t> mesh_bytes(const Strategy& strategy);

// Of the layers of one rank of the pipeline, one of a tensor group's parts, with padding.
std::uint64_t part_bytes(const Strategy& strategy, int pipeline_rank);

// A fraction, exact.
struct Ratio {
  std::int64_t over = 0, under = 1;

  bool operator==(const Ratio& other) const { return over * other.under == other.over * under; }
};
std::string to_string(const Ratio& ratio);  // "3/8", lowest terms

PipelineShape pipeline_of(const JobOptions& job);

// Idle over ideal time where a forward, an input part and a weight part cost the same and messages
// nothing: (p-1)/m, (p-1)/(v m), and (p-1)/(3m) of zero-bubble, or (2p-1-m)/(3m) where m < p.
Ratio bubble_form(PipelineOrder schedule, const PipelineShape& shape);
// Of ranks that ran so. Throws InvalidArgument where they cannot have.
Ratio bubble_of(const PipelineSchedule& ran, const PipelineShape& shape);

}  // namespace echelon
