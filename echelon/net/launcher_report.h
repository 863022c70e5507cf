// What a rank tells the launcher that started it, over a pipe that it inherits through any programs
// in between (ECHELON_LAUNCHER_FD=DESCRIPTOR:INODE). Each report is one line:
//
//   expendable RANK           if this rank dies, the others go on
//   blames RANK OTHER NAME    if this rank fails now, it is because of OTHER, which is NAME
//
// A rank that no launcher started tells nobody. launch/report_pipe.h is the launcher's side.
#pragma once

#include <string>

namespace echelon {

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

}  // namespace echelon
