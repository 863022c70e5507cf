#include "echelon/job/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <tuple>

#include "echelon/base/error.h"
#include "echelon/data/labels.h"
#include "echelon/data/records/records.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/job/data.h"
#include "echelon/job/token_data.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

Records records_of(const DataOptions& data) {
  return {data.source, Records::Options{.header = data.header}};
}

// The first source that is a corpus, which brings its tokeniser; empty: none is one.
std::string corpus_among(const DataOptions& data) {
  for (const DataOptions& one : sources_of(data))
    if (kind_of(one) == SourceKind::corpus) return one.source;
  return {};
}

// The tokeniser's path; empty: tokens are bytes, or random.
std::string tokenizer_path(const JobOptions& options) {
  const auto& [data, model] = std::tie(options.data, options.model);
  const bool beside = data.tokenizer.empty() || data.tokenizer == "bytes";
  if (kind_of(data) == SourceKind::random) return {};
  if (!beside) return data.tokenizer;
  const std::string corpus = corpus_among(data);
  if (model.init.empty() || (!corpus.empty() && !has_tokenizer(model.init))) return corpus;
  const std::string found = tokenizer_beside(model.init);
  if (data.tokenizer == "bytes" && !found.empty())
    throw InvalidArgument(
        fmt::format("data.tokenizer = bytes, but the weights in {} were trained with the tokeniser "
                    "beside them: leave data.tokenizer out",
                    model.init));
  return found;
}

// Records with labels are there to be classified, if the task is not given and the family can.
void choose_task(JobOptions& options) {
  ModelOptions& model = options.model;
  if (model.task.name != ModelTask::automatic) return;
  const auto of_weights = [&] { return read_model_options(model.init); };
  const Family& family = family_of(model.init.empty() ? model : of_weights());
  if (std::find(family.tasks.begin(), family.tasks.end(), ModelTask::classify) ==
      family.tasks.end())
    return;
  std::vector<std::string> labelled, others;
  for (const DataOptions& one : sources_of(options.data)) {
    const bool has_labels = kind_of(one) == SourceKind::records &&
                            find_column(records_of(one), one.label, usual_label) >= 0;
    (has_labels ? labelled : others).push_back(one.source);
  }
  if (labelled.empty()) return;
  if (!others.empty())
    throw InvalidArgument(fmt::format(
        "data.mix: {} has labels and {} has none: say with task.name which task they are for, or "
        "leave one out",
        labelled.front(), others.front()));
  model.task.name = ModelTask::classify;
}

std::string listed(const Labels& labels) {
  return labels.names().empty() ? fmt::format("0 to {}", labels.count() - 1)
                                : fmt::format("{}", fmt::join(labels.names(), ", "));
}

// Labels that are not known yet, or have no names yet, are those of the data.
void take_labels(JobOptions& options) {
  TaskOptions& task = options.model.task;
  const bool named = !are_made_up(task.label_names);
  if (task.labels > 0 && named) return;
  auto sources = sources_of(options.data);
  std::erase_if(sources, [](const auto& one) { return kind_of(one) != SourceKind::records; });
  if (sources.empty()) return;
  const auto column_of = [](const Records& records, const DataOptions& source) {
    return require_column(records, "data.label", source.label, usual_label);
  };
  if (task.labels > 0) {
    // A number of labels was given, or comes with weights. Names in the data name them.
    const Records records = records_of(sources.front());
    const std::vector<int> columns = {column_of(records, sources.front())};
    const std::string first = records.read(0, columns).front();
    if (first.find_first_not_of("-0123456789") == std::string::npos) return;
  }
  std::vector<Labels> all;
  for (const DataOptions& one : sources) {
    const Records records = records_of(one);
    all.push_back(Labels::found_in(records, column_of(records, one)));
    if (all.back().count() != all.front().count() || all.back().names() != all.front().names())
      throw InvalidArgument(fmt::format(
          "data.mix: {} has the labels {} and {} has {}: name all of them with task.labels and "
          "task.label_names",
          sources.front().source, listed(all.front()), one.source, listed(all.back())));
  }
  const Labels& found = all.front();
  if (task.labels > 0 && task.labels != found.count())
    throw InvalidArgument(fmt::format(
        "{} has {} labels, and {} has {}", sources.front().source, found.count(),
        options.model.init.empty() ? std::string("task.labels") : options.model.init, task.labels));
  task.labels = found.count();
  task.label_names = found.names();
}

