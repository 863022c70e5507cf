// How a model is laid out over the ranks of a job: the mesh they form, the layers that each rank
// has, and its part of the matrices.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/mesh.h"
#include "echelon/comm/sum_ranks.h"
#include "echelon/nn/split_plan.h"
#include "echelon/nn/stack.h"
#include "echelon/optim/update.h"
#include "echelon/parallel/options.h"
#include "echelon/parallel/pipeline/balance.h"
#include "echelon/parallel/pipeline/options.h"
#include "echelon/step/boundary.h"

namespace echelon {

// The mesh that this many ranks form.
MeshShape mesh_of(const ParallelOptions& parallel, int ranks);

struct MeshLayout {
  Mesh mesh;
  PipelineShape pipeline;
  std::vector<StageLayers> stages;  // of the pipeline; a single one without a pipeline
  std::vector<LayerCost> costs;     // by layer, if they were measured
  std::vector<bool> own;            // by layer; empty: all

  // Whether ranks have different parts of the model.
  bool splits_model() const { return mesh.shape.pipeline > 1 || mesh.shape.tensor > 1; }
  Neighbours neighbours() const;                 // in the pipeline; empty without one
  PartSums part_sums(const Stack& stack) const;  // the stack must be laid out
  // The ranks that sum the gradients of each parameter. Collective. Throws InvalidArgument if a
  // parameter is not summed over ranks that have copies of it.
  SumRanks sum_ranks(const Stack& stack);
  // A description for people: the stages, their costs and their imbalance.
  std::string description(const PipelineOptions& options) const;
};

// Collective if there are ranks; null means one process. `plan` says how parallel.tensor ranks
// split the model; parallel.sequence also splits rows if the `tokens` of a sample divide evenly.
// `measure` is called on at most one rank, with the number of ranks that split the batch, before
// the stack gets its layers. Throws InvalidArgument if ranks or layers do not divide evenly.
MeshLayout lay_over(Stack& stack, std::shared_ptr<Communicator> ranks,
                    const ParallelOptions& parallel, const PipelineOptions& pipeline,
                    const SplitPlan& plan, int micro_batches, std::int64_t tokens,
                    const std::function<std::vector<LayerCost>(int data_ranks)>& measure);

}  // namespace echelon
