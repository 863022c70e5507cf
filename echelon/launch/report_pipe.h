// The launcher's side of the reports of ranks (net/launcher_report.h describes the lines): a pipe
// whose write end the ranks inherit.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/net/socket.h"

namespace echelon {

class ReportPipe {
 public:
  struct Report {
    enum class Kind { expendable, blames } kind;
    int rank = 0;
    int other = -1;    // the rank that it blames
    std::string name;  // of that rank
  };

  ReportPipe();

  int fd() const { return read_.get(); }
  int rank_fd() const { return write_.get(); }  // to be kept open in the ranks
  std::string variable() const;                 // the value of ECHELON_LAUNCHER_FD

  // The reports that have arrived; other lines are dropped.
  std::vector<Report> read_ready();
  static std::optional<Report> parse(std::string_view line);

 private:
  Descriptor read_, write_;
  std::string partial_;
};

}  // namespace echelon
