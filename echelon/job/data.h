// The data that `echelon train` trains and validates on, and `echelon evaluate` evaluates.
//
// What a job reads depends on three things: its task, its source (data.source) and its tokeniser.
//
//   source              causal                      classify            mlm
//   random              random tokens               random sentences    random sentences
//   text                windows of bytes or tokens  refused             lines
//   records             answers, or one text        labelled texts      texts
//   corpus              windows or documents        refused             windows or documents
//
// docs/finetuning.md describes each for a user.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/data/text.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/job/options.h"
#include "echelon/train/evaluation.h"

namespace echelon {

// In which units a loss is shown.
struct LossUnits {
  bool bits_per_byte = false;     // of every step: tokens are bytes
  bool perplexity = false;        // exp(loss): the loss is that of a token
  double bytes_per_token = 0;     // of the validation data; 0: unknown
  const char* counts = "tokens";  // what the loss is the mean of

  // Bits per byte of a validation's loss; nothing if tokens have no bytes.
  std::optional<double> validation_bits(double loss) const;
};

struct JobData {
  std::shared_ptr<const Dataset> training, validation;  // validation may be null
  TextSplit text;  // the text behind them; empty unless tokens are bytes
  std::shared_ptr<const Tokenizer> tokenizer;  // null: tokens are bytes, or random
  std::string description;
  LossUnits units;
  DataFingerprint fingerprint;

  // Reads the data for the digest of the fingerprint until the deadline. True: all of it was read.
  bool read_for_digest(const Deadline& until);
};

// The options of each source of data.mix alone; without a mixture, the options as they are. Throws
// InvalidArgument for an entry that is no source and weight.
std::vector<DataOptions> sources_of(const DataOptions& data);

// The options must be resolved (resolve.h). Throws InvalidArgument or Corrupt, with file and line
// where a line is wrong.
JobData open_data(const JobOptions& options);

// All of data.source as `validation`, for a model whose weights are in `folder`: read with the
// tokeniser beside them, unless data.tokenizer names another, and with the labels of the model.
// `training` is null. Of `train`, the seed (which words are hidden) and the threads count.
JobData open_evaluation(const std::filesystem::path& folder, const ModelOptions& model,
                        const DataOptions& data, const TrainOptions& train = {});

// What is measured beside the loss: accuracy, F1, … of a classification; the accuracy of masked
// words.
Metrics metrics_of(const ModelOptions& model);

// Whether a job's tokens are the bytes of text. The options are resolved.
bool tokens_are_bytes(const DataOptions& options);

}  // namespace echelon
