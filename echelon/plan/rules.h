// Rules about options, as one table. A rule is a row: when it is broken, the sentence that says so,
// and what to set instead.
//
//   check_rules(options, ranks);                 // throws InvalidArgument with the first sentence
//   for (const auto& rule : plan_rules()) ...    // a test walks it
//
// `echelon train` checks every rule before it starts ranks, and job/rules.h adds rules about its
// own arguments. A Trainer in a user's program checks only the rules without which it could not
// run, because a program may leave options set that have no effect on one rank. Rules about the
// machine, the data or the model are checked where these are known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/options.h"
#include "echelon/plan/options.h"

namespace echelon {

enum class Breach {
  cannot_run,
  does_nothing,  // an option without effect, which its user did not intend
};

template <class Subject>
struct Rule {
  std::string_view name;
  Breach breach;
  bool (*broken)(const Subject& subject, int ranks);
  // {fix} stands for "set KEY=DEFAULT and ..." for the options in `reset` that have other values,
  // and {value} for the result of `value`.
  std::string sentence;
  std::vector<std::string_view> reset;
  std::string (*value)(const Subject& subject, int ranks) = nullptr;  // null: ""
};

// Rules are checked in this order; a rule may rely on the rules before it.
const std::vector<Rule<PlanOptions>>& plan_rules();

std::string sentence_of(const Rule<PlanOptions>& rule, const PlanOptions& options, int ranks);

// Whether the rule with this name is broken.
bool breaks(std::string_view rule, const PlanOptions& options, int ranks);

// Throws InvalidArgument with the sentence of the first broken rule.
void check_rules(const PlanOptions& options, int ranks);
// The same, but only for the rules of kind cannot_run.
void require_can_run(const PlanOptions& options, int ranks);
void require_can_run(const TrainerOptions& options, int ranks);

// "set pipeline.schedule=1f1b and pipeline.chunks=1": the values in `usual` of those `keys` that
// differ in `now`. The advice is never to leave an option out, because a resumed run takes options
// from its own configuration.
std::string set_as_usual(const Fields& now, const Fields& usual,
                         const std::vector<std::string_view>& keys);

// ---- Sentences about facts that are known later, or in another component

// Throws InvalidArgument if a batch does not divide over this many ranks and their micro-batches.
void check_share(const TrainOptions& options, int ranks);
// Throws InvalidArgument if train.threads is far more than the cores of this process.
void check_threads(const TrainOptions& options);
// The sentence for train.graph=on with a backend whose exchanges cannot be captured.
std::string no_graph_over(std::string_view backend);

}  // namespace echelon
