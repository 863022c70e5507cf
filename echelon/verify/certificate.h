// What `echelon verify` came to: lines on a screen, and as a file JSON for scripts, HTML for
// people. Files say on which machine, with which versions, at which commit and by which command.
#pragma once

#include <string>
#include <vector>

#include "echelon/verify/verify.h"

namespace echelon {

struct Certificate {
  std::vector<VerifyCell> cells;
  int broken_worlds = 0;  // that did not come to their end
  std::string command;    // that was run
  std::string fault;      // that was put in; empty: none

  int failed_cells() const;
  int failed() const { return failed_cells() + broken_worlds; }
  // That a cell sees the fault. A world that broke shows nothing but that it broke.
  bool caught() const { return !fault.empty() && failed_cells() > 0; }
};

// Lines of at most 100 columns: the names of the columns; and a cell, of which the line begins with
// whether it holds. What does not is said below it, indented.
std::string text_head();
std::string to_text(const VerifyCell& cell);

std::string to_json(const Certificate& certificate);
// The cells of such a file.
std::vector<VerifyCell> parse_cells(const std::string& json);

// One page that needs nothing else, light or dark as the reader's system is. It has every cell
// once, those that failed first.
std::string to_html(const Certificate& certificate);

}  // namespace echelon
