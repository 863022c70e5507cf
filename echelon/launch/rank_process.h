// One rank as a process: started in a process group of its own, killed by the kernel when its
// parent dies, its output in pipes.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "echelon/launch/launch_signals.h"
#include "echelon/launch/rank_output.h"
#include "echelon/launch/rank_setup.h"

namespace echelon {

struct RankStart {
  const std::vector<std::string>& program;
  const RankSetup& setup;
  const LaunchSignals& signals;
  rlimit files;        // the limit of open files to give back
  bool pipes = true;   // else the rank shares our output
  bool input = false;  // it shares our input; else it reads nothing
  int listener = -1;   // left open
  int reports = -1;    // likewise: for what it tells the launcher
};

struct RankStarted {
  pid_t pid = 0;
  Descriptor out, err;  // our ends, not blocking; empty without pipes
  int error = 0;        // why the program cannot be run (errno); the process is gone then
};

// Returns when the program runs, or cannot. Throws Error when the system refuses a process or pipe.
RankStarted start_rank(const RankStart& start);

// How a process ended, as wait gives it: "was killed by signal 9 (Killed)", "exited with 3".
std::string describe_end(int status);

// The exit code that tells it: 3; 137 for signal 9.
int exit_code_of(int status);

}  // namespace echelon
