// The launcher's side of what ranks report to it (net/launcher_report.h has the lines): a pipe
// whose writing end the ranks inherit.
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
    int other = -1;    // whom it blames
    std::string name;  // of that one
  };

  ReportPipe();

  int fd() const { return read_.get(); }
  int rank_fd() const { return write_.get(); }  // to be left open in the ranks
  std::string variable() const;                 // the value of ECHELON_LAUNCHER_FD

  // What has come; lines that are no reports are dropped.
  std::vector<Report> read_ready();
  static std::optional<Report> parse(std::string_view line);

 private:
  Descriptor read_, write_;
  std::string partial_;
};

}  // namespace echelon
