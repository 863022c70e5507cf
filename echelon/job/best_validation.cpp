#include "echelon/job/best_validation.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/file.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view perplexity = "perplexity", bits_per_byte = "bits_per_byte";

fs::path note_in(const fs::path& folder) { return folder / "validation.json"; }

}  // namespace

BestSoFar watch_best(const TrainOptions& train, const Trainer& trainer, const LossUnits& units) {
  auto names = trainer.score_names();
  names.emplace(names.begin() + 1, perplexity);
  if (units.validation_bits(0)) names.emplace(names.begin() + 2, bits_per_byte);
  const std::string& name = train.stop_metric;
  if (std::ranges::find(names, name) == names.end())
    throw InvalidArgument(
        fmt::format("train.stop_metric = {} is no score of this job's validations, which have {}",
                    name, fmt::join(names, ", ")));
  return {name, trainer.better(name), train.patience};
}

double score_of(const Evaluation& seen, const LossUnits& units, std::string_view name) {
  if (const double* const score = find_score(seen.scores, name)) return *score;
  if (name == perplexity) return std::exp(seen.loss);
  if (name == bits_per_byte) return units.validation_bits(seen.loss).value_or(seen.loss);
  return seen.loss;
}

double score_of_first(double score, Communicator& ranks) {
  const at::Tensor first = at::full({1}, score, at::kDouble).to(ranks.device());
  ranks.broadcast(first, 0, {.tag = "best score", .blocking = true}).wait();
  return first.cpu().item<double>();
}

void forget_kept(const fs::path& folder) { fs::remove(note_in(folder)); }

void note_kept(const fs::path& folder, const std::string& score,
               const BestSoFar::Validation& validation) {
  write_file(note_in(folder), text_of(score, validation) + "\n");
}

bool is_kept(const fs::path& folder, const std::string& score,
             const BestSoFar::Validation& validation) {
  return fs::exists(note_in(folder)) &&
         read_file(note_in(folder)) == text_of(score, validation) + "\n";
}

}  // namespace echelon
