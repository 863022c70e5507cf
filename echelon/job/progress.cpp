#include "echelon/job/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <numbers>

#include "echelon/base/bytes.h"
#include "echelon/base/terminal.h"

namespace echelon {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(100);
constexpr auto line_every = std::chrono::seconds(5);
constexpr int shortest_bar = 10, longest_bar = 40;

std::string clock_time(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

// Without colours, the done part of the bar has another shape.
std::string bar_of(int cells, double done, bool colours) {
  const auto full = std::clamp(static_cast<int>(cells * done), 0, cells);
  std::string bar = colours ? "\x1b[36m" : "";
  for (int i = 0; i < full; ++i) bar += "━";
  if (colours) bar += "\x1b[90m";
  for (int i = full; i < cells; ++i) bar += colours ? "━" : "·";
  return bar + (colours ? "\x1b[0m" : "");
}

// As much of a text as fits on the screen, above one more line.
std::string fitting_lines(const std::string& text) {
  const auto columns = static_cast<std::size_t>(std::max(1, terminal::columns() - 1));
  std::string fitting;
  int lines = 0;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    if (++lines + 1 >= terminal::rows()) break;
    fitting += text.substr(begin, std::min(end - begin, columns)) + "\n";
  }
  return fitting;
}

}  // namespace

std::string bar_line(const std::string& count, const std::vector<std::string>& numbers, double done,
                     int columns, bool colours) {
  std::vector<std::string> shown = numbers;
  const auto room = [&] {  // the last column stays free: some terminals wrap there
    std::size_t taken = count.size() + 3;
    for (const auto& number : shown) taken += number.size() + 2;
    return columns - static_cast<int>(taken);
  };
  while (room() < shortest_bar && shown.size() > 2) shown.erase(shown.begin() + 1);
  if (room() >= shortest_bar)
    return fmt::format("{}  {}  {}", count, bar_of(std::min(room(), longest_bar), done, colours),
                       fmt::join(shown, "  "));
  return fmt::format("{}  {}", count, fmt::join(shown, "  "))
      .substr(0, static_cast<std::size_t>(std::max(0, columns - 1)));
}

Progress::Progress(std::int64_t first_step, std::int64_t steps, const LossUnits& units,
                   ShowProgress show)
    : first_(first_step),
      steps_(steps),
      units_(units),
      shown_at_all_(show != ShowProgress::none),
      terminal_(show == ShowProgress::automatic && !terminal::path().empty()) {}

Progress::~Progress() { terminal::keep(); }

// bar_line drops the second number first: bits per byte, which follows from the loss, then the
// speed.
std::vector<std::string> Progress::numbers_of(const StepReport& report) const {
  std::vector<std::string> numbers = {fmt::format("loss {:.3f}", report.loss)};
  if (units_.bits_per_byte)
    numbers.push_back(fmt::format("{:.3f} bits/byte", report.loss / std::numbers::ln2));
  numbers.push_back(fmt::format("{} {}/s",
                                human_count(static_cast<double>(report.targets) / smooth_seconds_),
                                units_.counts));
  numbers.push_back(fmt::format(
      "{} left", clock_time(smooth_seconds_ * static_cast<double>(steps_ - report.step))));
  return numbers;
}

void Progress::step(const StepReport& report) {
  // The first steps make plans and fault memory in; they do not predict the time left.
  const bool settling = report.step - first_ <= 3;
  smooth_seconds_ = settling ? report.seconds : 0.95 * smooth_seconds_ + 0.05 * report.seconds;
  const auto now = Clock::now();
  const bool last = report.step == steps_;
  if (!shown_at_all_ || (!last && now - shown_ < (terminal_ ? Clock::duration(redraw_every)
                                                            : Clock::duration(line_every))))
    return;
  shown_ = now;

  const auto digits = fmt::format("{}", steps_).size();
  const std::string count = fmt::format("step {:>{}}/{}", report.step, digits, steps_);
  const auto numbers = numbers_of(report);
  if (terminal_) {
    const double done = static_cast<double>(report.step) / static_cast<double>(steps_);
    bar_ = bar_line(count, numbers, done, terminal::columns(), terminal::colours());
    terminal::draw(table_ ? fitting_lines(table_()) + bar_ : bar_);
    return;
  }
  fmt::print("{}  {}\n", count, fmt::join(numbers, "  "));
  std::fflush(stdout);
}

void Progress::remove_table() {
  if (table_ && !bar_.empty()) terminal::draw(bar_);
  table_ = nullptr;
}

void Progress::say(const std::string& line) {
  terminal::clear();
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace echelon
