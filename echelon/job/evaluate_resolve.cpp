// What a request of `echelon evaluate` means: which weights, which data, which options.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/glob.h"
#include "echelon/data/corpus/corpus.h"
#include "echelon/data/records/records.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/job/evaluate.h"
#include "echelon/job/resolve.h"
#include "echelon/job/rules.h"
#include "echelon/job/token_data.h"
#include "echelon/models/family.h"
#include "echelon/models/lora.h"
#include "echelon/models/weights_folder.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

// Of data.*: they say how to divide training data.
const std::vector<std::string> of_training = {"data.validation", "data.validation_source",
                                              "data.mix"};

// Samples of a batch, if train.batch is not given: as many as have this many tokens.
constexpr std::int64_t usual_tokens = 8192, usual_samples = 32;

bool has(const std::vector<std::string>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// The keys of --set. Throws for those that an evaluation has no use for.
std::vector<std::string> given_keys(const std::vector<std::string>& set) {
  JobOptions unused;
  const Fields fields = fields_of(unused);
  std::vector<std::string> keys;
  for (const std::string& assignment : set) {
    const std::string key = set_option(fields, assignment);
    const auto takes = [&](const std::string& pattern) { return glob_matches(pattern, key); };
    if (has(of_training, key) || std::ranges::none_of(evaluation_keys(), takes))
      throw InvalidArgument(
          fmt::format("{} is an option of training: leave it out; echelon evaluate has {}", key,
                      fmt::join(evaluation_keys(), ", ")));
    keys.push_back(key);
  }
  return keys;
}

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / "config.json") || is_adapter(folder);
}

bool is_run(const fs::path& folder) {
  return fs::exists(folder / "config.toml") && !has_weights(folder);
}

void require_folder(const fs::path& folder) {
  if (fs::is_directory(folder)) return;
  if (fs::exists(folder))
    throw InvalidArgument(
        fmt::format("{} is a file: give the folder of a run or of weights", folder.string()));
  const fs::path near = "runs" / folder;
  throw InvalidArgument(fmt::format(
      "there is no folder {}: {}", folder.string(),
      folder.is_relative() && fs::is_directory(near)
          ? fmt::format("did you mean {}?", near.string())
          : std::string("give a run, or a folder with config.json and model.safetensors")));
}

// The folder of weights, and the run that it belongs to.
void find_weights(const fs::path& given, EvaluateJob& job) {
  require_folder(given);
  fs::path folder = given.lexically_normal();
  if (!folder.has_filename() && folder.has_parent_path()) folder = folder.parent_path();
  job.weights = folder;
  if (!is_run(folder)) {
    const fs::path above = folder.has_parent_path() ? folder.parent_path() : ".";
    const bool of_run = folder.filename() == "weights" || folder.filename() == "best";
    if (of_run && is_run(above)) job.run = above;
    return;
  }
  job.run = folder;
  job.weights = folder / "weights";
  if (has_weights(job.weights)) return;
  const std::string run = folder.string();
  throw InvalidArgument(
      fs::exists(folder / "state.safetensors")
          ? fmt::format("{} has a saved state and no weights yet, since it is not finished: write "
                        "those of the state with echelon export {} -o DIR, and evaluate DIR",
                        run, run)
          : fmt::format("{} has no weights: a run writes them when it ends", run));
}

// Options that a run's evaluation has from its training, so that the scores are those of its own
// validations.
void take_from_run(EvaluateJob& job) {
  JobOptions run;
  read_toml_file(fields_of(run), job.run / "config.toml");
  JobOptions& options = job.options;
  options.data = run.data;
  options.data.tokenizer.clear();  // the weights have it
  options.model.task.mask = run.model.task.mask;
  options.train.seed = run.train.seed;
  options.train.pad_to = run.train.pad_to;
  options.train.precision = run.train.precision;
  options.train.device = run.train.device;
  options.train.validate_every = run.train.validate_every;
}

void forget_columns(DataOptions& data) {
  const DataOptions usual;
  data.text = data.pair = data.label = data.prompt = data.answer = "";
  data.header = usual.header;
}

void choose_data(EvaluateJob& job, const std::vector<std::string>& given) {
  DataOptions& data = job.options.data;
  if (has(given, "data.source")) {
    data.mix.clear();
    data.validation_source.clear();
    if (data.source == "random")
      throw InvalidArgument(
          "data.source = random has nothing to evaluate a model on: give a file or a folder");
    const auto is_column = [](const std::string& key) {
      return key == "data.text" || key == "data.pair" || key == "data.label" ||
             key == "data.prompt" || key == "data.answer" || key == "data.header";
    };
    // Columns of the run's own file say nothing about a text.
    const bool columns = std::ranges::any_of(given, is_column);
    if (kind_of(data) != SourceKind::records && !columns) forget_columns(data);
    JobRequest request;
    request.options = job.options;
    for (const auto& rule : job_rules())
      if (rule.name == "columns of no records" && rule.broken(request, 1))
        throw InvalidArgument(sentence_of(rule, request, 1));
    return;
  }
  if (job.run.empty())
    throw InvalidArgument(
        fmt::format("--data is missing: name the file or the folder to evaluate "
                    "{} on",
                    job.weights.string()));
  const bool validates = job.options.train.validate_every > 0 &&
                         (data.validation > 0 || !data.validation_source.empty()) &&
                         kind_of(data) != SourceKind::random;
  if (!validates)
    throw InvalidArgument(fmt::format(
        "{} was trained without validation data: name the data to evaluate it on with --data",
        job.run.string()));
  job.own_data = true;
}

