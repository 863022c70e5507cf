// All descendants of this process, found in /proc. Together with prctl(PR_SET_CHILD_SUBREAPER) this
// covers what process groups do not: processes that started their own session, and orphans.
#pragma once

#include <sys/types.h>

#include <vector>

#include "echelon/base/deadline.h"

namespace echelon {

// The living children of this process.
std::vector<pid_t> children();

// All living descendants of this process, except `spared` and their descendants.
std::vector<pid_t> descendants(const std::vector<pid_t>& spared = {});

// Whether the process or one of its descendants is stopped (SIGSTOP, a debugger).
bool is_stopped(pid_t pid);

// Kills and reaps all descendants until none is left; false if some are left at the deadline (the
// kernel may keep a process until its disk answers). This process must be a subreaper, and no other
// thread may wait for these processes.
bool end_descendants(Deadline deadline, const std::vector<pid_t>& spared = {});

}  // namespace echelon
