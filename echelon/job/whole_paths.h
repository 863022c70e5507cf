#pragma once

#include "echelon/job/options.h"

namespace echelon {

// The options with all paths absolute, so that they hold from any folder.
JobOptions with_whole_paths(JobOptions options);

}  // namespace echelon
