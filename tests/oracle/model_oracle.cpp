// What Echelon computes from given weights and a given batch, for comparison with what others
// compute.
//
//   model_oracle FOLDER BATCH PRECISION STEPS OUTPUT [KEY=VALUE…]
//
// FOLDER holds config.json and model.safetensors, or an adapter of such a folder; then only the
// adapter's tensors are trained and put out. BATCH is a safetensors file with "input_ids",
// "labels" and perhaps other tensors that models know ("mask", "positions", "token_types"), all
// int64. Labels are next tokens or the words to predict, [samples, tokens], where -100 means that
// there is none, or one for each sample. PRECISION is fp64, fp32, bf16 or fp16. KEY is
// micro_batches, loss_scale, scale_growth (fp16) or one of optim's (optim.rate=1e-3); the rate is
// the same in every step.
//
// OUTPUT then holds "logits" and "loss" of the given weights, "grad/NAME" for every tensor of the
// folder before any clipping (in fp16 times the loss scale), and, from the same weights, "losses"
// of STEPS steps on this one batch and "value/NAME" after them; in fp16 also "scales" and "skipped"
// of the steps.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/models/family.h"
#include "echelon/models/lora.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/optim/master_update.h"
#include "echelon/plan/compute_type.h"
#include "echelon/step/executor.h"
#include "echelon/step/table.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

struct OracleOptions {
  std::int64_t micro_batches = 1;
  double loss_scale = 65536;
  std::int64_t scale_growth = 2000;
  OptimOptions optim;

  void fields(Fields& f) {
    f.add("micro_batches", micro_batches, "pieces of the batch", {.minimum = 1});
    f.add("loss_scale", loss_scale, "fp16: the first", {.minimum = 1});
    f.add("scale_growth", scale_growth, "fp16: good steps until it doubles", {.minimum = 1});
    f.section("optim", optim);
  }
};

Batch read_batch(const safetensors::Reader& reader) {
  Batch batch;
  for (const auto& entry : reader.header().entries) {
    const at::Tensor tensor = tensor_of(reader, entry);
    if (entry.name == "input_ids")
      batch.input = tensor;
    else if (entry.name == "labels")
      batch.target = tensor;
    else
      batch.more.emplace_back(entry.name, tensor);
  }
  const at::Tensor there = batch.target.ne(-100);
  if (!there.all().item<bool>()) batch.targets = there.sum(1).to(at::kDouble);
  return batch;
}

// What a run of steps leaves behind, as copies.
struct Outcome {
  std::vector<at::Tensor> losses, scales, skipped;
  std::vector<std::pair<std::string, at::Tensor>> grads, values;
};

Outcome run_steps(const std::filesystem::path& folder, at::ScalarType type, const Batch& batch,
                  std::int64_t steps, const OracleOptions& options, const OptimOptions& optim) {
  const ModelOptions model = read_model_options(folder);
  Stack stack = family_of(model).build(model);
  stack.allocate(at::kCPU, type, Gradients::yes);
  std::optional<LossScale::Setup> scaling;
  if (type == at::kHalf) scaling = {options.loss_scale, options.scale_growth};
  MasterUpdate update(stack, optim, scaling);
  update.load(read_weights(folder, model, stack));
  const int pieces = static_cast<int>(options.micro_batches);
  Executor executor(stack, &update, one_process(stack.size(), pieces), {stack.size(), pieces, {}});
  update.rate().fill_(optim.rate);

  Outcome outcome;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (scaling) outcome.scales.push_back(update.loss_scale()->scale().clone());
    const at::Tensor divisor = batch.targets.defined() ? batch.targets.sum() : at::Tensor();
    outcome.losses.push_back(executor.run(batch, 1, 0, divisor).clone());
    if (scaling) outcome.skipped.push_back(update.skipped().clone());
  }
  for (const auto& parameter : stack.parameters()) {
    if (model.lora.rank > 0) {
      if (!parameter.trainable) continue;
      for (const auto& part : adapter_parts(model, parameter)) {
        outcome.grads.emplace_back(part.name, part.of(parameter.grad).contiguous().clone());
        outcome.values.emplace_back(part.name, part.of(parameter.value).contiguous().clone());
      }
      continue;
    }
    for (const auto& part : family_of(model).weights(model, parameter)) {
      const auto there = [&](const at::Tensor& whole) {
        return (part.view ? part.view(whole) : whole).reshape(part.shape).clone();
      };
      outcome.grads.emplace_back(part.name, there(parameter.grad));
      outcome.values.emplace_back(part.name, there(parameter.value));
    }
  }
  return outcome;
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 5) {
    throw InvalidArgument("usage: model_oracle FOLDER BATCH PRECISION STEPS OUTPUT [KEY=VALUE…]");
  }
  const std::filesystem::path folder = arguments[0];
  const safetensors::Reader reader(arguments[1]);
  const Batch batch = read_batch(reader);
  const at::ScalarType type = compute_type({.precision = from_name<Precision>(arguments[2])});
  const std::int64_t steps = std::stoll(arguments[3]);
  OracleOptions options;
  const Fields fields = fields_of(options);
  for (std::size_t i = 5; i < arguments.size(); ++i) set_option(fields, arguments[i]);

  std::vector<NamedTensor> out;
  const auto keep = [&](std::string name, const at::Tensor& tensor) {
    out.push_back(
        {std::move(name), tensor.sizes().vec(), tensor.scalar_type(), [tensor] { return tensor; }});
  };
  {
    const ModelOptions model = read_model_options(folder);
    Stack stack = family_of(model).build(model);
    stack.allocate(at::kCPU, type, Gradients::no);
    stack.load(read_weights(folder, model, stack));
    Batch without_labels = batch;
    without_labels.target.reset();
    without_labels.targets.reset();
    keep("logits", stack.infer(without_labels));
  }
  // Clipping may scale the gradients where they lie.
  OptimOptions unclipped = options.optim;
  unclipped.clip = 0;
  const Outcome first = run_steps(folder, type, batch, 1, options, unclipped);
  keep("loss", first.losses.front());
  for (const auto& [name, grad] : first.grads) keep("grad/" + name, grad);
  if (steps > 0) {
    const Outcome last = run_steps(folder, type, batch, steps, options, options.optim);
    keep("losses", at::stack(last.losses));
    if (!last.scales.empty()) {
      keep("scales", at::stack(last.scales));
      keep("skipped", at::stack(last.skipped));
    }
    for (const auto& [name, value] : last.values) keep("value/" + name, value);
  }
  write_tensors(arguments[4], out, {});
}

}  // namespace
}  // namespace echelon

int main(int argc, char** argv) {
  at::NoGradGuard no_grad;
  try {
    echelon::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_oracle: {}\n", error.what());
    return 1;
  }
  return 0;
}
