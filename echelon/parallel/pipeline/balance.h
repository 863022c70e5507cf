// Assigns layers to the stages of a pipeline. Each stage gets at least one layer, its layers are
// consecutive, and the most expensive stage is as cheap as possible: every other rank waits for it.
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

// The cost of a layer.
struct LayerCost {
  double seconds = 0;            // forward and backward of a micro-batch
  std::int64_t state = 0;        // bytes of values, gradients and optimiser state
  std::int64_t activations = 0;  // bytes that a micro-batch keeps from forward to backward
};

// Layers of the same kind cost the same; differences between their measured times are noise. Each
// layer gets the shortest time of its kind. Noise only adds time, so the minimum of many
// measurements is closest to the truth, and closer the more measurements there are. A median would
// suit noise that goes both ways. `kinds` is by layer: equal text for equal layers; "": like no
// other layer.
void share_times(std::vector<LayerCost>& layers, const std::vector<std::string>& kinds);

// Balances time, memory or the number of layers, as `by` says. A stage's memory includes the
// activations of as many micro-batches as the schedule keeps alive there. Throws InvalidArgument if
// there are fewer layers than stages.
std::vector<StageLayers> balance(const std::vector<LayerCost>& layers, BalanceBy by,
                                 PipelineOrder schedule, const PipelineShape& shape);

// Parses stage sizes as a user writes them, "2,3,3": layers per stage, in total all layers.
std::vector<StageLayers> stages_of(const std::string& sizes, int layers,
                                   const PipelineShape& shape);
std::string stages_text(const std::vector<StageLayers>& stages);  // the inverse

// The cost of every stage, in the unit of `by`. The imbalance is how much the most expensive rank
// exceeds the mean of all ranks: 0.25 is a quarter.
std::vector<double> stage_costs(const std::vector<StageLayers>& stages,
                                const std::vector<LayerCost>& layers, BalanceBy by,
                                PipelineOrder schedule, const PipelineShape& shape);
double imbalance(const std::vector<double>& stage_costs, const PipelineShape& shape);

// The rank that has each layer, by layer.
std::vector<int> layer_owners(const std::vector<StageLayers>& stages, const PipelineShape& shape);

}  // namespace echelon
