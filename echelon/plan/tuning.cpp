#include "echelon/plan/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/glob.h"
#include "echelon/optim/group_rule.h"

namespace echelon {
namespace {

// How a parameter will be trained. Nothing is changed before everything is checked.
struct Tuned {
  const Parameter* parameter;
  bool trainable;
  const GroupRule* rule = nullptr;  // the first that matches
};

// Throws if no parameter has such a name.
void require_match(const std::vector<Tuned>& all, std::string_view option,
                   const std::string& pattern) {
  std::vector<std::string> names;
  for (const auto& one : all) {
    if (glob_matches(pattern, one.parameter->name)) return;
    names.push_back(one.parameter->name);
  }
  auto near = near_names(pattern, names);
  const bool any = near.empty();
  if (any && !names.empty()) near = {names.front(), names.back()};
  throw InvalidArgument(fmt::format("{}: no parameter is named {}; {} {}{}", option, pattern,
                                    any ? "there are" : "near names are", fmt::join(near, ", "),
                                    any ? " and others" : ""));
}

void freeze(std::vector<Tuned>& all, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  for (const auto& pattern : patterns) {
    require_match(all, "train.freeze", pattern);
    for (auto& one : all)
      if (glob_matches(pattern, one.parameter->name)) one.trainable = false;
  }
  if (std::ranges::none_of(all, &Tuned::trainable))
    throw InvalidArgument(fmt::format(
        "train.freeze = [\"{}\"] freezes every parameter, and nothing would train: leave out those "
        "that should, such as the head's ({})",
        fmt::join(patterns, "\", \""), all.back().parameter->name));
}

void group(std::vector<Tuned>& all, const std::vector<GroupRule>& rules) {
  for (const auto& rule : rules) {
    require_match(all, "optim.groups", rule.pattern);
    bool applies = false, trains = false;
    for (auto& one : all) {
      if (!one.trainable || !glob_matches(rule.pattern, one.parameter->name)) continue;
      trains = true;
      if (one.rule) continue;
      one.rule = &rule;
      applies = true;
    }
    if (!applies)
      throw InvalidArgument(fmt::format(
          "optim.groups: the rule for {} applies to no parameter, since {}", rule.pattern,
          trains ? "earlier rules match all of its parameters and the first one counts: put it "
                   "before them"
                 : "all of its parameters are frozen: leave it out"));
  }
}

// A loss without parameters above the head is no layer that trains.
int highest_with_parameters(const Stack& stack) {
  int highest = 0;
  for (const auto& parameter : stack.parameters())
    highest = std::max(highest, stack.declared_in(parameter));
  for (const auto& tie : stack.ties()) highest = std::max(highest, tie.user);
  return highest;
}

}  // namespace

void tune(Stack& stack, const TrainOptions& train, const OptimOptions& optim) {
  const auto rules = parse_groups(optim.groups);
  std::vector<Tuned> all;
  for (const auto& parameter : stack.parameters()) all.push_back({&parameter, parameter.trainable});
  freeze(all, train.freeze);
  group(all, rules);
  const int head = highest_with_parameters(stack);
  for (const auto& [described, trainable, rule] : all) {
    Parameter& parameter = *stack.find(described->name);
    parameter.trainable = trainable;
    UpdateRule& update = parameter.update;
    update.rate = std::pow(optim.layer_decay, head - stack.declared_in(parameter));
    update.own_decay = rule ? rule->decay : std::nullopt;
    if (rule) update.rate *= rule->rate.value_or(1);
  }
}

}  // namespace echelon
