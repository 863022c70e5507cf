#include "echelon/job/option_difference.h"

#include <sstream>

namespace echelon {
namespace {

bool compared(const std::string& key, Among among) {
  if (among == Among::guests)
    return (key.starts_with("model.") && key != "model.init" && key != "model.recompute") ||
           key.starts_with("task.") || key.starts_with("data.") || key == "train.batch" ||
           key == "train.seed" || key == "train.precision";
  return !key.starts_with("net.") && key != "train.threads" && key != "train.device" &&
         key != "comm.plan";
}

// Files may be elsewhere on another machine: their contents are compared (data_check.h).
bool may_differ(const std::string& key, const std::string& one, const std::string& other) {
  const auto is_file = [](const std::string& source) {
    return source != "\"stdlib\"" && source != "\"random\"" && source != "\"\"" &&
           source != "\"bytes\"";
  };
  const bool names_a_file =
      key == "data.source" || key == "data.validation_source" || key == "data.tokenizer";
  return (names_a_file && is_file(one) && is_file(other)) || key == "data.mix";
}

}  // namespace

std::vector<OptionDifference> differences(const std::string& mine, const std::string& theirs,
                                          Among among) {
  std::vector<OptionDifference> all;
  std::istringstream ours(mine), others(theirs);
  std::string section;
  for (std::string a, b; std::getline(ours, a) && std::getline(others, b);) {
    if (a.starts_with('[')) section = a.substr(1, a.find(']') - 1) + ".";
    if (a == b) continue;
    const auto equals = a.find(" = "), theirs_at = b.find(" = ");
    const std::string key = section + a.substr(0, equals);
    if (!compared(key, among)) continue;
    const auto after = [](const std::string& line, std::size_t at) {
      return at == std::string::npos ? line : line.substr(at + 3);
    };
    const std::string value = after(a, equals), other = after(b, theirs_at);
    if (may_differ(key, value, other)) continue;
    all.push_back({key, value, other});
  }
  return all;
}

}  // namespace echelon
