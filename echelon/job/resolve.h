// Options that follow from a job's weights and data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "echelon/job/options.h"

namespace echelon {

class Tokenizer;

// Completes the options of a new job, which are then the same on all ranks and in its config.toml:
//
//   model.*           with model.init, the sizes of its weights
//   data.tokenizer    that of the corpus, or beside model.init
//   task.name         classify, if the records have labels and the family can
//   model.vocab       without model.init, the size of the tokeniser
//   task.labels       those of the records, and task.label_names
//
// The sources of a mixture must agree on the task and the labels.
//
// Throws InvalidArgument or Corrupt if a key that was `given` contradicts them, or weights,
// tokeniser and data do not go together.
void resolve_options(JobOptions& options, const std::vector<std::string>& given);

// The tokeniser to read text with for the weights in `folder`: a path, or empty if their tokens are
// bytes. Throws InvalidArgument if they are neither.
std::string tokenizer_beside(const std::filesystem::path& folder);

// Throws InvalidArgument if the model's embedding has no row for a token.
void require_vocabulary(const Tokenizer& tokenizer, const JobOptions& options);

// Throws InvalidArgument if the task needs records or a tokeniser, and the options name none.
void require_readable(const JobOptions& options);

// Whether labels have only the names that transformers makes up where a model has none (LABEL_0),
// or none at all.
bool are_made_up(const std::vector<std::string>& label_names);

// What data.source names.
enum class SourceKind { random, text, records, corpus, mix };
SourceKind kind_of(const DataOptions& data);

}  // namespace echelon
