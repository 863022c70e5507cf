#include "echelon/plan/activation_forecast.h"
#include "echelon/plan/compute_type.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace echelon {
namespace {

// What a layer holds of a micro-batch, in bytes.
struct LayerBytes {
  std::uint64_t kept = 0;      // from its forward to its backward
  std::uint64_t put_off = 0;   // from its input part to its weight part
  std::uint64_t forward = 0;   // beside what is kept, while it runs
  std::uint64_t backward = 0;  // likewise, with the gradient that comes in
};

// What has come and not been used, and what was sent and may not have gone, beside what layers
// hold: the most that is alive at once. An output has gone for certain when its gradient is back;
// its memory is looked at when something else is sent. Of gradients no more than two are on their
// way while forwards go on: the next input is only computed after the first was taken. When
// backwards alone are left, each frees more than it sends.
std::uint64_t most_alive(const StepOrder& step, const std::vector<LayerBytes>& layers,
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
    const LayerBytes& layer = layers[std::size_t(l)];
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

// docs/recompute.md has the terms; what a block's backward holds beside them was measured.
std::uint64_t activation_bytes(const PlanOptions& options, const StepOrder& step, int workers) {
  const auto& model = options.model;
  const auto samples = (options.train.batch + workers * options.train.micro_batches - 1) /
                       (workers * options.train.micro_batches);
  const auto tokens = std::uint64_t(samples * model.context);
  const auto element = at::elementSize(compute_type(options.train));
  const auto d = std::uint64_t(model.width), h = std::uint64_t(model.heads),
             vocab = std::uint64_t(model.vocab);
  // Ranks that split matrices have a part of what products give (of 16 d elements of a token 12),
  // and, where they split rows, of the rest too.
  const auto tensor = std::uint64_t(options.parallel.tensor);
  const std::uint64_t by_rows = tensor > 1 && splits_rows(options) ? tensor : 1;
  const std::uint64_t narrow = (4 / by_rows + h / tensor) * std::max<std::uint64_t>(4, element);
  const auto of = [&](std::uint64_t parts, std::uint64_t others) {
    return (parts * d / tensor + others * d / by_rows) * element;
  };
  const std::uint64_t whole = of(12, 4) + narrow;
  const std::uint64_t kept = model.recompute == "full"        ? of(0, 1)
                             : model.recompute == "selective" ? of(8, 2) + narrow
                                                              : whole;
  const std::uint64_t backward = model.recompute == "full" ? whole - of(0, 1) + 5 * d * element
                                 : model.recompute == "selective" ? 9 * d * element
                                                                  : 5 * d * element;
  // The head: its input, the norm's output and the logits' gradient, and a block of rows of
  // logarithms.
  const std::uint64_t part = (vocab + tensor - 1) / tensor;  // of the vocabulary
  const std::uint64_t normed = model.recompute == "selective" ? 0 : d;
  const std::uint64_t a_block = std::min<std::uint64_t>(
      tokens * part * element, options.train.device == "cpu" ? 4 << 20 : 512 << 20);
  // fp16 has that block in fp32; of bf16 a CPU has an fp32 copy, and what it makes of it.
  const std::uint64_t rows = options.train.precision == "fp16" ? 2 * a_block
                             : options.train.precision == "bf16" && options.train.device == "cpu"
                                 ? 4 * a_block
                                 : a_block;
  const std::uint64_t stream = tokens * d * element;  // a gradient that comes in
  std::vector<LayerBytes> layers(std::size_t(step.shape.layers));
  layers.front().backward = stream;
  for (std::size_t l = 1; l + 1 < layers.size(); ++l)
    layers[l] = {.kept = tokens * kept,
                 .put_off = tokens * of(12, 4),
                 .backward = stream + tokens * backward};
  layers.back() = {.kept = tokens * (d + normed + part) * element,
                   .put_off = tokens * (d + part) * element,
                   .forward = rows + tokens * (d - normed) * element,
                   .backward = stream};
  // A gradient and its masked copy; on a GPU, masks are made of integers, 16 Mi at a time.
  std::uint64_t masks = 0;
  if (model.dropout > 0)
    masks =
        tokens * d * element +
        (options.train.device == "cuda" ? std::min<std::uint64_t>(tokens * d, 1 << 24) * 28 : 0);
  return masks + 8 * tokens + most_alive(step, layers, tokens * of(0, 1));
}

}  // namespace echelon
