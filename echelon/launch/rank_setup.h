// What the launcher gives to each rank: variables, and CPUs to run on.
//
//   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   ECHELON_RENDEZVOUS      where the ranks meet
//   ECHELON_RENDEZVOUS_FD   rank 0 of a local job: a socket that listens there already
//   ECHELON_TOKEN           the job's secret
//   ECHELON_TERMINAL        rank 0, where its output is passed on as it is: the launcher's terminal
//   ECHELON_LAUNCH_ID       random: which launch this rank is of (job_identity.h)
//   ECHELON_LAUNCH_COMMAND  several nodes: what they all run, likewise
//   ECHELON_LAUNCHER_FD     a pipe to the launcher (launcher_report.h)
//   MASTER_ADDR, MASTER_PORT   for torch's own store
//   OMP_NUM_THREADS         this rank's share of the cores, unless it was set
//   OMP_WAIT_POLICY, GOMP_SPINCOUNT   threads sleep rather than spin when there are more than
//   cores,
//                           unless one of them was set
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "echelon/launch/launcher.h"
#include "echelon/net/host.h"
#include "echelon/net/socket.h"

namespace echelon {

// What all ranks on this machine have in common.
struct JobSetup {
  Address rendezvous;
  Descriptor listener;  // of a local job: at `rendezvous`
  std::uint16_t master_port = 0;
  std::string token;
  bool made_token = false;  // for this job alone: the user gave none
  std::string launch_id;
  int cores = 1;
  std::vector<CpuList> numa;
};

// Throws InvalidArgument for options that do not fit together; of several machines also when they
// have no token in common.
JobSetup job_setup(const LaunchOptions& options);

struct RankSetup {
  int rank = 0;
  // What changes against the launcher's own environment; nothing: the variable is removed.
  std::map<std::string, std::optional<std::string>> variables;
  CpuList cpus;  // empty: all
};

RankSetup rank_setup(const LaunchOptions& options, const JobSetup& job, int local_rank);

// The launcher's environment with a rank's changes, as "NAME=VALUE".
std::vector<std::string> environment_of(const RankSetup& rank);

}  // namespace echelon
