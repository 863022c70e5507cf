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

// Which rank this process is; 0 until told.
void set_rank(int rank);

// From now on every message also goes to `file` (appended), and no longer to the file of an earlier
// call. Throws Error when it cannot be opened.
void open(const std::filesystem::path& file);

void debug(std::string_view message);  // the file only
void info(std::string_view message);   // the file only
void warn(std::string_view message);   // the file and standard error
void error(std::string_view message);  // the file and standard error

// Writes out what is buffered; also happens by itself on info, warn and error (a killed rank's last
// words are the ones that matter), and when the process ends.
void flush();

}  // namespace echelon::log
