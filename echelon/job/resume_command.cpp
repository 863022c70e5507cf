#include "echelon/job/resume_command.h"

#include <fmt/format.h>

#include "echelon/base/shell_text.h"

namespace echelon {

std::string resume_command(const std::filesystem::path& run, const JobEnvironment& environment,
                           std::string_view more) {
  const std::string command = fmt::format("echelon train --resume {}{}{}", shell_word(run.string()),
                                          more.empty() ? "" : " ", more);
  const int world = environment.world;
  const std::string& source = environment.source;
  if (world == 1) return command;
  const bool here = environment.local_world == world;
  if (source == "Slurm") return fmt::format("srun -n {} {}", world, command);
  if (source == "Open MPI" || source == "MPICH")
    return fmt::format("{} -n {} {}{}", source == "MPICH" ? "mpiexec" : "mpirun", world, command,
                       here ? "" : "\n(with the hosts as before)");
  if (here) return fmt::format("{} --nproc {}", command, world);
  return fmt::format("{}\n(on each of the {} ranks, started as before: {})", command, world,
                     source);
}

}  // namespace echelon
