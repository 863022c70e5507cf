// How many files (connections among them) a process may have open.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <string>

namespace echelon {

// Raises the process's own limit to the hard one. Gives the limit before.
rlimit raise_file_limit();

// Files that this process has open now.
std::size_t open_files();

// Throws InvalidArgument where `further` files cannot be opened beside those that are open: says
// how many are needed for `what`, what the limit is and how it is raised.
void require_files(std::size_t further, const std::string& what);

}  // namespace echelon