// Of heads, LoRA trains and saves only that of a classification. A new head for masked words would
// stay random, and an adapter would not even have it.
void require_head_for_lora(const ModelOptions& model) {
  if (model.init.empty() || model.lora.rank == 0 || task_of(model) != ModelTask::mlm) return;
  const Stack stack = family_of(model).build(model);  // described, not allocated
  const auto missing = missing_heads(model.init, model, stack);
  if (missing.empty()) return;
  throw InvalidArgument(fmt::format(
      "{} has no {}, and with model.lora.rank a new one would stay random, since LoRA freezes it: "
      "start from a folder that has one, or set model.lora.rank=0",
      model.init, fmt::join(missing, " and no ")));
}

}  // namespace

bool are_made_up(const std::vector<std::string>& label_names) {
  for (std::size_t i = 0; i < label_names.size(); ++i)
    if (label_names[i] != fmt::format("LABEL_{}", i)) return false;
  return true;
}

SourceKind kind_of(const DataOptions& data) {
  if (!data.mix.empty()) return SourceKind::mix;
  if (data.source == "random") return SourceKind::random;
  if (data.source == "stdlib") return SourceKind::text;
  std::error_code unreadable;  // whoever opens it says what is wrong
  if (fs::is_directory(data.source, unreadable))
    return is_corpus(data.source) ? SourceKind::corpus : SourceKind::text;
  return format_of(data.source) == RecordFormat::text ? SourceKind::text : SourceKind::records;
}

std::string tokenizer_beside(const fs::path& folder) {
  if (says_bytes(folder)) return {};
  if (has_tokenizer(folder)) return folder.string();
  require_byte_tokens(folder);
  return {};
}

void require_vocabulary(const Tokenizer& tokenizer, const JobOptions& options) {
  const ModelOptions& model = options.model;
  if (tokenizer.size() <= model.vocab) return;
  throw InvalidArgument(fmt::format(
      "the tokeniser {} has {} tokens, and the model's embedding has {} (model.vocab): {}",
      options.data.tokenizer, tokenizer.size(), model.vocab,
      model.init.empty() ? fmt::format("set model.vocab={}", tokenizer.size())
                         : std::string("use the one that the weights were trained with")));
}

void require_readable(const JobOptions& options) {
  const ModelTask task = task_of(options.model);
  const SourceKind kind = kind_of(options.data);
  if (kind == SourceKind::random) return;
  if (kind == SourceKind::mix) {
    JobOptions one = options;
    for (const DataOptions& source : sources_of(options.data)) {
      one.data = source;
      require_readable(one);
    }
    return;
  }
  if (task == ModelTask::classify && kind != SourceKind::records)
    throw InvalidArgument(
        fmt::format("task.name=classify needs labels, and data.source = {} has none: give a .tsv, "
                    ".csv or .jsonl file with a text and a label in each record, or "
                    "data.source=random",
                    options.data.source));
  if (!options.data.tokenizer.empty()) return;
  if (kind == SourceKind::corpus)
    throw InvalidArgument(
        fmt::format("data.source = {0} is a corpus of tokens, and no tokeniser is given: set "
                    "data.tokenizer to the one in its folder, {0}",
                    options.data.source));
  if (kind == SourceKind::records)
    throw InvalidArgument(
        fmt::format("data.source = {} has records, which are read with a tokeniser, and there is "
                    "none: set data.tokenizer to a folder with tokenizer.json or vocab.txt",
                    options.data.source));
  if (task != ModelTask::causal)
    throw InvalidArgument(
        fmt::format("data.source = {} is text, whose bytes train task.name=causal, not {}: set "
                    "data.tokenizer to a folder with tokenizer.json or vocab.txt, or "
                    "data.source=random",
                    options.data.source, name_of(task)));
}

void resolve_options(JobOptions& options, const std::vector<std::string>& given) {
  choose_task(options);
  resolve_model(options.model, given);
  options.data.tokenizer = tokenizer_path(options);
  if (!options.data.tokenizer.empty()) {
    const Tokenizer tokenizer = Tokenizer::open(options.data.tokenizer);
    const bool given_vocab = std::find(given.begin(), given.end(), "model.vocab") != given.end();
    if (options.model.init.empty() && !given_vocab) options.model.vocab = tokenizer.size();
    require_vocabulary(tokenizer, options);
  }
  require_readable(options);
  require_head_for_lora(options.model);
  if (task_of(options.model) == ModelTask::classify) take_labels(options);
}

}  // namespace echelon
