// A rank as a process: it has its own process group, the kernel kills it when its parent dies, and
// its output goes to pipes.
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
  rlimit files;        // the limit of open files to restore
  bool pipes = true;   // otherwise the rank shares our output
  bool input = false;  // it shares our input; otherwise its input is empty
  int listener = -1;   // kept open in the rank
  int reports = -1;    // kept open in the rank: its reports to the launcher
};

struct RankStarted {
  pid_t pid = 0;
  Descriptor out, err;  // our ends, non-blocking; empty without pipes
  int error = 0;        // errno if the program cannot be run; the process has ended then
};

// Returns once the program runs or has failed to start. Throws Error if fork or pipe fails.
RankStarted start_rank(const RankStart& start);

// Describes a wait status: "was killed by signal 9 (Killed)", "exited with 3".
std::string describe_end(int status);

// The exit code for a wait status: 3; 137 for signal 9.
int exit_code_of(int status);

}  // namespace echelon
