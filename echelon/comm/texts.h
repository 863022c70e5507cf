// Words that ranks exchange among themselves: options, ledgers, reports. Not for speed.
#pragma once

#include <string>
#include <vector>

namespace echelon {

class Communicator;

// Every rank's text, by rank, on every rank.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine,
                                      const std::string& tag);

}  // namespace echelon
