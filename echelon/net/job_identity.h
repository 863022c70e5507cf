// Distinguishes a job from another one that uses the same address and the same token. Ranks send it
// to the rendezvous, which refuses ranks of another job.
#pragma once

#include <cstddef>
#include <string>

namespace echelon {

struct JobIdentity {
  static constexpr std::size_t longest = 200;  // bytes of each text

  // ECHELON_JOB_ID, or the scheduler's id of the job: "Slurm 4711.0". Equal on all ranks of a job;
  // empty if unknown.
  std::string job = {};
  // The random id of the `echelon launch` that started this rank (ECHELON_LAUNCH_ID): equal on all
  // ranks of a launch, which begin at `first_rank`. Empty if something else started it.
  std::string launch = {};
  int first_rank = 0;
  // The command that `echelon launch` runs on several nodes (ECHELON_LAUNCH_COMMAND): the launches
  // of a job have different ids and the same command. Empty if unknown.
  std::string command = {};
};

}  // namespace echelon
