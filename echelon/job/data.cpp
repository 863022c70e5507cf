#include "echelon/job/data.h"

#include <fmt/format.h>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/data/random_sentences.h"
#include "echelon/models/family.h"

namespace echelon {

bool tokens_are_bytes(const DataOptions& options) { return options.source != "random"; }

namespace {

std::unique_ptr<const Dataset> random_data(const ModelOptions& model, std::uint64_t seed) {
  switch (task_of(model)) {
    case ModelTask::classify:
      return std::make_unique<RandomSentences>(model.vocab, model.context, seed,
                                               RandomSentences::Goal{.labels = model.task.labels});
    case ModelTask::mlm:
      return std::make_unique<RandomSentences>(model.vocab, model.context, seed,
                                               RandomSentences::Goal{.masked = model.task.mask});
    default:
      return std::make_unique<RandomTokens>(model.vocab, model.context, seed);
  }
}

}  // namespace

JobData open_data(const JobOptions& options) {
  JobData data;
  const auto length = options.model.context;
  if (!tokens_are_bytes(options.data)) {
    data.training = random_data(options.model, static_cast<std::uint64_t>(options.train.seed));
    data.description = "random tokens";
    data.fingerprint.source = options.data.source;
    data.fingerprint.tokeniser = "random";
    data.fingerprint.digest = data.fingerprint.sample =
        hexadecimal({static_cast<std::uint64_t>(options.train.seed),
                     static_cast<std::uint64_t>(options.model.vocab)});
    return data;
  }
  if (task_of(options.model) != ModelTask::causal)
    throw InvalidArgument(
        fmt::format("data.source = {} is text, whose bytes train task.name=causal, not {}: set "
                    "data.source=random or another model.family",
                    options.data.source, name_of(task_of(options.model))));
  if (options.model.vocab < 256) {
    throw InvalidArgument(fmt::format("model.vocab = {} is too small for text: its bytes need 256",
                                      options.model.vocab));
  }
  const bool validate = options.train.validate_every > 0;
  data.text = open_text(options.data.source, validate ? options.data.validation : 0, length);
  const TextSplit& split = data.text;
  data.fingerprint = split.fingerprint();
  data.fingerprint.source = options.data.source;
  data.bytes = true;
  data.training = std::make_unique<TextWindows>(split.training, length);
  data.description = fmt::format("{}: {} to train on", split.description,
                                 human_bytes(static_cast<std::uint64_t>(split.training->size())));
  if (split.validation != nullptr) {
    data.validation = std::make_unique<TextWindows>(split.validation, length);
    data.description += fmt::format(
        ", {} to validate", human_bytes(static_cast<std::uint64_t>(split.validation->size())));
  }
  return data;
}

bool JobData::read_for_digest(const Deadline& until) {
  if (!fingerprint.digest.empty()) return true;
  if (!text.read_for_digest(until)) return false;
  fingerprint.digest = text.digest();
  return true;
}

}  // namespace echelon
