// What `echelon verify` came to, as a file: JSON for scripts, HTML for people. Both say on which
// machine, with which versions, at which commit and by which command.
#pragma once

#include <string>
#include <vector>

#include "echelon/train/verify.h"

namespace echelon {

struct Certificate {
  std::vector<VerifyCell> cells;
  int broken_worlds = 0;  // that did not come to their end
  std::string command;    // that was run
  std::string fault;      // that was put in; empty: none

  int failed() const;  // cells and worlds
};

std::string to_json(const Certificate& certificate);
// The cells of such a file.
std::vector<VerifyCell> parse_cells(const std::string& json);

// One page that needs nothing else, light or dark as the reader's system is; what failed comes
// first.
std::string to_html(const Certificate& certificate);

}  // namespace echelon
