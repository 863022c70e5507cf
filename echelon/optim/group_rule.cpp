#include "echelon/optim/group_rule.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "echelon/base/error.h"

namespace echelon {
namespace {

// None unless the whole text is a finite number that is not negative.
std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

// The last colon ends the pattern: names may contain others.
GroupRule parse_group(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format(
        "optim.groups: \"{}\" {}; a rule looks like \"classifier.*: rate=10 decay=0.01\", with "
        "rate, decay or both, which are 0 or more",
        text, why));
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) refuse("has no colon after the name");
  GroupRule rule{.pattern = text.substr(0, colon), .rate = {}, .decay = {}};
  const auto end = rule.pattern.find_last_not_of(' ');
  if (end == std::string::npos) refuse("has no name before the colon");
  rule.pattern.resize(end + 1);
  std::istringstream words(text.substr(colon + 1));
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == std::string::npos || (key != "rate" && key != "decay"))
      refuse(fmt::format("has \"{}\"", word));
    auto& value = key == "rate" ? rule.rate : rule.decay;
    if (value) refuse(fmt::format("has {} twice", key));
    value = number_of(word.substr(equals + 1));
    if (!value) refuse(fmt::format("has {} = \"{}\"", key, word.substr(equals + 1)));
  }
  if (!rule.rate && !rule.decay) refuse("changes nothing");
  return rule;
}

std::vector<GroupRule> parse_groups(const std::vector<std::string>& texts) {
  std::vector<GroupRule> rules;
  for (const auto& text : texts) rules.push_back(parse_group(text));
  return rules;
}

}  // namespace echelon
