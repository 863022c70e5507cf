#include "echelon/job/evaluate.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/terminal.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/texts.h"
#include "echelon/job/progress.h"
#include "echelon/job/report.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"
#include "echelon/plan/compute_type.h"
#include "echelon/plan/train_device.h"
#include "echelon/train/evaluation.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Ranks wait for the slowest at the end: an evaluation may take long, and a lost rank is noticed
// without a deadline.
constexpr auto whole_evaluation = std::chrono::hours(24);

struct Stopped : std::exception {};

// ---- Data

[[noreturn]] void refuse_own_data(const EvaluateJob& job, const std::string& why) {
  throw InvalidArgument(
      fmt::format("the validation data of {} cannot be told any more: {}; name data with --data",
                  job.run.string(), why));
}

std::string share_or_file(const DataOptions& data) {
  if (!data.validation_source.empty()) return data.validation_source;
  return fmt::format("the validation part of {}", !data.mix.empty() ? "its mixture" : data.source);
}

// The data that the run was trained on. A run without a state (train.save_last=false, or removed to
// save space) has them in its plan.
DataFingerprint data_of(const EvaluateJob& job) {
  if (const fs::path state = job.run / "state.safetensors"; fs::exists(state))
    return fingerprint_of(saved_note(state, "data"));
  const fs::path plan = job.run / "plan.json";
  if (!fs::exists(plan))
    refuse_own_data(job, "it has neither plan.json nor a state, which say what they were");
  const auto all = nlohmann::json::parse(read_file(plan), nullptr, /*allow_exceptions=*/false);
  return all.is_object() && all.contains("data") ? fingerprint_of(all["data"].dump())
                                                 : DataFingerprint{};
}

// The part of the run's data that training did not see. If the files have changed, another part
// would be held out, and the scores would be of samples that the model was trained on.
JobData open_own(const EvaluateJob& job, const JobOptions& options) {
  JobData data;
  try {
    data = open_data(options);
  } catch (const InvalidArgument& error) {
    refuse_own_data(job, error.what());
  } catch (const Corrupt& error) {
    refuse_own_data(job, error.what());
  }
  if (!data.validation) refuse_own_data(job, "there are none");
  data.read_for_digest(Deadline::never());
  const auto how =
      difference(data.fingerprint, options.data.source, data_of(job), job.run.string());
  if (!how.empty()) refuse_own_data(job, how);
  data.training.reset();
  data.description = fmt::format("{}, as in {}", share_or_file(options.data), job.run.string());
  return data;
}

JobData open(const EvaluateJob& job) {
  JobOptions options = job.options;
  options.model.context = job.window;
  if (job.own_data) return open_own(job, options);
  return open_evaluation(options.model.init, options.model, options.data, options.train);
}

std::string describe(const JobData& data, const EvaluateJob& job) {
  const Dataset& samples = *data.validation;
  const auto size = samples.size();
  const bool windows = samples.length(0) == 0;
  if (!windows && !job.own_data) return data.description;
  return fmt::format(
      "{}; {} sample{}{}", data.description, size, size == 1 ? "" : "s",
      windows ? fmt::format(" of {} {}", job.window, data.units.bits_per_byte ? "bytes" : "tokens")
              : std::string());
}

// Otherwise the sum would be of samples of several files.
void require_same(JobData& data, Communicator& ranks) {
  data.read_for_digest(Deadline::never());
  const auto all = gather_texts(ranks, to_json(data.fingerprint), "setup");
  const DataFingerprint first = fingerprint_of(all.front());
  for (std::size_t r = 1; r < all.size(); ++r)
    if (const auto how =
            difference(fingerprint_of(all[r]), fmt::format("rank {}", r), first, "rank 0");
        !how.empty())
      throw InvalidArgument(
          fmt::format("ranks have different data: {}; give every rank the same", how));
}

// ---- The model

void load(Stack& stack, const EvaluateJob& job, Communicator* ranks) {
  const ModelOptions& model = job.options.model;
  stack.allocate(device_of(job.options.train), compute_type(job.options.train), Gradients::no);
  stack.load(read_weights(model.init, model, stack));
  if (!ranks) return;
  for (const auto& parameter : stack.parameters())
    ranks->broadcast(parameter.value, 0, {.tag = "weights", .blocking = true}).wait();
}

// ---- Progress

