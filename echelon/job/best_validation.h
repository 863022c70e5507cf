// Which validation of a job was the best, and whether best/ of its run has those weights.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "echelon/comm/communicator.h"
#include "echelon/job/data.h"
#include "echelon/train/best_so_far.h"
#include "echelon/train/trainer.h"

namespace echelon {

// Compares validations by train.stop_metric: a score of the trainer, "perplexity", or
// "bits_per_byte" if the bytes of a token are known. Throws InvalidArgument for another name.
BestSoFar watch_best(const TrainOptions& train, const Trainer& trainer, const LossUnits& units);

// The value of one of these scores.
double score_of(const Evaluation& seen, const LossUnits& units, std::string_view name);

// Rank 0's score, on every rank. Collective. The scores of ranks may differ in the last bits, since
// pipeline stages and tensor ranks may add in different orders; all must decide alike.
double score_of_first(double score, Communicator& ranks);

// A file in best/ says which validation its weights are of, since a state may be older or newer
// than the folder. forget_kept() before the weights are written, note_kept() afterwards.
void forget_kept(const std::filesystem::path& folder);
void note_kept(const std::filesystem::path& folder, const std::string& score,
               const BestSoFar::Validation& validation);
bool is_kept(const std::filesystem::path& folder, const std::string& score,
             const BestSoFar::Validation& validation);

}  // namespace echelon
