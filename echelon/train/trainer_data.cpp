// The data of a trainer: the batches of its steps, which are read ahead, and validation.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "echelon/base/error.h"
#include "echelon/train/in_flight.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

constexpr int most_readers = 4;  // threads, of a dataset that several may read

}  // namespace

std::unique_lock<std::mutex> Trainer::reading(const Dataset& data) const {
  return data.concurrent() ? std::unique_lock<std::mutex>() : std::unique_lock(data_mutex_);
}

void Trainer::make_reader() {
  const auto threads = data_.concurrent() ? std::min<std::int64_t>(train_.ahead, most_readers) : 1;
  reader_ = std::make_unique<BatchReader>(
      [this](const BatchReader::Request& request) { return read_batch(request); },
      BatchReader::Options{
          .ahead = train_.ahead, .threads = static_cast<int>(threads), .steps = train_.steps});
}

BatchReader::Prepared Trainer::take_batch(std::int64_t step, std::int64_t begin, std::int64_t end) {
  // Every sample of a stream comes by. It is read whole, so that it does not matter if the places
  // of this rank change after batches were prepared.
  if (!data_.in_sequence()) return reader_->take({step, begin, end});
  auto all = reader_->take({step, 0, train_.batch});
  all.batch = all.batch.narrow(begin, end - begin);
  return all;
}

// Called from several threads.
BatchReader::Prepared Trainer::read_batch(const BatchReader::Request& request) const {
  const auto [step, begin, end] = request;
  const auto lock = reading(data_);
  const auto length = padded_length(data_, sampler_.longest(step), train_.pad_to);
  BatchReader::Prepared prepared{
      padded_batch(data_, sampler_.indices(step, begin, end), length).to(at::kCPU, stack_.type())};
  if (data_.targets(0) > 0)
    for (const auto i : sampler_.indices(step, 0, train_.batch))
      prepared.targets += require_targets(data_, i);
  return prepared;
}

// A number that divides the number of tokens of every sample, as they are padded.
std::int64_t Trainer::tokens_of_samples() const {
  const auto lock = reading(data_);
  if (const auto divisor = length_divisor(data_, train_.pad_to); divisor > 0) return divisor;
  const at::Tensor sample = stack_.inputs_of(data_.get(std::vector<std::int64_t>{0})).front();
  return sample.dim() > 1 ? sample.size(1) : 1;
}

StepTimes Trainer::times_with_data(const StepTimes& times) const {
  StepTimes all = times;
  all.data =
      std::chrono::duration<double>(reader_->waited_until() - reader_->waited_from()).count();
  return all;
}

double Trainer::evaluate(const Dataset& data, std::int64_t samples) {
  return measure(data, samples, is_sharded()).loss;
}

double Trainer::evaluate_together(const Dataset& data, std::int64_t samples) {
  return measure(data, samples).loss;
}

Evaluation Trainer::measure(const Dataset& data, std::int64_t samples) {
  return measure(data, samples, is_sharded() || (ranks_ && !servers_));
}

std::vector<std::string> Trainer::score_names() const {
  std::vector<std::string> names = {"loss"};
  for (const auto& metric : metrics_)
    for (const auto& [name, score] : metric->scores(metric->none())) names.push_back(name);
  return names;
}

Better Trainer::better(std::string_view score) const {
  for (const auto& metric : metrics_)
    if (find_score(metric->scores(metric->none()), score))
      return metric->more_is_better(score) ? Better::more : Better::less;
  return Better::less;
}

// `together`: all ranks take part, and ranks that split a batch split the samples.
Evaluation Trainer::measure(const Dataset& data, std::int64_t samples, bool together) {
  if (samples < 1 || data.size() < 1)
    throw InvalidArgument(
        fmt::format("the mean loss of {} samples of {} is no number: ask for one at least", samples,
                    data.size()));
  const AtWork at_work(*this);
  const PartsInUse stack_parts(stack_);
  // Before the first run, ranks may hold different initial values: the scores would be a mixture.
  if (together && !servers_) begin_alike();
  refresh_values();
  MemoryScope scope(MemoryKind::activations);
  EvaluationPart part{
      .samples =
          [&] {
            const auto lock = reading(data);
            return evaluation_order(data, samples);
          }(),
      // The batch size of a rank's step, which its memory was planned for.
      .at_once = std::max<std::int64_t>(1, train_.batch / train_.micro_batches / batch_parts_),
      .sees_outputs = executor_->shape().has(stack_.size() - 1)};
  part.read = [&](std::span<const std::int64_t> indices) {
    const auto lock = reading(data);
    return batch_of(data, indices, train_.pad_to).to(device_, stack_.type());
  };
  part.compute = [this](const Batch& batch, const Observe& observe) {
    return compute_output(batch, observe);
  };
  if (together) {
    part.parts = layout_.mesh.shape.data;
    part.index = layout_.mesh.place.data;
    part.sum = [this](const at::Tensor& sums) {
      const at::Tensor there = sums.to(device_);
      for (const auto& ranks : {layout_.mesh.pipeline, layout_.mesh.data})
        if (ranks)
          ranks
              ->all_reduce(there, ReduceOp::sum,
                           {.tag = "validation", .timeout = between_steps, .blocking = true})
              .wait();
      sums.copy_(there);
    };
  }
  Evaluation evaluation = echelon::evaluate(part, metrics_);
  in_flight_->last = std::chrono::steady_clock::now();  // not part of the next step's time
  tell(ValidationReport{step_, evaluation.loss, evaluation.samples, evaluation.scores});
  return evaluation;
}

}  // namespace echelon
