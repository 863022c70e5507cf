#include "echelon/job/report.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <tuple>

#include "echelon/base/bytes.h"
#include "echelon/base/log.h"
#include "echelon/base/median.h"
#include "echelon/base/wrapped.h"
#include "echelon/comm/texts.h"
#include "echelon/data/xz.h"
#include "echelon/job/best_validation.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/attention.h"
#include "echelon/nn/generate.h"
#include "echelon/nn/product.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/parallel/pipeline/balance.h"
#include "echelon/plan/compute_type.h"
#include "echelon/step/device.h"

namespace echelon {
namespace {

using nlohmann::ordered_json;
constexpr double mib = 1024.0 * 1024.0;

}  // namespace

std::string precision_name(at::ScalarType type) {
  return type == at::kDouble     ? "fp64"
         : type == at::kBFloat16 ? "bf16"
         : type == at::kHalf     ? "fp16"
                                 : "fp32";
}

void JobOutcome::add(const StepReport& step) {
  step_seconds.push_back(step.seconds);
  tokens_a_step = step.targets;
  final_loss = step.loss;
  loss_scale = step.loss_scale;
  skipped += step.skipped;
  for (const auto age : step.ages) ++ages[age];
}

ordered_json summary_of(const JobOptions& options, const JobOutcome& outcome,
                        std::int64_t parameters, const LossUnits& units, std::uint64_t start,
                        std::uint64_t peak, const RunDirectory& run) {
  // The first steps warm up; with few steps they are all there is.
  const auto skip =
      static_cast<std::ptrdiff_t>(std::min<std::size_t>(5, outcome.step_seconds.size() / 2));
  const double step = median({outcome.step_seconds.begin() + skip, outcome.step_seconds.end()});
  ordered_json summary = {
      {"params", parameters},
      {"tokens_per_s", step > 0 ? static_cast<double>(outcome.tokens_a_step) / step : 0.0},
      {"step_ms", step * 1e3},
      {"start_mib", static_cast<double>(start) / mib},
      {"peak_mib", static_cast<double>(peak) / mib},
      {"final_loss", outcome.final_loss},
      {"val_bits_per_byte", nullptr},
      {"device", name_of(options.train.device)},
      {"threads", at::get_num_threads()},
      {"precision", precision_name(compute_type(options.train))},
      {"run", run.path().string()},
  };
  if (outcome.validated && !units.bits_per_byte) summary["val_loss"] = outcome.validation_loss;
  if (outcome.validated)
    for (const auto& [name, score] : outcome.scores) summary["val_" + name] = score;
  if (outcome.best)
    summary["best"] = {{"step", outcome.best->step},
                       {"score", outcome.best_score},
                       {"value", outcome.best->score}};
  if (!outcome.stopped.empty()) summary["stopped"] = outcome.stopped;
  if (options.server.count > 0) summary["lost_workers"] = outcome.lost_workers.size();
  if (outcome.loss_scale != 0) {
    summary["skipped_steps"] = outcome.skipped;
    summary["loss_scale"] = outcome.loss_scale;
  }
  if (options.train.device == DeviceKind::cuda) {
    const auto memory = device_memory();
    summary["device_peak_mib"] = static_cast<double>(memory.peak_reserved) / mib;
    summary["device_peak_allocated_mib"] = static_cast<double>(memory.peak_allocated) / mib;
  }
  return summary;
}

std::string plan_of(const JobOptions& options, const JobData& data, const Trainer& trainer,
                    const Communicator* ranks) {
  auto buckets = ordered_json::array();
  for (const auto& bucket : trainer.buckets())
    buckets.push_back({{"begin", bucket.begin}, {"end", bucket.end}, {"layer", bucket.layer}});
  const auto& layout = trainer.layout();
  return ordered_json(
             {{"world", ranks ? ranks->size() : 1},
              {"data", ordered_json::parse(to_json(data.fingerprint))},
              {"mesh",
               {{"pipeline", layout.mesh.shape.pipeline},
                {"data", layout.mesh.shape.data},
                {"tensor", layout.mesh.shape.tensor}}},
              {"pipeline",
               {{"schedule",
                 layout.pipeline.ranks > 1 ? name_of(options.pipeline.schedule) : "none"},
                {"chunks", layout.pipeline.chunks},
                {"stages", stages_text(layout.stages)}}},
              {"schedule", options.server.count > 0 ? "parameter servers"
                           : options.parallel.zero > 0 && ranks
                               ? fmt::format("ZeRO stage {}", options.parallel.zero)
                           : layout.splits_model() ? "mesh"
                           : ranks                 ? "data parallel"
                                                   : "one process"},
              {"communication", ordered_json::parse(ranks ? ranks->plan() : "{}")},
              {"buckets", buckets},
              {"micro_batches", options.train.micro_batches},
              {"threads", at::get_num_threads()},
              {"precision", precision_name(compute_type(options.train))},
              {"gradient_sums",
               sums_in_fp32(options.train) ? "fp32" : precision_name(compute_type(options.train))},
              {"attention",
               attention_kernel(options.train.device == DeviceKind::cuda ? at::kCUDA : at::kCPU,
                                compute_type(options.train),
                                options.model.width / options.model.heads)},
              {"products", options.train.device == DeviceKind::cpu ? product_library() : "cuBLAS"},
              {"graph", trainer.uses_graph()}})
      .dump(2);
}

std::string report_line(std::string_view label, std::string_view text) {
  constexpr int indent = 12;
  return wrapped(fmt::format("{:{}}", label, indent), text, indent);
}

std::string model_text(const JobOptions& options, std::int64_t parameters, int ranks) {
  const Family& family = family_of(options.model);
  const int threads = at::get_num_threads();
  return fmt::format("{} of {} parameters: {}; {} on {}{}", family.title,
                     human_count(static_cast<double>(parameters)), family.describe(options.model),
                     precision_name(compute_type(options.train)),
                     ranks > 1 ? fmt::format("{} ranks, each on ", ranks) : "",
                     options.train.device == DeviceKind::cuda
                         ? std::string("a GPU")
                         : fmt::format("{} CPU thread{}", threads, threads == 1 ? "" : "s"));
}

std::string new_heads_text(const ModelOptions& model, const Stack& stack) {
  if (model.init.empty()) return {};
  const auto heads = missing_heads(model.init, model, stack);
  if (heads.empty()) return {};
  return fmt::format("{} has no {}: {} from train.seed", model.init, fmt::join(heads, " and no "),
                     heads.size() == 1 ? "a new one" : "new ones");
}

namespace {

std::string whole_rows_text(const JobOptions& options) {
  const auto padded = options.sample_tokens;
  return padded > 0 && options.model.context % options.parallel.tensor == 0
             ? fmt::format(
                   "not rows of activations, since train.pad_to={} pads samples to "
                   "multiples of {} token{}",
                   options.train.pad_to, padded, padded == 1 ? "" : "s")
             : fmt::format("not rows of activations, since {} tokens do not divide",
                           options.model.context);
}

}  // namespace

std::string layout_text(const JobOptions& options, const Trainer& trainer, const Stack& stack) {
  const auto& layout = trainer.layout();
  if (!layout.splits_model()) return {};
  std::string text = report_line("mesh", draw_mesh(layout.mesh.shape, layout.mesh.hosts));
  if (layout.mesh.shape.tensor > 1)
    text += report_line(
        "tensor",
        fmt::format("{} ranks split matrices, {}", layout.mesh.shape.tensor,
                    stack.tensor_group()->rows_are_split() ? "and rows of activations between them"
                    : options.parallel.sequence
                        ? whole_rows_text(options)
                        : std::string("not rows of activations: parallel.sequence=false")));
  if (layout.pipeline.ranks == 1) return text;
  const auto& [schedule, shape] = std::tie(options.pipeline.schedule, layout.pipeline);
  return text +
         report_line(
             "pipeline",
             fmt::format("{}, {} micro-batch{}: a rank idles {} of a step by formula\n{}",
                         name_of(schedule), shape.micro_batches,
                         shape.micro_batches == 1 ? "" : "es", ideal_idle_text(schedule, shape),
                         layout.description(options.pipeline)));
}

std::string one_micro_batch_warning(PipelineOrder schedule, const PipelineShape& shape,
                                    std::int64_t samples) {
  if (shape.ranks == 1 || shape.micro_batches > 1) return {};
  PipelineShape better = shape;
  better.micro_batches = int(std::min<std::int64_t>(4 * shape.ranks, samples));
  return fmt::format(
      "train.micro_batches = 1: ranks of a pipeline work one at a time, and each idles {} of a "
      "step; {}",
      ideal_idle_text(schedule, shape),
      samples > 1 ? fmt::format("with train.micro_batches={} it would be {}", better.micro_batches,
                                ideal_idle_text(schedule, better))
                  : std::string("set a larger train.batch, and train.micro_batches"));
}

std::string memory_words(const RankMemory& memory) {
  return ordered_json{
      {"tensors", memory.tensors.bytes}, {"start", memory.start}, {"peak", memory.peak}}
      .dump();
}

RankMemory memory_from(const std::string& words, int rank) {
  const auto one = ordered_json::parse(words);
  RankMemory memory{{}, one["start"].get<std::uint64_t>(), one["peak"].get<std::uint64_t>(), rank};
  memory.tensors.bytes = one["tensors"].get<decltype(memory.tensors.bytes)>();
  return memory;
}

std::vector<RankMemory> memory_of_ranks(Communicator* ranks, const MemoryUse& peak,
                                        std::uint64_t start, std::uint64_t peak_process,
                                        bool this_one_alone) {
  const RankMemory mine{peak, start, peak_process};
  if (!ranks || this_one_alone) return {mine};
  std::vector<RankMemory> all;
  for (const auto& text : gather_texts(*ranks, memory_words(mine), "memory"))
    all.push_back(memory_from(text, int(all.size())));
  return all;
}

std::string memory_text(const MemoryForecast& forecast, int ranks,
                        const std::vector<RankMemory>& measured) {
  constexpr std::size_t most = 8;  // rows
  std::string text =
      fmt::format("{}\n{}\n", memory_head(), memory_row(name_of_forecast(ranks), forecast.tensors));
  const auto add = [&](const std::string& label, const RankMemory& rank) {
    text += memory_row(label, rank.tensors) + "\n";
  };
  if (measured.size() <= most) {
    for (const auto& rank : measured)
      add(measured.size() > 1 ? fmt::format("rank {} at its peak", rank.rank)
                              : std::string("at the peak"),
          rank);
    return text;
  }
  const auto less = [](const RankMemory& a, const RankMemory& b) {
    return a.tensors.total() < b.tensors.total();
  };
  const auto [least, greatest] = std::minmax_element(measured.begin(), measured.end(), less);
  add(fmt::format("rank {}, the least", least->rank), *least);
  add(fmt::format("rank {}, the most", greatest->rank), *greatest);
  return text;
}

std::string servers_text(const ServerOptions& servers, int workers) {
  return fmt::format(
      "servers     {} {} {} worker{}, {}{}\n", servers.count,
      servers.place == ServerPlace::separate ? "apart from" : "among", workers,
      workers == 1 ? "" : "s", name_of(servers.mode),
      servers.mode == ServerMode::bounded ? fmt::format(" by {}", servers.staleness) : "");
}

std::string synchronisation_text(const JobOutcome& outcome, const RunDirectory& run) {
  std::string text;
  std::int64_t all = 0;
  for (const auto& [age, count] : outcome.ages) all += count;
  if (all > 0) {
    std::string parts;
    for (const auto& [age, count] : outcome.ages)
      parts += fmt::format("{}{:.1f} % {}", parts.empty() ? "" : ", ",
                           100.0 * double(count) / double(all),
                           age == 0   ? std::string("new")
                           : age == 1 ? std::string("1 update old")
                                      : fmt::format("{} updates old", age));
    text += report_line("gradients", "from servers: " + parts);
  }
  if (outcome.decisions > 0)
    text += report_line("decisions", fmt::format("{} on how to synchronise, in {}",
                                                 outcome.decisions, run.log().string()));
  return text;
}

std::string lost_workers_text(const JobOutcome& outcome, int workers) {
  if (outcome.lost_workers.empty()) return {};
  return report_line("lost", fmt::format("{} of the {} workers that the job began with, or "
                                         "that joined it:\n{}",
                                         outcome.lost_workers.size(), workers,
                                         fmt::join(outcome.lost_workers, "\n")));
}

std::string loss_scale_text(const JobOutcome& outcome) {
  if (outcome.loss_scale == 0) return {};
  return report_line(
      "loss scale",
      fmt::format("{} at the end; {} of {} steps skipped, whose gradients were not finite",
                  outcome.loss_scale, outcome.skipped, outcome.step_seconds.size()));
}

Scores scores_of(const ValidationReport& validation, const LossUnits& units) {
  Scores scores = validation.scores;
  if (units.perplexity) scores.emplace_back("perplexity", std::exp(validation.loss));
  if (const auto bits = units.validation_bits(validation.loss))
    scores.emplace_back("bits_per_byte", *bits);
  return scores;
}

std::string scores_text(double loss, const Scores& scores, const LossUnits& units) {
  if (units.bits_per_byte)
    return fmt::format("{:.3f} bits/byte", units.validation_bits(loss).value_or(0));
  std::string text = fmt::format("loss {:.3f}", loss);
  for (const auto& [name, score] : scores)
    text += name == "perplexity"      ? fmt::format(", {} {:.4g}", name, score)
            : name == "bits_per_byte" ? fmt::format(", {:.3f} bits/byte", score)
                                      : fmt::format(", {} {:.3f}", name, score);
  return text;
}

std::string best_text(const JobOutcome& outcome, const RunDirectory& run, bool kept) {
  std::string text;
  if (!outcome.stopped.empty()) text += report_line("stopped", outcome.stopped);
  if (outcome.best)
    text += report_line(
        "best", fmt::format("{} {:.4f} after step {}{}", outcome.best_score, outcome.best->score,
                            outcome.best->step,
                            kept && is_kept(run.best(), outcome.best_score, *outcome.best)
                                ? fmt::format(": {} has those weights", run.best().string())
                                : ""));
  return text;
}

std::string validation_text(const JobOutcome& outcome, const JobData& data, std::int64_t context) {
  if (!outcome.validated) return {};
  if (!data.text.validation)
    return report_line("validation",
                       fmt::format("{} on {} samples",
                                   scores_text(outcome.validation_loss, outcome.scores, data.units),
                                   data.validation->size()));
  const double bits = outcome.validation_loss / std::numbers::ln2;
  // The bytes that were predicted, and the one before them.
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(data.validation->size() * context) + 1);
  data.text.validation->read(0, bytes);
  const auto packed = xz_size(bytes);
  const std::string yardstick =
      packed ? fmt::format("xz -9 needs {:.3f}",
                           8.0 * static_cast<double>(*packed) / static_cast<double>(bytes.size()))
             : std::string("xz is not built in: liblzma was missing");
  return report_line("validation", fmt::format("{:.3f} bits/byte on {}; {}", bits,
                                               human_bytes(bytes.size()), yardstick));
}

std::string sample_text(Stack& stack, std::int64_t context) {
  const std::string prompt = "def ";
  const std::string text = generate(stack, context, prompt, {.tokens = 320});
  return "sample\n" + sample_lines(prompt + text);
}

std::string sample_lines(std::string_view text) {
  constexpr std::size_t widest = 80 - 4;
  std::string lines, line;
  const auto end_line = [&] {
    lines += "  │ " + line + "\n";
    line.clear();
  };
  for (const char c : text) {
    if (c == '\n' || line.size() == widest) end_line();
    if (c != '\n') line += c >= 32 && c < 127 ? c : c >= 0 && c < 32 ? ' ' : '.';
  }
  end_line();
  return lines;
}

}  // namespace echelon
