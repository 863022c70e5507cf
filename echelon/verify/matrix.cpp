#include "echelon/verify/matrix.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "echelon/comm/mesh.h"
#include "echelon/verify/model_forms.h"

namespace echelon {
namespace {

constexpr int blocks = 6, layers = blocks + 2;

using namespace matrix;

const std::vector<MeshShape>& shapes() {
  static const std::vector<MeshShape> all = [] {
    std::vector<MeshShape> some;
    for (int world = 1; world <= largest_world; ++world)
      for (int pipeline = 1; pipeline <= world; ++pipeline)
        for (int data = 1; pipeline * data <= world; ++data)
          if (world % (pipeline * data) == 0)
            some.push_back({.pipeline = pipeline, .data = data, .tensor = world / pipeline / data});
    return some;
  }();
  return all;
}

const std::string& value(const MatrixChoice& choice, Factor factor) {
  return matrix_factors()[factor].values[std::size_t(choice[factor])];
}

// A pipeline has as many as ranks or twice as many, so that every schedule is possible.
int pieces_of(const MatrixChoice& choice) {
  const int ranks = shape_of(choice).pipeline;
  const std::array pieces = {1, ranks > 1 ? ranks : 2, ranks > 1 ? 2 * ranks : 3};
  return pieces[std::size_t(choice[micro_batches])];
}

int chunks_of(const MatrixChoice& choice) {
  return value(choice, schedule) == "interleaved" ? layers / shape_of(choice).pipeline : 1;
}

}  // namespace

MeshShape shape_of(const MatrixChoice& choice) { return shapes()[std::size_t(choice[mesh])]; }

const std::vector<MatrixFactor>& matrix_factors() {
  static const std::vector<MatrixFactor> factors = [] {
    std::vector<std::string> meshes;
    for (const auto& shape : shapes())
      meshes.push_back(fmt::format("{}x{}x{}", shape.pipeline, shape.data, shape.tensor));
    std::vector<std::string> models;
    for (const auto& form : model_forms()) models.emplace_back(form.name);
    return std::vector<MatrixFactor>{
        {"mesh", meshes},
        {"parallel.zero", {"0", "1", "2", "3"}},
        {"pipeline.schedule", {"none", "gpipe", "1f1b", "interleaved", "zero-bubble"}},
        {"model.recompute", {"none", "selective", "full"}},
        {"train.precision", {"fp64", "bf16", "fp16"}},
        {"train.reduce", {"auto", "fp32"}},
        {"parallel.sequence", {"false", "true"}},
        {"model.tied", {"true", "false"}},
        {"optim.name", {"adamw", "sgd", "lars", "lamb"}},
        {"optim.clip", {"0", "0.01"}},
        {"train.micro_batches", {"one", "some", "more"}},
        {"model.dropout", {"0", "0.1"}},
        {"zero.scatter", {"auto", "step", "micro_batch"}},
        {"zero.offload", {"none", "host", "disk"}},
        {"model.family", models},
        {"model.lora.rank", {"0", "2"}}};
  }();
  return factors;
}

bool can_go_together(const MatrixChoice& choice) {
  const auto open = [&](Factor factor) { return choice[factor] < 0; };
  const auto is = [&](Factor factor, int which) { return choice[factor] == which; };
  const auto more = [&](Factor factor) { return choice[factor] > 0; };  // not the first value
  if (!open(mesh)) {
    const MeshShape shape = shape_of(choice);
    const int p = shape.pipeline, d = shape.data, t = shape.tensor;
    if (!open(schedule) && (p > 1) != more(schedule)) return false;
    if (more(schedule) && value(choice, schedule) == "interleaved" && 2 * p > layers) return false;
    if (more(sequence) && t == 1) return false;
    // A single owner only makes sense with offload.
    if (more(zero) && d == 1 && is(offload, 0)) return false;
  }
  if (more(schedule) && value(choice, schedule) == "interleaved" && is(micro_batches, 0))
    return false;
  if (more(offload) && is(zero, 0)) return false;
  // A head over labels has no table to tie.
  if (is(tied, 1) && !open(family) && !form_named(value(choice, family)).loss_over_vocabulary)
    return false;
  if (more(sums) && is(precision, 0)) return false;
  // zero.scatter only has an effect where owners accumulate gradients.
  const bool nothing_adds_up = is(zero, 0) || is(zero, 1) || is(micro_batches, 0);
  if (more(scatter) && nothing_adds_up) return false;
  if (is(scatter, 0) && choice[zero] >= 2 && more(micro_batches)) return false;
  return true;
}

int world_of(const MatrixChoice& choice) { return shape_of(choice).ranks(); }

std::string name_of(const MatrixChoice& choice) {
  const auto is = [&](Factor factor, std::string_view text) {
    return value(choice, factor) == text;
  };
  std::string text = value(choice, mesh);
  const auto add = [&](bool really, const std::string& words) {
    if (really) text += ", " + words;
  };
  add(!is(zero, "0"), "ZeRO " + value(choice, zero));
  add(!is(schedule, "none"), value(choice, schedule));
  add(chunks_of(choice) > 1, fmt::format("{} chunks", chunks_of(choice)));
  add(pieces_of(choice) > 1, fmt::format("{} micro-batches", pieces_of(choice)));
  add(!is(scatter, "auto"), is(scatter, "step") ? "scatter a step" : "scatter a micro-batch");
  add(!is(offload, "none"), "offload " + value(choice, offload));
  add(is(sequence, "true"), "sequence");
  add(true, value(choice, precision));
  add(!is(sums, "auto"), "fp32 sums");
  add(true, value(choice, optimizer));
  add(!is(clip, "0"), "clipping");
  add(!is(recompute, "none"), "recompute " + value(choice, recompute));
  add(!is(dropout, "0"), "dropout");
  add(is(tied, "false"), "untied");
  add(choice[family] > 0, value(choice, family));
  add(!is(lora, "0"), "LoRA");
  return text;
}

JobOptions job_of(const MatrixChoice& choice, const std::string& folder) {
  const MeshShape shape = shape_of(choice);
  const int p = shape.pipeline, d = shape.data, t = shape.tensor;
  const std::int64_t even = largest_world / t * t;  // what divides over the tensor group
  const ModelForm& form = form_named(value(choice, family));
  JobOptions job;
  job.model = {.family = form.family,
               .layers = blocks,
               .width = 4 * even,
               .heads = even,
               .vocab = 33,  // padded for every split
               .context = even,
               .tied = value(choice, tied) == "true",
               .dropout = std::stod(value(choice, dropout)),
               .recompute = from_name<Recompute>(value(choice, recompute))};
  form.shrink(job.model, t);
  if (const auto rank = std::stoll(value(choice, lora)); rank > 0)
    job.model.lora = {.rank = rank, .alpha = 3, .matrices = {"query", "value", "down"}};
  job.train.steps = 4;
  job.train.batch = 24;
  job.train.micro_batches = pieces_of(choice);
  job.train.precision = from_name<Precision>(value(choice, precision));
  job.train.reduce = from_name<ReduceType>(value(choice, sums));
  job.optim.name = from_name<OptimizerKind>(value(choice, optimizer));
  job.optim.clip = std::stod(value(choice, clip));
  job.optim.warmup = 2;
  if (job.optim.name == OptimizerKind::lars) job.optim.rate = 5;  // times optim.trust
  job.parallel.pipeline = p;
  job.parallel.data = d;
  job.parallel.tensor = t;
  job.parallel.zero = choice[zero];
  job.parallel.sequence = value(choice, sequence) == "true";
  if (p > 1) job.pipeline.schedule = from_name<PipelineOrder>(value(choice, schedule));
  job.pipeline.chunks = chunks_of(choice);
  job.pipeline.balance = BalanceBy::count;  // the same stages every time
  job.zero.group = 0;                       // one group per layer
  job.zero.scatter = from_name<ScatterOption>(value(choice, scatter));
  job.zero.offload = from_name<Offload>(value(choice, offload));
  if (job.zero.offload == Offload::disk) job.zero.offload_path = folder;
  if (job.zero.offload != Offload::none) job.zero.piece = 0.02;
  job.comm.timeout = 60;
  return job;
}

}  // namespace echelon
