#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/parallel/pipeline/draw.h"

namespace echelon {

using Kind = Slot::Kind;

namespace {

template <class Visit>
void for_each(const Timeline& timeline, Visit&& visit) {
  for (const auto& slots : timeline.ranks)
    for (const TimedSlot& one : slots) visit(one);
}

std::vector<double> durations(const Timeline& timeline) {
  std::vector<double> all;
  for_each(timeline, [&](const TimedSlot& one) {
    if (one.end > one.begin) all.push_back(one.end - one.begin);
  });
  std::ranges::sort(all);
  return all;
}

// Columns per second: as many as fit, but enough to give most slots one column each. If stages cost
// the same, all times are multiples of the shortest slot. That slot then gets a whole number of
// columns, so that equal boxes look equal.
double columns_per_second(const Timeline& timeline, std::size_t columns) {
  const std::vector<double> sorted = durations(timeline);
  if (sorted.empty()) return 0;  // nothing ran
  const double shortest = sorted.front(), quarter = sorted[sorted.size() / 4];
  bool multiples = quarter < 1.5 * shortest;  // not a single short slot among long ones
  for_each(timeline, [&](const TimedSlot& one) {
    for (const double time : {one.begin / shortest, one.end / shortest})
      multiples = multiples && std::abs(time - std::round(time)) < 1e-3;
  });
  const double full = double(columns) / timeline.end();
  const double wanted =
      multiples ? std::max(1.0, std::floor(full * shortest + 1e-9)) / shortest : 1 / quarter;
  return std::clamp(wanted, multiples ? 0 : full, 100 * full);
}

// Kind and chunk. With one chunk: F, B, I, W. With several: A, B, ... for forward, a, b, ... for
// backward, and wa, wb, ... for weight parts.
std::string letters(const Slot& slot, bool chunks) {
  if (!chunks) return std::string(1, "FBIW"[std::size_t(slot.kind)]);
  const auto chunk = char(slot.chunk % 26);
  if (slot.kind == Kind::forward) return std::string(1, char('A' + chunk));
  return (slot.kind == Kind::weight ? "w" : "") + std::string(1, char('a' + chunk));
}

std::string box(const Slot& slot, bool chunks, std::size_t width) {
  std::string text = letters(slot, chunks).substr(0, width);
  std::string number = std::to_string(slot.micro_batch);
  const auto digits = std::min(number.size(), width - text.size());
  text += number.substr(number.size() - digits);
  return text + std::string(width - text.size(), "-==~"[std::size_t(slot.kind)]);
}

std::string row(const std::vector<TimedSlot>& slots, double scale, std::size_t columns,
                bool chunks) {
  std::string text(columns, ' ');
  for (const TimedSlot& one : slots) {
    const auto column = [&](double time) {
      return std::min(std::size_t(std::lround(std::max(0.0, time * scale))), columns);
    };
    const auto begin = column(one.begin), width = std::max(begin, column(one.end)) - begin;
    if (width > 0) text.replace(begin, width, box(one.slot, chunks, width));
  }
  return text;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

// Keeps the two ends of a row that is too long. The pipeline fills and drains there; in between it
// repeats itself.
std::string cut(const std::string& row, std::size_t columns) {
  static constexpr std::string_view gap = " .. ";
  if (row.size() <= columns) return row;
  const auto right = (columns - gap.size()) / 2, left = columns - gap.size() - right;
  return fmt::format("{}{}{}", row.substr(0, left), gap, row.substr(row.size() - right));
}

std::string legend(const Timeline& timeline, bool chunks) {
  std::set<Kind> kinds;
  for_each(timeline, [&](const TimedSlot& one) { kinds.insert(one.slot.kind); });
  std::string text;
  for (const Kind kind : kinds)
    text += fmt::format("{}{}0 {}", text.empty() ? "" : ", ", letters({kind, 0, 0}, chunks),
                        to_string(kind));
  return text + fmt::format(" of {}micro-batch 0; %: idle", chunks ? "chunk A's " : "");
}

std::vector<std::string> numbered(std::size_t ranks) {
  const auto digits = fmt::formatted_size("{}", std::max<std::size_t>(ranks, 1) - 1);
  std::vector<std::string> names;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    names.push_back(fmt::format("rank {:>{}}", rank, digits));
  return names;
}

}  // namespace

std::string draw_text(const Timeline& timeline, int width, const std::vector<std::string>& rows) {
  const auto names = rows.empty() ? numbered(timeline.ranks.size()) : rows;
  std::size_t longest = 0;
  for (const auto& name : names) longest = std::max(longest, name.size());
  if (const int needed = std::max(40, int(longest) + 30); width < needed)
    throw InvalidArgument(fmt::format(
        "a drawing of a pipeline needs {} or more columns: {} are too few", needed, width));
  const auto room = std::size_t(width) - longest - std::string_view(" || 100%").size();
  const double scale = columns_per_second(timeline, room);
  const auto columns = std::size_t(std::lround(timeline.end() * scale));
  bool chunks = false;
  for_each(timeline, [&](const TimedSlot& one) { chunks = chunks || one.slot.chunk > 0; });

  std::string text;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    text += fmt::format("{:<{}} |{}| {:.0f}%\n", names.at(rank), longest,
                        cut(row(timeline.ranks[rank], scale, columns, chunks), room),
                        100 * timeline.idle(int(rank)));
  const std::string total =
      fmt::format(" {}, bubble {:.1f}% ", time_text(timeline.end()), 100 * timeline.bubble());
  const auto drawn = std::max<std::size_t>(std::min(columns, room), 2);
  const std::string indent(longest + 1, ' ');
  return text + fmt::format("{0}|<{1:-^{2}}>|\n{0}{3}\n", indent, total, drawn - 2,
                            legend(timeline, chunks));
}

}  // namespace echelon
