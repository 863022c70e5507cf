#include "echelon/net/launcher_report.h"

#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace echelon {
namespace {

constexpr std::size_t longest_line = 1024;  // below PIPE_BUF: lines of different ranks never mix
static_assert(longest_line < PIPE_BUF);

bool is_set_to(const char* name, int number) {
  const char* value = std::getenv(name);
  return value != nullptr && value == std::to_string(number);
}

// The pipe, if it is still the one that the launcher opened. A program in between may have closed
// it, and the number may now belong to another file.
int inherited_pipe() {
  const char* value = std::getenv("ECHELON_LAUNCHER_FD");
  int fd = -1;
  unsigned long long inode = 0;
  struct stat file {};
  if (value == nullptr || std::sscanf(value, "%d:%llu", &fd, &inode) != 2 || fd < 3 ||
      ::fstat(fd, &file) != 0 || !S_ISFIFO(file.st_mode) || file.st_ino != inode)
    return -1;
  return fd;
}

}  // namespace

LauncherReport::LauncherReport(int rank, int world) : rank_(rank) {
  if (is_set_to("RANK", rank) && is_set_to("WORLD_SIZE", world)) pipe_ = inherited_pipe();
}

void LauncherReport::expendable() const { tell(fmt::format("expendable {}", rank_)); }

void LauncherReport::blames(int other, const std::string& name) const {
  tell(fmt::format("blames {} {} {}", rank_, other, name));
}

void LauncherReport::tell(std::string line) const {
  if (pipe_ < 0) return;
  line.resize(std::min(line.size(), longest_line - 1));
  line += '\n';
  // The pipe is non-blocking: if the launcher has stopped reading, it misses the report.
  [[maybe_unused]] const auto told = ::write(pipe_, line.data(), line.size());
}

}  // namespace echelon
