#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "echelon/net/job_environment.h"

namespace echelon {

// The command line that resumes a run in the way it was started: with --nproc, srun, mpirun, or on
// several machines with whatever started its ranks. The first line can be pasted into a shell; a
// second line says what a command cannot. `more` are further arguments, quoted for a shell.
std::string resume_command(const std::filesystem::path& run, const JobEnvironment& environment,
                           std::string_view more = "");

}  // namespace echelon
