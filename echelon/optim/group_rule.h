// optim.groups: parameter groups by name.
//
//   optim.groups = ["*.bias: decay=0", "classifier.*: rate=10 decay=0.01"]
//
// A parameter belongs to the first rule whose pattern matches its name (base/glob.h). `rate` is a
// factor of the learning rate of a step; `decay` is its weight decay in place of optim.decay. What
// a rule leaves out stays as it is without the rule.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace echelon {

struct GroupRule {
  std::string pattern;
  std::optional<double> rate, decay;
};

// Throws InvalidArgument that names the rule that cannot be read, and how one looks.
GroupRule parse_group(const std::string& text);
std::vector<GroupRule> parse_groups(const std::vector<std::string>& texts);

}  // namespace echelon