// A bar on a terminal, if the evaluation takes longer than a moment. Its last state is removed.
class EvaluationBar {
 public:
  EvaluationBar(std::int64_t samples, bool shows)
      : samples_(samples), shows_(shows && !terminal::path().empty()) {}
  ~EvaluationBar() {
    if (drawn_) terminal::clear();
  }
  EvaluationBar(const EvaluationBar&) = delete;
  EvaluationBar& operator=(const EvaluationBar&) = delete;

  void add(std::int64_t samples) {
    done_ = std::min(samples_, done_ + samples);
    const auto now = Clock::now();
    if (!shows_ || now - began_ < std::chrono::milliseconds(300) ||
        now - shown_ < std::chrono::milliseconds(100))
      return;
    shown_ = now;
    drawn_ = true;
    const double seconds = std::chrono::duration<double>(now - began_).count(),
                 speed = static_cast<double>(done_) / seconds;
    const auto digits = fmt::format("{}", samples_).size();
    terminal::draw(bar_line(fmt::format("sample {:>{}}/{}", done_, digits, samples_),
                            {fmt::format("{} samples/s", human_count(speed))},
                            static_cast<double>(done_) / static_cast<double>(samples_),
                            terminal::columns(), terminal::colours()));
  }

 private:
  std::int64_t samples_, done_ = 0;
  bool shows_, drawn_ = false;
  Clock::time_point began_ = Clock::now(), shown_ = {};
};

std::vector<std::string> names_of_labels(const TaskOptions& task) {
  if (!task.label_names.empty()) return task.label_names;
  std::vector<std::string> numbers;
  for (std::int64_t label = 0; label < task.labels; ++label)
    numbers.push_back(std::to_string(label));
  return numbers;
}

std::vector<std::vector<std::int64_t>> rows_of(const at::Tensor& counts) {
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t i = 0; i < counts.size(0); ++i) {
    const at::Tensor row = counts[i].to(at::kLong).contiguous();
    rows.emplace_back(row.data_ptr<std::int64_t>(), row.data_ptr<std::int64_t>() + row.numel());
  }
  return rows;
}

}  // namespace

std::optional<EvaluateResult> run_evaluation(const EvaluateJob& job, Communicator* ranks,
                                             const std::atomic<bool>& stop,
                                             const std::function<void()>& begins) {
  const JobOptions& options = job.options;
  if (options.train.threads > 0) at::set_num_threads(static_cast<int>(options.train.threads));
  const at::Device device = device_of(options.train);
  JobData data = open(job);
  if (ranks) require_same(data, *ranks);
  const Dataset& samples = *data.validation;
  Stack stack = family_of(options.model).build(options.model);
  load(stack, job, ranks);
  begins();

  const int size = ranks ? ranks->size() : 1, rank = ranks ? ranks->rank() : 0;
  EvaluationPart part{.samples = evaluation_order(samples, samples.size()),
                      .at_once = options.train.batch,
                      .parts = size,
                      .index = rank};
  part.read = [&](std::span<const std::int64_t> indices) {
    if (stop.load()) throw Stopped();
    return batch_of(samples, indices, options.train.pad_to).to(device, stack.type());
  };
  EvaluationBar bar(samples.size(), rank == 0);
  part.compute = [&](const Batch& batch, const Observe& observe) {
    const at::Tensor loss = stack.infer(batch, observe);
    bar.add(options.train.batch * size);
    return loss;
  };
  if (ranks)
    part.sum = [&](const at::Tensor& sums) {
      const at::Tensor there = sums.to(ranks->device());
      ranks->all_reduce(there, ReduceOp::sum, {.tag = "evaluation", .timeout = whole_evaluation})
          .wait();
      sums.copy_(there);
    };
  const auto began = Clock::now();
  Evaluation found;
  try {
    found = evaluate(part, metrics_of(options.model));
  } catch (const Stopped&) {
    return {};
  }

  EvaluateResult result{
      .loss = found.loss,
      .scores = scores_of({.loss = found.loss, .scores = found.scores}, data.units),
      .samples = found.samples,
      .parameters = stack.parameter_count(),
      .ranks = size,
      .data = describe(data, job),
      .counts = data.units.counts,
      .seconds = std::chrono::duration<double>(Clock::now() - began).count()};
  if (task_of(options.model) == ModelTask::classify) {
    result.confusion = rows_of(found.counts.front());
    result.labels = names_of_labels(options.model.task);
  }
  return result;
}

}  // namespace echelon
