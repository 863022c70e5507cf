#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "echelon/net/job_environment.h"

namespace echelon {

// The command line that goes on with a run as it was started: by --nproc, srun, mpirun, or on
// several machines by whatever started its ranks there. The first line can be given to a shell;
// what a shell cannot be told follows in a line of its own. `more` are further arguments, as a
// shell takes them.
std::string resume_command(const std::filesystem::path& run, const JobEnvironment& environment,
                           std::string_view more = "");

}  // namespace echelon
