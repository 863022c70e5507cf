// Who this process is in its job: its rank, the size of the world, and where the ranks meet.
// launch/environment.h reads it from what a launcher or a scheduler has set.
#pragma once

#include <string>

#include "echelon/net/job_identity.h"

namespace echelon {

struct JobEnvironment {
  int rank = 0;
  int world = 1;
  // Among the ranks on this machine. When nobody says: all ranks if they meet at a loopback
  // address, else this one alone.
  int local_rank = 0;
  int local_world = 1;
  std::string rendezvous;              // "host:port"; empty when world is 1
  std::string source = "one process";  // who said so: "torchrun", "Open MPI", "Slurm", …
  JobIdentity identity;
  // Where a scheduler has set several tasks aside and this process is none of them: what to do.
  std::string not_a_rank;
};

}  // namespace echelon
