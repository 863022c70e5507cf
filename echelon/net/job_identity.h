// What tells a job from another one that meets at the same address with the same token. Ranks bring
// it to the rendezvous, and one that belongs to another job is refused there.
#pragma once

#include <cstddef>
#include <string>

namespace echelon {

struct JobIdentity {
  static constexpr std::size_t longest = 200;  // bytes of each text

  // ECHELON_JOB_ID, or what the scheduler calls the job: "Slurm 4711.0". All ranks of a job have
  // the same; empty: nobody said.
  std::string job = {};
  // The number of the `echelon launch` that started this rank (ECHELON_LAUNCH_ID, random): all
  // ranks of a launch have the same, from `first_rank` on. Empty: something else started it.
  std::string launch = {};
  int first_rank = 0;
  // What `echelon launch` starts on several nodes, as text (ECHELON_LAUNCH_COMMAND): the launches
  // of a job have different numbers and the same command. Empty: nobody said.
  std::string command = {};
};

}  // namespace echelon
