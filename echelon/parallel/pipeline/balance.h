// Which layers make up each stage of a pipeline: consecutive ones, at least one a stage, so that
// the dearest stage is as cheap as can be. Every other rank waits for that one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/parallel/pipeline/schedule.h"

namespace echelon {

// The layers [begin, end) of a stage.
struct StageLayers {
  int begin = 0, end = 0;
  bool operator==(const StageLayers&) const = default;
};

// What a layer costs.
struct LayerCost {
  double seconds = 0;            // forward and backward of a micro-batch
  std::int64_t state = 0;        // bytes of values, gradients and optimiser state
  std::int64_t activations = 0;  // bytes that a micro-batch keeps from forward to backward
};

// Layers of one kind cost the same, and what their times differ by is what else the machine did:
// each gets the least time of its kind. Noise only ever adds, so the least of many tries is the
// nearest to the truth, and nearer the more there are; a median is of use where noise goes both
// ways. `kinds` are by layer, the same text for layers that are alike; "": like no other.
void share_times(std::vector<LayerCost>& layers, const std::vector<std::string>& kinds);

// `by`: the count of layers, time or memory. A stage's memory has the activations of as many
// micro-batches as the schedule keeps there at once. Throws InvalidArgument where there are fewer
// layers than stages.
std::vector<StageLayers> balance(const std::vector<LayerCost>& layers, BalanceBy by,
                                 PipelineOrder schedule, const PipelineShape& shape);

// Sizes as a user gives them, "2,3,3": by stage, together all layers.
std::vector<StageLayers> stages_of(const std::string& sizes, int layers,
                                   const PipelineShape& shape);
std::string stages_text(const std::vector<StageLayers>& stages);  // the sizes again

// What every stage costs, in the unit of `by`; and how much dearer the dearest rank is than the
// mean of all: 0.25 is a quarter.
std::vector<double> stage_costs(const std::vector<StageLayers>& stages,
                                const std::vector<LayerCost>& layers, BalanceBy by,
                                PipelineOrder schedule, const PipelineShape& shape);
double imbalance(const std::vector<double>& stage_costs, const PipelineShape& shape);

// By layer: the rank that has it.
std::vector<int> layer_owners(const std::vector<StageLayers>& stages, const PipelineShape& shape);

}  // namespace echelon
