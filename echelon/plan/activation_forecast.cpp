#include "echelon/plan/activation_forecast.h"

#include <algorithm>
#include <vector>

#include "echelon/models/family.h"
#include "echelon/plan/compute_type.h"
#include "echelon/step/walk.h"

namespace echelon {
namespace {

// The most that layers and messages hold at once. `message` is the size of the tensor between two
// layers; `while_forward`, by layer, what one without a backward holds while it runs.
std::uint64_t most_alive(const StepOrder& step, const std::vector<LayerActivations>& layers,
                         const std::vector<std::int64_t>& while_forward, std::uint64_t message) {
  StepCosts costs;
  for (std::size_t l = 0; l < layers.size(); ++l)
    costs.layers.push_back(
        step.shape.goes_back(int(l))
            ? StepCosts::Layer{.kept = std::int64_t(layers[l].kept),
                               .deferred = std::int64_t(layers[l].put_off),
                               .forward_workspace = std::int64_t(layers[l].forward),
                               .backward_workspace = std::int64_t(layers[l].backward)}
            : StepCosts::Layer{.forward_workspace = while_forward[l]});
  costs.boundaries.assign(layers.size(), {.bytes = std::int64_t(message)});
  return std::uint64_t(walk(step.computation, costs).activations.peak);
}

// A layer that keeps nothing still has all its tensors until its forward ends: those that it would
// keep without any recompute.
std::vector<std::int64_t> forward_only(ModelOptions model, const ActivationShape& shape) {
  model.recompute = Recompute::none;
  std::vector<std::int64_t> bytes;
  for (const LayerActivations& layer : family_of(model).activations(model, shape))
    bytes.push_back(std::int64_t(layer.kept + layer.forward));
  return bytes;
}

}  // namespace

bool splits_rows(const PlanOptions& options) {
  const auto tokens = options.sample_tokens > 0 ? options.sample_tokens : options.model.context;
  return options.parallel.sequence && tokens % options.parallel.tensor == 0;
}

std::uint64_t activation_bytes(const PlanOptions& options, const StepOrder& step, int workers) {
  const auto& model = options.model;
  const auto samples = (options.train.batch + workers * options.train.micro_batches - 1) /
                       (workers * options.train.micro_batches);
  const ActivationShape shape{
      .tokens = std::uint64_t(samples * model.context),
      .type = compute_type(options.train),
      .tensor = std::uint64_t(options.parallel.tensor),
      .rows_are_split = options.parallel.tensor > 1 && splits_rows(options),
      .cuda = options.train.device == DeviceKind::cuda,
  };
  const std::uint64_t stream = stream_bytes(model, shape);
  // A gradient and its masked copy. On a GPU, masks are computed with integers, 16 Mi elements at a
  // time.
  std::uint64_t masks = 0;
  if (model.dropout > 0)
    masks =
        stream + (shape.cuda ? std::min<std::uint64_t>(stream / shape.element(), 1 << 24) * 28 : 0);
  return masks + 8 * shape.tokens +
         most_alive(step, family_of(model).activations(model, shape), forward_only(model, shape),
                    stream / shape.by_rows());
}

}  // namespace echelon
