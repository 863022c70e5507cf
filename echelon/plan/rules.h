// What options may not be, as one table. A rule is a row: when it is broken, the sentence that says
// so, and what to set instead.
//
//   check_rules(options, ranks);                 // throws InvalidArgument with the first sentence
//   for (const auto& rule : plan_rules()) ...    // a test walks it
//
// `echelon train` asks every rule before there are ranks, and job/rules.h adds those of its own
// arguments. A Trainer in a user's program asks those without which it could not run: a program may
// well leave options set that do nothing on one rank.
// Rules about the machine, the data or the model are where those are known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/options.h"
#include "echelon/plan/options.h"

namespace echelon {

enum class Breach {
  cannot_run,
  does_nothing,  // an option without effect, which its user did not mean
};

template <class Subject>
struct Rule {
  std::string_view name;
  Breach breach;
  bool (*broken)(const Subject& subject, int ranks);
  // In it, {fix} is "set KEY=DEFAULT and ..." of those options in `reset` that have other values,
  // and {value} what `value` returns.
  std::string sentence;
  std::vector<std::string_view> reset;
  std::string (*value)(const Subject& subject, int ranks) = nullptr;  // null: ""
};

// In this order they are asked; a rule may rely on those before it.
const std::vector<Rule<PlanOptions>>& plan_rules();

std::string sentence_of(const Rule<PlanOptions>& rule, const PlanOptions& options, int ranks);

// Whether the rule of that name is broken.
bool breaks(std::string_view rule, const PlanOptions& options, int ranks);

// Throws InvalidArgument with the sentence of the first rule that is broken.
void check_rules(const PlanOptions& options, int ranks);
// The same for what cannot run alone.
void require_can_run(const PlanOptions& options, int ranks);
void require_can_run(const TrainerOptions& options, int ranks);

// "set pipeline.schedule=1f1b and pipeline.chunks=1": the values in `usual` of those `keys` that
// have others in `now`. To leave an option out is no advice for a run that goes on: it takes them
// from its own configuration.
std::string set_as_usual(const Fields& now, const Fields& usual,
                         const std::vector<std::string_view>& keys);

// ---- Sentences about what is known later, or in another component

// Throws InvalidArgument where a batch does not divide over so many ranks and their micro-batches.
void check_share(const TrainOptions& options, int ranks);
// Throws InvalidArgument where train.threads is far more than the cores of this process.
void check_threads(const TrainOptions& options);
// train.graph=on over a backend whose exchanges cannot be recorded.
std::string no_graph_over(std::string_view backend);

}  // namespace echelon
