// The result of `echelon verify`: lines of text, JSON for scripts, HTML for people. Files name the
// machine, the versions, the commit and the command.
#pragma once

#include <string>
#include <vector>

#include "echelon/verify/verify.h"

namespace echelon {

struct Certificate {
  std::vector<VerifyCell> cells;
  int broken_worlds = 0;  // that did not finish
  std::string command;    // that was run
  std::string fault;      // that was injected; empty: none

  int failed_cells() const;
  int failed() const { return failed_cells() + broken_worlds; }
  // Whether a cell caught the fault. A broken world does not count.
  bool caught() const { return !fault.empty() && failed_cells() > 0; }
};

// Lines of at most 100 columns: the column names, and a cell. The line of a cell begins with its
// result; indented lines below it name the failed checks.
std::string text_head();
std::string to_text(const VerifyCell& cell);

std::string to_json(const Certificate& certificate);
// The cells of such a file.
std::vector<VerifyCell> parse_cells(const std::string& json);

// One self-contained page, light or dark by the reader's system, with every cell once and failed
// cells first.
std::string to_html(const Certificate& certificate);

}  // namespace echelon
