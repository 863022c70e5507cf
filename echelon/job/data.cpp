#include "echelon/job/data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numbers>
#include <span>
#include <string_view>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/data/mixture.h"
#include "echelon/data/random_sentences.h"
#include "echelon/job/resolve.h"
#include "echelon/job/token_data.h"
#include "echelon/launch/environment.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"
#include "echelon/net/host.h"

namespace echelon {
namespace {

constexpr std::string_view purpose = " to train on";

std::shared_ptr<const Dataset> random_data(const ModelOptions& model, std::uint64_t seed) {
  switch (task_of(model)) {
    case ModelTask::classify:
      return std::make_shared<RandomSentences>(model.vocab, model.context, seed,
                                               RandomSentences::Goal{.labels = model.task.labels});
    case ModelTask::mlm:
      return std::make_shared<RandomSentences>(model.vocab, model.context, seed,
                                               RandomSentences::Goal{.masked = model.task.mask});
    default:
      return std::make_shared<RandomTokens>(model.vocab, model.context, seed);
  }
}

JobData open_random(const JobOptions& options) {
  JobData data;
  data.training = random_data(options.model, static_cast<std::uint64_t>(options.train.seed));
  data.description = "random tokens";
  data.fingerprint.source = options.data.source;
  data.fingerprint.tokeniser = "random";
  data.fingerprint.digest = data.fingerprint.sample =
      hexadecimal({static_cast<std::uint64_t>(options.train.seed),
                   static_cast<std::uint64_t>(options.model.vocab)});
  return data;
}

double share_to_validate(const JobOptions& options) {
  return options.train.validate_every > 0 ? options.data.validation : 0;
}

JobData open_bytes(const JobOptions& options) {
  JobData data;
  const auto length = options.model.context;
  if (options.model.vocab < 256)
    throw InvalidArgument(fmt::format("model.vocab = {} is too small for text: its bytes need 256",
                                      options.model.vocab));
  const std::string& own = options.data.validation_source;
  data.text = open_text(options.data.source, own.empty() ? share_to_validate(options) : 0, length);
  if (!own.empty() && options.train.validate_every > 0)
    data.text.validation = open_text(own, 0, length).training;
  const TextSplit& split = data.text;
  data.fingerprint = split.fingerprint();
  data.fingerprint.source = options.data.source;
  data.units = {.bits_per_byte = true, .bytes_per_token = 1};
  data.training = std::make_shared<TextWindows>(split.training, length);
  data.description =
      fmt::format("{}: {}{}", split.description,
                  human_bytes(static_cast<std::uint64_t>(split.training->size())), purpose);
  if (split.validation != nullptr) {
    data.validation = std::make_shared<TextWindows>(split.validation, length);
    data.description += fmt::format(
        ", {} to validate", human_bytes(static_cast<std::uint64_t>(split.validation->size())));
  }
  return data;
}

int reading_threads(const TrainOptions& train) {
  if (train.threads > 0) return static_cast<int>(train.threads);
  return std::max(1, cores() / std::max(1, read_environment().local_world));
}

std::shared_ptr<const Tokenizer> open_tokenizer(const DataOptions& data) {
  if (data.tokenizer.empty()) return nullptr;
  return std::make_shared<const Tokenizer>(Tokenizer::open(data.tokenizer));
}

LossUnits units_of(const ModelOptions& model, const TokenPart& validation) {
  const ModelTask task = task_of(model);
  LossUnits units{.perplexity = task != ModelTask::classify};
  if (task == ModelTask::classify) units.counts = "samples";
  if (task == ModelTask::mlm) units.counts = "masked tokens";
  if (validation.tokens > 0)
    units.bytes_per_token =
        static_cast<double>(validation.bytes) / static_cast<double>(validation.tokens);
  return units;
}

JobData open_tokens(const JobOptions& options) {
  JobData data;
  data.tokenizer = open_tokenizer(options.data);
  if (data.tokenizer) require_vocabulary(*data.tokenizer, options);
  const TokenReader reader{options.model, options.data, data.tokenizer,
                           static_cast<std::uint64_t>(options.train.seed),
                           reading_threads(options.train)};
  const double share = share_to_validate(options);
  const SourceKind kind = kind_of(options.data);
  TokenParts parts = kind == SourceKind::records  ? open_records(reader, share)
                     : kind == SourceKind::corpus ? open_corpus_parts(reader, share)
                                                  : open_text_as_tokens(reader, share);
  if (options.train.validate_every == 0) parts.validation = {};
  data.training = parts.training.data;
  data.validation = parts.validation.data;
  data.units = units_of(options.model, parts.validation.data ? parts.validation : parts.training);
  data.description =
      fmt::format("{}: {}{}", options.data.source, parts.training.description, purpose);
  if (data.validation)
    data.description += fmt::format(", {} to validate", parts.validation.description);
  data.fingerprint.source = options.data.source;
  data.fingerprint.tokeniser = fingerprint_name(*data.tokenizer);
  data.fingerprint.files = parts.files;
  data.fingerprint.training = std::int64_t(parts.training.bytes);
  data.fingerprint.validation = std::int64_t(parts.validation.bytes);
  data.fingerprint.sample = data.fingerprint.digest =
      hexadecimal({parts.training.digest, parts.validation.digest});
  return data;
}

// The labels of the head in a folder; empty: it has no such head, or is gone, as it may be by the
// time that a run is resumed.
std::optional<TaskOptions> head_in(const std::string& folder) try {
  const ModelOptions model = read_model_options(folder);
  return task_of(model) == ModelTask::classify ? std::optional(model.task) : std::nullopt;
} catch (const Error&) {
  return {};
}

// A head that was trained with labels without names gets names from the data, which are numbered in
// the order of their bytes. The head may have learnt another order, so it is shown.
std::string meaning_of_labels(const ModelOptions& model) {
  const auto& names = model.task.label_names;
  if (model.init.empty() || task_of(model) != ModelTask::classify || are_made_up(names)) return {};
  const auto head = head_in(model.init);
  if (!head || !are_made_up(head->label_names)) return {};
  constexpr std::size_t shown = 10;
  std::vector<std::string> meanings;
  for (std::size_t i = 0; i < std::min(names.size(), shown); ++i)
    meanings.push_back(fmt::format("{} is {}", i, names[i]));
  return fmt::format("; the head in {} has labels without names: {}{} (task.label_names)",
                     model.init, fmt::join(meanings, ", "),
                     names.size() > shown ? " and so on" : "");
}

JobData open_source(const JobOptions& options) {
  const ModelTask task = task_of(options.model);
  const SourceKind kind = kind_of(options.data);
  if (kind == SourceKind::random) return open_random(options);
  require_readable(options);
  const bool as_tokens =
      kind == SourceKind::records || task != ModelTask::causal || !options.data.tokenizer.empty();
  return as_tokens ? open_tokens(options) : open_bytes(options);
}

// "code/=7"
std::pair<std::string, std::int64_t> weighted(const std::string& text) {
  const auto equals = text.rfind('=');
  std::int64_t weight = 0;
  if (equals != std::string::npos && equals > 0) {
    const char* const end = text.data() + text.size();
    const auto [rest, failed] = std::from_chars(text.data() + equals + 1, end, weight);
    if (failed != std::errc() || rest != end) weight = 0;
  }
  if (weight < 1)
    throw InvalidArgument(fmt::format(
        "data.mix has \"{}\"; each entry is a source and its weight, an integer from 1 on, as in "
        "[\"code/=7\", \"prose/=2\"]",
        text));
  return {text.substr(0, equals), weight};
}

// Every source is opened as if it were alone. All that differs from one source is the mixture of
// their datasets.
JobData open_mix(const JobOptions& options) {
  JobData all;
  std::vector<Mixture::Source> training, validation;
  std::string digests;
  for (const DataOptions& source : sources_of(options.data)) {
    const std::string& entry = options.data.mix[training.size()];
    const std::int64_t weight = weighted(entry).second;
    JobOptions one = options;
    one.data = source;
    JobData part = open_source(one);
    part.read_for_digest(Deadline::never());
    training.push_back({part.training, weight});
    if (part.validation) validation.push_back({part.validation, weight});
    digests += fmt::format("{} {};", part.fingerprint.digest, weight);
    DataFingerprint& sum = all.fingerprint;
    sum.tokeniser = part.fingerprint.tokeniser;
    sum.source += (sum.source.empty() ? "" : " ") + entry;
    sum.files += part.fingerprint.files;
    sum.training += part.fingerprint.training;
    sum.validation += part.fingerprint.validation;
    all.description +=
        fmt::format("{}{} x {}", all.description.empty() ? "" : "; ", weight, part.description);
    all.units = part.units;
    all.tokenizer = part.tokenizer;
  }
  if (!all.units.bits_per_byte) all.units.bytes_per_token = 0;
  all.fingerprint.sample = all.fingerprint.digest =
      hexadecimal({checksum(std::as_bytes(std::span(digests)))});
  all.training = std::make_shared<Mixture>(std::move(training));
  if (!validation.empty()) all.validation = std::make_shared<Mixture>(std::move(validation));
  return all;
}

}  // namespace

std::optional<double> LossUnits::validation_bits(double loss) const {
  if (bytes_per_token <= 0) return {};
  return loss / std::numbers::ln2 / bytes_per_token;
}

std::vector<DataOptions> sources_of(const DataOptions& data) {
  if (data.mix.empty()) return {data};
  std::vector<DataOptions> sources;
  for (const std::string& entry : data.mix) {
    DataOptions& one = sources.emplace_back(data);
    one.mix.clear();
    one.source = weighted(entry).first;
  }
  return sources;
}

bool tokens_are_bytes(const DataOptions& data) {
  return data.tokenizer.empty() && data.source != "random";
}

JobData open_data(const JobOptions& options) {
  JobData data =
      kind_of(options.data) == SourceKind::mix ? open_mix(options) : open_source(options);
  data.description += meaning_of_labels(options.model);
  return data;
}

JobData open_evaluation(const std::filesystem::path& folder, const ModelOptions& model,
                        const DataOptions& data, const TrainOptions& train) {
  JobOptions options;
  options.model = model;
  options.data = data;
  options.train = train;
  options.data.validation_source.clear();
  options.train.validate_every = 0;  // the whole source is one part
  if (options.data.tokenizer.empty()) options.data.tokenizer = tokenizer_beside(folder);
  if (options.data.tokenizer == "bytes") options.data.tokenizer.clear();
  JobData opened = open_data(options);
  if (opened.description.ends_with(purpose))
    opened.description.resize(opened.description.size() - purpose.size());
  std::swap(opened.training, opened.validation);
  std::swap(opened.text.training, opened.text.validation);
  std::swap(opened.fingerprint.training, opened.fingerprint.validation);
  return opened;
}

Metrics metrics_of(const ModelOptions& model) {
  switch (task_of(model)) {
    case ModelTask::classify:
      return {classification_metric(model.task.labels)};
    case ModelTask::mlm:
      return {token_metric()};
    default:
      return {};
  }
}

bool JobData::read_for_digest(const Deadline& until) {
  if (!fingerprint.digest.empty()) return true;
  if (!text.read_for_digest(until)) return false;
  fingerprint.digest = text.digest();
  return true;
}

}  // namespace echelon
