#include "echelon/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numbers>

#include "echelon/base/bytes.h"

namespace echelon {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(100);
constexpr auto line_every = std::chrono::seconds(5);

int terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string clock_time(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

Progress::Progress(std::int64_t first_step, std::int64_t steps, bool bytes)
    : first_(first_step), steps_(steps), bytes_(bytes), terminal_(isatty(STDOUT_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\n", stdout);
  std::fflush(stdout);
}

std::string Progress::describe(const StepReport& report) const {
  std::string text = fmt::format("loss {:.3f}", report.loss);
  if (bytes_) text += fmt::format("  {:.3f} bits/byte", report.loss / std::numbers::ln2);
  text += fmt::format("  {} tokens/s",
                      human_count(static_cast<double>(report.targets) / smooth_seconds_));
  return text + fmt::format("  {} left", clock_time(smooth_seconds_ *
                                                    static_cast<double>(steps_ - report.step)));
}

void Progress::step(const StepReport& report) {
  // The first steps make plans and fault memory in; they say little about the time left.
  const bool settling = report.step - first_ <= 3;
  smooth_seconds_ = settling ? report.seconds : 0.95 * smooth_seconds_ + 0.05 * report.seconds;
  const auto now = Clock::now();
  const bool last = report.step == steps_;
  if (!last &&
      now - shown_ < (terminal_ ? Clock::duration(redraw_every) : Clock::duration(line_every)))
    return;
  shown_ = now;

  const auto digits = fmt::format("{}", steps_).size();
  const std::string count = fmt::format("step {:>{}}/{}", report.step, digits, steps_);
  const std::string numbers = describe(report);
  if (!terminal_) {
    fmt::print("{}  {}\n", count, numbers);
    std::fflush(stdout);
    return;
  }
  const int room = terminal_width() - static_cast<int>(count.size() + numbers.size()) - 5;
  std::string bar;
  if (room >= 8) {
    const int cells = std::min(room, 40);
    const auto full = static_cast<int>(cells * report.step / steps_);
    bar = "  \x1b[36m";
    for (int i = 0; i < full; ++i) bar += "━";
    bar += "\x1b[90m";
    for (int i = full; i < cells; ++i) bar += "━";
    bar += "\x1b[0m";
  }
  // A line that wraps could not be drawn over.
  const auto left =
      static_cast<std::size_t>(std::max(0, room + 2 + static_cast<int>(numbers.size())));
  fmt::print("\r\x1b[2K{}{}  {}", count, bar, bar.empty() ? numbers.substr(0, left) : numbers);
  std::fflush(stdout);
  drawn_ = true;
}

void Progress::say(const std::string& line) {
  fmt::print("{}{}\n", drawn_ ? "\r\x1b[2K" : "", line);
  std::fflush(stdout);
  drawn_ = false;
}

}  // namespace echelon
