#include "echelon/launch/report_pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "echelon/base/error.h"

namespace echelon {

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
