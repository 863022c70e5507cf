// Starts the ranks of a job on this machine, passes on what they print and the signals it gets, and
// ends them all when one fails.
//
//   LaunchOptions options;
//   options.nproc = 4;
//   options.program = {"./train", "--rate", "1e-3"};
//   return launch(options);
//
// Each rank finds itself in its environment (rank_setup.h), as with torchrun. Whatever happens,
// also kill -9 of the launcher, no process that descends from a rank is left behind.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace echelon {

struct LaunchOptions {
  std::vector<std::string> program;  // and its arguments; looked up in PATH
  int nproc = 1;                     // ranks on this machine, 1 to most_local_ranks

  // Several machines: launch the same on each, with its own node_rank.
  int nodes = 1;
  int node_rank = 0;
  std::string rendezvous;  // "host:port" at machine 0, free there, and the port after it for torch

  std::filesystem::path log_dir;  // what rank R prints is also added to log_dir/rank-R.log
  bool prefix = true;             // "[R] " before each line, when there are several ranks
  bool quiet_others = false;      // show what rank 0 prints only
  bool bind = true;               // ranks to NUMA nodes, where they divide evenly
  // The program takes SIGINT, SIGTERM and SIGHUP for what asks it to end in order. One that they
  // kill was asked before it could say so, while its libraries were loaded: it was interrupted.
  bool takes_interrupts = false;

  std::chrono::milliseconds grace{3000};  // from SIGTERM to SIGKILL, when another rank has failed
  // From the end of the ranks that a job needs to the end of those that are expendable.
  std::chrono::milliseconds leave{10000};
  // From the first of ranks that fail alike to the last, which may just have begun: what they say
  // is shown once.
  std::chrono::milliseconds alike{1000};
};

constexpr int most_local_ranks = 1024;

// What a rank exits with when it failed only because another was lost (PeerLost): the launcher then
// looks for that other, and blames and reports it instead.
constexpr int exit_after_lost_peer = 69;  // EX_UNAVAILABLE of sysexits.h

// What a rank exits with that was asked to end and did so in order: no failure. The launcher asks
// the others to end as well, and gives them the time they need.
constexpr int exit_interrupted = 130;  // as a shell calls SIGINT

// Returns when all ranks are gone: 0, or the exit code of the rank that failed first, 128 + the
// signal that killed it; 126 or 127 when the program cannot be run; 130 after a second Ctrl-C.
// Failures of ranks are told on standard error, in a sentence, with the rank's last lines; the last
// line names the rank that failed first. A rank may say that it is expendable (launcher_report.h):
// its failure is told but ends nobody else, and does not count for the exit code unless all fail.
// It is no failure of its own where it blames a rank that the job needs, or where such a rank is
// stopped: then that one is named. Expendable ranks that still run some time after all others have
// ended are killed, and the exit code stays what it is.
//
// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the ranks and what they
// start; the ranks may then take the time they need to end, and those that are stopped go on to do
// so. A second SIGINT kills them. Ctrl-Z stops and continues them with the launcher.
//
// A single rank without a log shares the launcher's own output. Standard input is rank 0's, unless
// it is a terminal (a rank that read it would be stopped: ranks are in process groups of their
// own); other ranks read nothing.
//
// It forks and blocks signals: call it from the main thread, before there are others. Throws
// InvalidArgument for options that do not fit, and Error when the system refuses to begin.
int launch(const LaunchOptions& options);

}  // namespace echelon
