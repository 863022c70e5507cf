// Limits of the shell and the container that keep torch from mapping memory or starting threads.
#pragma once

#include <exception>
#include <string>

namespace echelon::cli {

// Throws InvalidArgument where 'ulimit -v' leaves so little address space that torch or the C++
// runtime would end the process with a signal before any error could be reported.
void require_address_space();

// Adds the limit that is too small to `message` of `error`, if memory, threads or address space ran
// out. Libraries only say "could not create a primitive" or "Resource temporarily unavailable".
std::string with_limit(const std::string& message, const std::exception& error);

}  // namespace echelon::cli
