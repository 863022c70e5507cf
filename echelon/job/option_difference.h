// Compares the options of two processes of a job, as TOML.
#pragma once

#include <string>
#include <vector>

namespace echelon {

struct OptionDifference {
  std::string key, mine, theirs;
};

enum class Among {
  ranks,   // everything that shapes the job, except addresses and devices
  guests,  // what the gradient of a sample depends on: model, data, batch, seed, type
};

// The options that differ and must not.
std::vector<OptionDifference> differences(const std::string& mine, const std::string& theirs,
                                          Among among);

}  // namespace echelon
