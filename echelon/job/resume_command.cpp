#include "echelon/job/resume_command.h"

#include <fmt/format.h>

namespace echelon {
namespace {

// Quoted as one word for a shell.
std::string in_shell(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./,:+-=@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string resume_command(const std::filesystem::path& run, const JobEnvironment& environment,
                           std::string_view more) {
  const std::string command = fmt::format("echelon train --resume {}{}{}", in_shell(run.string()),
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
