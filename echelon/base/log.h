// Logging with time and rank: to standard error for what a person should see (warnings and errors)
// and, once a run directory exists, everything to a file of this rank.
//
//   2026-03-01 12:00:00.123 [0] info  resumed at step 500
//
// Thread-safe. A message is a finished string: formatting is the caller's, so this header stays
// light.
#pragma once

#include <filesystem>
#include <string_view>

namespace echelon::log {

// Sets the rank of this process; 0 by default.
void set_rank(int rank);

// Appends every message from now on to `file`, instead of the file of an earlier call. Throws Error
// if it cannot be opened.
void open(const std::filesystem::path& file);

void debug(std::string_view message);  // the file only
void info(std::string_view message);   // the file only
void warn(std::string_view message);   // the file and standard error
void error(std::string_view message);  // the file and standard error

// Flushes buffered messages. This also happens after every info, warn and error (the last messages
// of a killed rank matter most), and when the process ends.
void flush();

}  // namespace echelon::log
