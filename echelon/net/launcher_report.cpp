#include "echelon/net/launcher_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr std::size_t longest_line = 1024;  // below PIPE_BUF: lines of ranks never mix
static_assert(longest_line < PIPE_BUF);

bool is_set_to(const char* name, int number) {
  const char* value = std::getenv(name);
  return value != nullptr && value == std::to_string(number);
}

// The pipe, if it is still the one that the launcher opened: a program in between may have closed
// it, and the number may mean another file now.
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
  // The pipe does not block: a launcher that has stopped reading misses the report.
  [[maybe_unused]] const auto told = ::write(pipe_, line.data(), line.size());
}

ReportPipe::ReportPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(with_errno("cannot make a pipe for the reports of ranks"));
  read_ = Descriptor(ends[0]);
  write_ = Descriptor(ends[1]);
}

std::string ReportPipe::variable() const {
  struct stat file {};
  if (::fstat(write_.get(), &file) != 0) throw Error(with_errno("cannot look at a pipe"));
  return fmt::format("{}:{}", write_.get(), file.st_ino);
}

std::vector<ReportPipe::Report> ReportPipe::read_ready() {
  std::array<char, 4096> bytes;
  for (ssize_t size; (size = ::read(read_.get(), bytes.data(), bytes.size())) > 0;)
    partial_.append(bytes.data(), static_cast<std::size_t>(size));
  std::vector<Report> reports;
  std::size_t begin = 0;
  for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1)
    if (const auto report = parse(std::string_view(partial_).substr(begin, end - begin)))
      reports.push_back(*report);
  partial_.erase(0, begin);
  return reports;
}

std::optional<ReportPipe::Report> ReportPipe::parse(std::string_view line) {
  const std::string text(line);
  Report report;
  int at = 0;
  if (std::sscanf(text.c_str(), "expendable %d%n", &report.rank, &at) == 1 &&
      at == int(text.size())) {
    report.kind = Report::Kind::expendable;
  } else if (std::sscanf(text.c_str(), "blames %d %d %n", &report.rank, &report.other, &at) == 2 &&
             at > 0) {
    report.kind = Report::Kind::blames;
    report.name = text.substr(static_cast<std::size_t>(at));
  } else {
    return std::nullopt;
  }
  if (report.rank < 0) return std::nullopt;
  return report;
}

}  // namespace echelon
