// Closed forms of the bytes that the ranks of a mesh send and hold, and of the bubble of a
// pipeline, from the formulas of docs/pipeline.md, docs/tensor.md and docs/zero.md. There are p x d
// x t ranks, B samples of s tokens in a step, m micro-batches, width h and L blocks. An all-reduce
// ("sum") of n bytes over g ranks sends 2 (g-1) n in total, an all-gather or a reduce-scatter half
// of that.
//
//   tag             elements per step, of all ranks
//   activations     B s h each way over each boundary between stages, and only forward behind a
//                   stage without a backward; t times that without sequence parallelism
//   tensor          B s h: 4 sums per block, 1 each for the embedding and the head; with sequence
//                   parallelism 10, 2 and 3 halves; full recompute adds 1 sum per block, or 3
//                   halves
//   vocabulary      3 sums of B s
//   norms           with sequence parallelism, the gradients of norms and positions per
//                   micro-batch; LARS and LAMB: two numbers per parameter
//   lora            per block and micro-batch, the gradients of the A of products that are split by
//                   columns and of the B of those split by rows
//   tied gradients  the table, between the first stage and the last
//   gradients       a sum over d; ZeRO: a reduce-scatter per step or per micro-batch
//   parameters      ZeRO 1 and 2: a gather per step, and one before the first; 3: one for each use
//                   of a layer that does not directly follow another use of it
//   norm, loss      one number each
//
// LoRA freezes all but the adaptations: frozen parameters have no gradients, and with sequence
// parallelism their rows are not gathered again: 9, 1 and 2 halves.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/verify/strategies.h"

namespace echelon {

// By tag of the ledger, without zeros.
std::map<std::string, std::uint64_t> mesh_bytes(const Strategy& strategy);

// Bytes of the trainable parameters of one pipeline rank, for one rank of its tensor group, with
// padding; and of the frozen ones.
std::uint64_t part_bytes(const Strategy& strategy, int pipeline_rank);
std::uint64_t frozen_bytes(const Strategy& strategy, int pipeline_rank);

// An exact fraction.
struct Ratio {
  std::int64_t over = 0, under = 1;

  bool operator==(const Ratio& other) const { return over * other.under == other.over * under; }
};
std::string to_string(const Ratio& ratio);  // "3/8", lowest terms

PipelineShape pipeline_of(const JobOptions& job);

// Idle over ideal time if a forward, an input part and a weight part cost the same and messages
// cost nothing: (p-1)/m, (p-1)/(v m), and for zero-bubble (p-1)/(3m), or (2p-1-m)/(3m) if m < p.
Ratio bubble_form(PipelineOrder schedule, const PipelineShape& shape);
// A stage below all that trains runs no backward: with LoRA, one that has only the embedding. Puts
// these slots into the order in which ranks ran, where the schedule has them, so that the formulas
// of a whole pipeline hold.
PipelineSchedule with_left_out(const Strategy& strategy, PipelineSchedule ran);
// The bubble of the order in which ranks ran. Throws InvalidArgument for an impossible order.
Ratio bubble_of(const PipelineSchedule& ran, const PipelineShape& shape);

}  // namespace echelon
