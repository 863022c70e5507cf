#include "echelon/base/log.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

// Names have at most five letters, so that messages align in a column.
#define SPDLOG_LEVEL_NAMES \
  { "trace", "debug", "info", "warn", "error", "fatal", "off" }
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>

#include "echelon/base/error.h"
#include "echelon/base/terminal.h"

namespace echelon::log {

namespace {

struct State {
  std::mutex mutex;  // guards the two below; the logger itself is thread-safe
  int rank = 0;
  std::shared_ptr<spdlog::logger> file;  // null until open()
};

// Never destroyed: messages may come from destructors of other static objects. The C library
// flushes the stream when the process ends.
State& state() {
  static auto& state = *new State;
  return state;
}

std::string pattern(int rank) { return fmt::format("%Y-%m-%d %H:%M:%S.%e [{}] %-5l %v", rank); }

void to_file(spdlog::level::level_enum level, std::string_view message) {
  std::shared_ptr<spdlog::logger> file;
  {
    std::lock_guard lock(state().mutex);
    file = state().file;
  }
  if (file) file->log(level, spdlog::string_view_t(message.data(), message.size()));
}

// One call for the whole line, so that lines of several ranks do not mix on a terminal.
void to_person(std::string_view kind, std::string_view message) {
  terminal::clear();  // otherwise the message would appear within the progress bar
  const auto line = fmt::format("echelon: {}: {}\n", kind, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void set_rank(int rank) {
  std::lock_guard lock(state().mutex);
  state().rank = rank;
  if (state().file) state().file->set_pattern(pattern(rank));
}

void open(const std::filesystem::path& file) {
  std::shared_ptr<spdlog::logger> logger;
  try {
    logger = std::make_shared<spdlog::logger>(
        "echelon", std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string()));
  } catch (const spdlog::spdlog_ex&) {
    throw Error(with_errno(fmt::format("cannot open the log file {}", file.string())));
  }
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::info);

  std::lock_guard lock(state().mutex);
  logger->set_pattern(pattern(state().rank));
  state().file = std::move(logger);
}

void debug(std::string_view message) { to_file(spdlog::level::debug, message); }

void info(std::string_view message) { to_file(spdlog::level::info, message); }

void warn(std::string_view message) {
  to_file(spdlog::level::warn, message);
  to_person("warning", message);
}

void error(std::string_view message) {
  to_file(spdlog::level::err, message);
  to_person("error", message);
}

void flush() {
  std::shared_ptr<spdlog::logger> file;
  {
    std::lock_guard lock(state().mutex);
    file = state().file;
  }
  if (file) file->flush();
}

}  // namespace echelon::log