// A classification of records with labels needs a head for it, and what else a folder is for needs
// its own.
void require_task(const ModelOptions& found, const EvaluateJob& job, ModelTask wanted) {
  const auto& tasks = family_of(found).tasks;
  const bool can = std::ranges::find(tasks, ModelTask::classify) != tasks.end();
  const DataOptions& data = job.options.data;
  if (!can || task_of(found) == ModelTask::classify || job.own_data) return;
  const auto is_labelled = [&] {
    return kind_of(data) == SourceKind::records &&
           find_column({data.source, Records::Options{.header = data.header}}, data.label,
                       usual_label) >= 0;
  };
  if (wanted == ModelTask::classify || (wanted == ModelTask::automatic && is_labelled()))
    throw InvalidArgument(fmt::format(
        "{} has no head for a classification{}: train one with echelon train --set model.init={} "
        "--data FILE, or evaluate its masked words with --set task.name=mlm",
        job.weights.string(),
        wanted == ModelTask::classify ? std::string()
                                      : fmt::format(", and {} has labels", data.source),
        job.weights.string()));
}

void require_weights(const EvaluateJob& job) {
  const ModelOptions& model = job.options.model;
  const Stack stack = family_of(model).build(model);  // described, not allocated
  if (model.lora.init.empty())
    if (const auto missing = missing_heads(model.init, model, stack); !missing.empty())
      throw InvalidArgument(
          fmt::format("{} has no {}: give the folder of a model that was trained for task.name={}",
                      model.init, fmt::join(missing, " and no "), name_of(task_of(model))));
  read_weights(model.init, model, stack);  // checks names and shapes
}

void choose_model(EvaluateJob& job, const std::vector<std::string>& given) {
  ModelOptions& model = job.options.model;
  const auto wanted_context = model.context;
  const ModelTask wanted = model.task.name;
  require_task(read_model_options(job.weights), job, wanted);
  model.init = job.weights.string();
  auto of_model = given;
  std::erase(of_model, "model.context");
  resolve_model(model, of_model);
  job.window = model.context;
  if (has(given, "model.context")) {
    job.window = wanted_context;
    if (family_of(model).any_context) model.context = wanted_context;
    if (job.window > model.context)
      throw InvalidArgument(
          fmt::format("model.context = {} is more than the {} positions of the weights in {}: set "
                      "at most that",
                      job.window, model.context, job.weights.string()));
  }
  require_weights(job);
}

// That of the weights, or of the corpus if the weights come without one.
void choose_tokenizer(EvaluateJob& job) {
  JobOptions& options = job.options;
  std::string& path = options.data.tokenizer;
  const std::string base = options.model.init;  // of an adapter: its model
  const bool corpus = kind_of(options.data) == SourceKind::corpus;
  if (path.empty() || path == "bytes") {
    const bool said_bytes = path == "bytes";
    const bool beside = has_tokenizer(job.weights);
    const bool of_corpus = corpus && !beside && !has_tokenizer(base) && !says_bytes(base);
    path = beside ? job.weights.string() : of_corpus ? options.data.source : tokenizer_beside(base);
    if (said_bytes && !path.empty())
      throw InvalidArgument(
          fmt::format("data.tokenizer = bytes, but the weights in {} were trained with a tokeniser "
                      "({}): leave data.tokenizer out",
                      job.weights.string(), path));
  }
  if (path.empty()) {
    if (corpus)
      throw InvalidArgument(fmt::format(
          "{} has the tokens of a tokeniser, and the tokens of the weights in {} are bytes: give "
          "the text",
          options.data.source, job.weights.string()));
    return;
  }
  const Tokenizer tokenizer = Tokenizer::open(path);
  require_vocabulary(tokenizer, options);
  if (corpus)
    require_same_tokenizer(Corpus(options.data.source).description(), options.data.source,
                           tokenizer);
}

}  // namespace

const std::vector<std::string>& evaluation_keys() {
  static const std::vector<std::string> keys = {"data.*",       "model.context", "model.lora.init",
                                                "task.name",    "task.mask",     "train.batch",
                                                "train.device", "train.pad_to",  "train.precision",
                                                "train.seed",   "train.threads", "comm.*",
                                                "net.*"};
  return keys;
}

EvaluateJob resolve_evaluation(const EvaluateRequest& request) {
  const auto given = given_keys(request.set);
  EvaluateJob job;
  find_weights(request.model, job);
  if (!job.run.empty()) take_from_run(job);
  JobOptions& options = job.options;
  for (const std::string& assignment : request.set) set_option(fields_of(options), assignment);
  check_threads(options.train);
  require_place_for(request.summary, "--json");
  choose_data(job, given);
  choose_model(job, given);
  choose_tokenizer(job);
  require_readable(options);
  if (!has(given, "train.batch"))
    options.train.batch = std::clamp<std::int64_t>(usual_tokens / job.window, 1, usual_samples);
  return job;
}

}  // namespace echelon
