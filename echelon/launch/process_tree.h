// All processes that descend from this one, found in /proc. Together with
// prctl(PR_SET_CHILD_SUBREAPER) it reaches what process groups do not: processes that started a
// session of their own, or whose parents are gone.
#pragma once

#include <sys/types.h>

#include <vector>

#include "echelon/base/deadline.h"

namespace echelon {

// Children of this process that live now.
std::vector<pid_t> children();

// All below this process that live now, except `spared` and what descends from them.
std::vector<pid_t> descendants(const std::vector<pid_t>& spared = {});

// Whether this process, or one that descends from it, is stopped (SIGSTOP, a debugger).
bool is_stopped(pid_t pid);

// Kills all descendants and takes their exit codes, until none is left; false if some are when the
// deadline passes (the system may hold a process until its disk answers). This process must be a
// subreaper; nobody else in it may wait for these processes.
bool end_descendants(Deadline deadline, const std::vector<pid_t>& spared = {});

}  // namespace echelon
