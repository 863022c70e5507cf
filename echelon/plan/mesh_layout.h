// How a model lies over the ranks of a job: the mesh they make, which layers each of them has and
// which part of their matrices.
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

// The mesh that so many ranks make.
MeshShape mesh_of(const ParallelOptions& parallel, int ranks);

struct MeshLayout {
  Mesh mesh;
  PipelineShape pipeline;
  std::vector<StageLayers> stages;  // of the pipeline; one where there is none
  std::vector<LayerCost> costs;     // by layer, where they were measured
  std::vector<bool> own;            // by layer; empty: all

  // Whether ranks have different parts of the model.
  bool splits_model() const { return mesh.shape.pipeline > 1 || mesh.shape.tensor > 1; }
  Neighbours neighbours() const;                 // in the pipeline; none where there is none
  PartSums part_sums(const Stack& stack) const;  // of a stack that is laid out
  // Who sums the gradients of each of its parameters. Collective. Throws InvalidArgument where one
  // is not summed over ranks that have copies of it.
  SumRanks sum_ranks(const Stack& stack);
  // The stages, what they cost and how uneven that is, in lines for people.
  std::string description(const PipelineOptions& options) const;
};

// Collective, where there are ranks: null is one process. `plan` says how parallel.tensor ranks
// split the model; parallel.sequence splits rows too, where `tokens` of a sample divide. `measure`
// is called on one rank, if at all, with the number of ranks that split the batch, before the stack
// is given its layers. Throws InvalidArgument where ranks or layers do not come out even.
MeshLayout lay_over(Stack& stack, std::shared_ptr<Communicator> ranks,
                    const ParallelOptions& parallel, const PipelineOptions& pipeline,
                    const SplitPlan& plan, int micro_batches, std::int64_t tokens,
                    const std::function<std::vector<LayerCost>(int data_ranks)>& measure);

}  // namespace echelon
