// Text that ranks exchange among themselves: options, ledgers, reports. Not optimised for speed.
#pragma once

#include <string>
#include <vector>

namespace echelon {

class Communicator;

// The texts of all ranks, by rank, on every rank.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine,
                                      const std::string& tag);

}  // namespace echelon
