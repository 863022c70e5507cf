// Whether two processes of a job were told the same, by their options as TOML.
#pragma once

#include <string>
#include <vector>

namespace echelon {

struct OptionDifference {
  std::string key, mine, theirs;
};

enum class Among {
  ranks,   // all that shapes the job: not where they are, nor what they compute on
  guests,  // what the gradient of a sample depends on: model, data, batch, seed and type
};

// The options that must not differ and do.
std::vector<OptionDifference> differences(const std::string& mine, const std::string& theirs,
                                          Among among);

}  // namespace echelon
