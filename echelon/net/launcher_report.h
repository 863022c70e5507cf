// Reports of a rank to the launcher that started it, over a pipe that it inherits, also through
// wrapper programs (ECHELON_LAUNCHER_FD=DESCRIPTOR:INODE). Each report is one line:
//
//   expendable RANK           if this rank dies, the others go on
//   blames RANK OTHER NAME    if this rank fails now, it is because of OTHER, which is NAME
//
// Without a launcher, nothing is sent. launch/report_pipe.h is the launcher's side.
#pragma once

#include <string>

namespace echelon {

class LauncherReport {
 public:
  // Sends nothing if rank and world differ from those that the launcher gave to this process: then
  // this is a group that the program made itself.
  LauncherReport(int rank, int world);

  void expendable() const;
  void blames(int other, const std::string& name) const;

 private:
  void tell(std::string line) const;

  int rank_;
  int pipe_ = -1;  // owned by the process, never closed
};

}  // namespace echelon
