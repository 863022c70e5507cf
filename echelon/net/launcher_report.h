// What a rank tells the launcher that started it, over a pipe that it inherits through any programs
// in between (ECHELON_LAUNCHER_FD=DESCRIPTOR:INODE). Each report is one line:
//
//   expendable RANK           if this rank dies, the others go on
//   blames RANK OTHER NAME    if this rank fails now, it is because of OTHER, which is NAME
//
// A rank that no launcher started tells nobody.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/net/socket.h"

namespace echelon {

// A rank's side.
class LauncherReport {
 public:
  // Tells nobody when the launcher knows this process as another rank of another world: a group of
  // a program's own.
  LauncherReport(int rank, int world);

  void expendable() const;
  void blames(int other, const std::string& name) const;

 private:
  void tell(std::string line) const;

  int rank_;
  int pipe_ = -1;  // the process's, not closed
};

// The launcher's side.
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
