// Limits of the shell and the container that keep torch from mapping memory or starting threads.
#pragma once

#include <exception>
#include <string>

namespace echelon::cli {

// Throws InvalidArgument where 'ulimit -v' leaves so little address space that torch or the C++
// runtime would end the process with a signal before any error could be reported.
void require_address_space();

// `message` of `error`; where memory or threads ran out, or the address space is used up, with the
// limit that is too small. Libraries say "could not create a primitive" or "Resource temporarily
// unavailable" then.
std::string with_limit(const std::string& message, const std::exception& error);

}  // namespace echelon::cli
