#include "echelon/plan/activation_forecast.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "echelon/models/family.h"
#include "echelon/plan/compute_type.h"

namespace echelon {
namespace {

// What has come and not been used, and what was sent and may not have gone, beside what layers
// hold: the most that is alive at once. An output has gone for certain when its gradient is back;
// its memory is looked at when something else is sent. Of gradients no more than two are on their
// way while forwards go on: the next input is only computed after the first was taken. When
// backwards alone are left, each frees more than it sends.
std::uint64_t most_alive(const StepOrder& step, const std::vector<LayerActivations>& layers,
                         std::uint64_t message) {
  using Kind = Action::Kind;
  std::uint64_t alive = 0, most = 0, gone = 0;
  int gradients = 0;
  const auto send = [&] {
    alive += message;
    most = std::max(most, alive);
    alive -= std::exchange(gone, 0);
  };
  for (const auto& action : step.computation) {
    const int l = action.layer;
    const LayerActivations& layer = layers[std::size_t(l)];
    switch (action.kind) {
      case Kind::receive:
      case Kind::receive_grad:
        alive += message;
        break;
      case Kind::forward:
        if (l > 0 && !step.shape.has(l - 1)) alive -= message;  // its input now, which it keeps
        alive += layer.kept;
        most = std::max(most, alive + layer.forward);
        break;
      case Kind::backward:
      case Kind::input:
        if (l + 1 < step.shape.layers && !step.shape.has(l + 1)) {
          alive -= message;
          gone += message;
        }
        most = std::max(most, alive + layer.backward);
        alive -= layer.kept;
        // What is computed again is not put off: it would be alive whole until then.
        if (action.kind == Kind::input && !step.shape.recomputes(l)) alive += layer.put_off;
        break;
      case Kind::weight:
        if (!step.shape.recomputes(l)) alive -= layer.put_off;
        break;
      case Kind::send:
        send();
        break;
      case Kind::send_grad:
        if (++gradients > 2) alive -= message;
        send();
        break;
      default:
        break;
    }
  }
  return most;
}

}  // namespace

bool splits_rows(const PlanOptions& options) {
  return options.parallel.sequence && options.model.context % options.parallel.tensor == 0;
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
  // A gradient and its masked copy; on a GPU, masks are made of integers, 16 Mi at a time.
  std::uint64_t masks = 0;
  if (model.dropout > 0)
    masks =
        stream + (shape.cuda ? std::min<std::uint64_t>(stream / shape.element(), 1 << 24) * 28 : 0);
  return masks + 8 * shape.tokens +
         most_alive(step, family_of(model).activations(model, shape), stream / shape.by_rows());
}

}  // namespace echelon
