// Starts the ranks of a job on this machine, forwards their output and the signals it receives, and
// ends all ranks when one fails.
//
//   LaunchOptions options;
//   options.nproc = 4;
//   options.program = {"./train", "--rate", "1e-3"};
//   return launch(options);
//
// Each rank gets its identity in environment variables (rank_setup.h), as with torchrun. Whatever
// happens, even kill -9 of the launcher, no descendant of a rank is left behind.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace echelon {

struct LaunchOptions {
  std::vector<std::string> program;  // and its arguments; looked up in PATH
  int nproc = 1;                     // ranks on this machine, 1 to most_local_ranks

  // With several machines: launch the same program on each, with its own node_rank.
  int nodes = 1;
  int node_rank = 0;
  std::string rendezvous;  // "host:port" on machine 0; this port and the next (for torch) are free

  std::filesystem::path log_dir;  // the output of rank R is also appended to log_dir/rank-R.log
  bool prefix = true;             // "[R] " before each line, when there are several ranks
  bool quiet_others = false;      // show the output of rank 0 only
  bool bind = true;               // bind ranks to NUMA nodes, if they divide evenly
  // The program handles SIGINT, SIGTERM and SIGHUP as requests to end. A rank that one of them
  // kills got it before it had installed its handlers: it counts as interrupted, not as failed.
  bool takes_interrupts = false;
  // If given, becomes true when SIGINT, SIGTERM or SIGHUP was forwarded. The ranks may ignore it,
  // or end with 0 because they were finishing.
  bool* interrupted = nullptr;

  std::chrono::milliseconds grace{3000};  // from SIGTERM to SIGKILL, after another rank has failed
  // How long expendable ranks may run after all other ranks have ended.
  std::chrono::milliseconds leave{10000};
  // How long an error waits for other ranks that fail with the same message, which is shown once
  // for all of them.
  std::chrono::milliseconds alike{1000};
};

constexpr int most_local_ranks = 1024;

// The exit code of a rank that failed only because another was lost (PeerLost): the launcher then
// reports the other rank instead.
constexpr int exit_after_lost_peer = 69;  // EX_UNAVAILABLE of sysexits.h

// The exit code of a rank that was asked to end and did so: not a failure. The launcher asks the
// others to end as well, and gives them the time they need.
constexpr int exit_interrupted = 130;  // as a shell reports SIGINT

// Returns when all ranks have ended: 0, or the exit code of the rank that failed first (128 + the
// signal that killed it); 126 or 127 if the program cannot be run; 130 after a second Ctrl-C.
// Failures of ranks are reported on standard error with the rank's last lines; the last line names
// the rank that failed first. A rank may say that it is expendable (launcher_report.h): its failure
// is reported but does not end the others, and does not affect the exit code unless all ranks fail.
// If it blames a rank that the job needs, or if such a rank is stopped, that rank is named instead.
// Expendable ranks that still run some time after all others have ended are killed; that does not
// change the exit code.
//
// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded to the ranks and their
// children. The ranks may then take the time they need to end; stopped ranks are continued so that
// they can. A second SIGINT kills them. Ctrl-Z stops and continues them with the launcher.
//
// A single rank without a log shares the launcher's own output. Rank 0 gets standard input, unless
// it is a terminal (a rank that read it would be stopped: ranks are in process groups of their
// own); the input of other ranks is empty.
//
// It forks and blocks signals: call it from the main thread, before other threads are started.
// Throws InvalidArgument for invalid options, and Error if the system cannot start the ranks.
int launch(const LaunchOptions& options);

}  // namespace echelon
