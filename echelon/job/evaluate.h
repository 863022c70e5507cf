// `echelon evaluate`: the loss and the scores of a trained model on data, in this process or on
// several ranks.
//
//   const EvaluateJob job = resolve_evaluation({.model = "runs/a", .set =
//   {"data.source=dev.tsv"}}); const EvaluateResult result = run_evaluation(job, nullptr, stop);
//   fmt::print("{}", evaluation_text(job, result));
//   write_file("scores.json", evaluation_json(job, result));
//
// The model is a run's folder, of which weights/ counts; a folder with config.json and
// model.safetensors, such as weights/ and best/ of a run; or the folder of a LoRA adapter.
//
// The data are all of data.source. Without data.source they are the validation data of the run, if
// it still has the data that it was trained on.
//
// Every rank has the whole model, with the values of rank 0, and evaluates train.batch samples at a
// time. Which samples are evaluated together does not depend on the number of ranks, so the scores
// that are counted (all but the loss and what follows from it) are the same on any number of ranks,
// and the loss agrees to the rounding of a sum in fp64. Nothing is allocated for gradients or an
// optimiser.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/job/data.h"
#include "echelon/job/options.h"
#include "echelon/train/metric.h"

namespace echelon {

class Communicator;

struct EvaluateRequest {
  std::filesystem::path model = {};    // a run, a folder of weights or of an adapter
  std::vector<std::string> set = {};   // "train.batch=64": options, see evaluation_keys()
  std::filesystem::path summary = {};  // JSON file that will be written; empty: none
};

// The options that an evaluation has; a * stands for the rest of the name.
const std::vector<std::string>& evaluation_keys();

// A request with all that follows from the model's folder.
struct EvaluateJob {
  JobOptions options;             // model and task are those of the folder
  std::filesystem::path weights;  // the folder that is read
  std::filesystem::path run;      // the run that it belongs to; empty: none
  bool own_data = false;          // the run's validation data, not all of data.source
  std::int64_t window = 0;        // longest sample: model.context, which may be below the folder's
};

// Checks everything that can be known without reading data: options, folder, names and shapes of
// its weights, the place of the summary. Throws InvalidArgument or Corrupt.
EvaluateJob resolve_evaluation(const EvaluateRequest& request);

struct EvaluateResult {
  double loss = 0;
  Scores scores = {};  // accuracy, f1, …, perplexity, bits_per_byte: those that the task has
  // [labels][labels] of a classification: how many samples of label i the model gave label j.
  std::vector<std::vector<std::int64_t>> confusion = {};
  std::vector<std::string> labels = {};  // their names, or numbers
  std::int64_t samples = 0, parameters = 0;
  int ranks = 1;
  std::string data = {};          // "dev.tsv: 872 texts"
  const char* counts = "tokens";  // what the loss is the mean of
  double seconds = 0;             // of the evaluation alone
};

// Reads data and weights and evaluates. Every rank calls it; rank 0 draws progress on a terminal.
// Nothing if `stop` was set meanwhile. `begins` is called once everything is checked and read.
// Throws InvalidArgument or Corrupt for data and weights that do not fit, on every rank that sees
// it.
std::optional<EvaluateResult> run_evaluation(
    const EvaluateJob& job, Communicator* ranks, const std::atomic<bool>& stop,
    const std::function<void()>& begins = [] {});

// For a terminal: lines of at most eighty columns.
std::string evaluation_text(const EvaluateJob& job, const EvaluateResult& result);
// The matrix of a classification as a table, or its largest confusions if that is wider than eighty
// columns.
std::string confusion_text(const std::vector<std::vector<std::int64_t>>& confusion,
                           const std::vector<std::string>& labels);

// docs/formats.md describes the fields.
std::string evaluation_json(const EvaluateJob& job, const EvaluateResult& result);

}  // namespace echelon
