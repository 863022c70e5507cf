// The limit of open files (including sockets) of a process.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <string>

namespace echelon {

// Raises the soft limit to the hard limit. Returns the previous soft limit.
rlimit raise_file_limit();

// The number of open files of this process.
std::size_t open_files();

// Throws InvalidArgument if `further` more files cannot be opened: says how many are needed for
// `what`, what the limit is and how to raise it.
void require_files(std::size_t further, const std::string& what);

}  // namespace echelon
