// What the launcher gives to each rank: environment variables, and CPUs to run on.
//
//   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   ECHELON_RENDEZVOUS      the address of the rendezvous
//   ECHELON_RENDEZVOUS_FD   rank 0 of a local job: a socket that already listens there
//   ECHELON_TOKEN           the job's secret
//   ECHELON_TERMINAL        rank 0, if its output is forwarded unchanged: the launcher's terminal
//   ECHELON_LAUNCH_ID       the random id of this launch (job_identity.h)
//   ECHELON_LAUNCH_COMMAND  with several nodes: the command that all of them run (job_identity.h)
//   ECHELON_LAUNCHER_FD     a pipe to the launcher (launcher_report.h)
//   MASTER_ADDR, MASTER_PORT   for torch's own store
//   OMP_NUM_THREADS         this rank's share of the cores, unless it was set
//   OMP_WAIT_POLICY, GOMP_SPINCOUNT   threads sleep instead of spinning if there are more threads
//                           than cores, unless one of them was set
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

// The setup that all ranks on this machine share.
struct JobSetup {
  Address rendezvous;
  Descriptor listener;  // for a local job: listens at `rendezvous`
  std::uint16_t master_port = 0;
  std::string token;
  bool made_token = false;  // the user gave none, so one was made for this job
  std::string launch_id;
  int cores = 1;
  std::vector<CpuList> numa;
};

// Throws InvalidArgument for inconsistent options, and for several machines without a common token.
JobSetup job_setup(const LaunchOptions& options);

struct RankSetup {
  int rank = 0;
  // Changes to the launcher's own environment; no value: the variable is removed.
  std::map<std::string, std::optional<std::string>> variables;
  CpuList cpus;  // empty: all
};

RankSetup rank_setup(const LaunchOptions& options, const JobSetup& job, int local_rank);

// The launcher's environment with a rank's changes, as "NAME=VALUE".
std::vector<std::string> environment_of(const RankSetup& rank);

}  // namespace echelon
