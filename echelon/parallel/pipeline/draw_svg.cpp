// A picture has a title, one panel per timeline and a legend. A panel has a heading, one row per
// rank and an axis. All panels share one scale.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <sstream>
#include <string_view>

#include "echelon/base/xml.h"
#include "echelon/parallel/pipeline/draw.h"

namespace echelon {

using Kind = Slot::Kind;

namespace {

constexpr int picture_width = 1080, left = 190, right = 52;  // rows are drawn between the margins
constexpr int wide = picture_width - left - right;
constexpr int head = 50, foot = 40;  // above and below the panels
constexpr int heading = 26, row_height = 26, axis = 46, note_height = 18;
constexpr std::string_view ink = "#222222", faint = "#dddddd", ground = "#f4f4f4";

// From the palette of Okabe and Ito, which colour-blind readers can tell apart.
constexpr std::array<std::string_view, 4> colours{"#56b4e9", "#e69f00", "#f0e442", "#009e73"};

struct Panel {
  std::string name;
  const Timeline& timeline;
};

std::string text(double x, double y, std::string_view words, int size = 12,
                 std::string_view anchor = "start", bool bold = false) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" "
      "fill=\"{}\"{}>{}</text>\n",
      x, y, size, anchor, ink, bold ? " font-weight=\"bold\"" : "", escaped_xml(words));
}

// Later chunks are paler.
double opacity(int chunk, int chunks) { return chunks > 1 ? 1 - 0.6 * chunk / (chunks - 1) : 1; }

std::string box(const TimedSlot& one, double top, double pixels_per_second, int chunks) {
  const double x = left + one.begin * pixels_per_second;
  const double width = (one.end - one.begin) * pixels_per_second;
  const auto kind = std::size_t(one.slot.kind);
  std::string out = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" "
      "fill-opacity=\"{:.2f}\" stroke=\"white\" stroke-width=\"0.5\">"
      "<title>{}: {:.3f} to {:.3f} ms</title></rect>\n",
      x, top, width, row_height - 4, colours[kind], opacity(one.slot.chunk, chunks),
      to_string(one.slot), one.begin * 1e3, one.end * 1e3);
  const std::string number = std::to_string(one.slot.micro_batch);
  if (width > 7.0 * double(number.size()) + 1)
    out += text(x + width / 2, top + row_height / 2.0 + 2, number, 11, "middle");
  return out;
}

// The distance between ticks: a round number of milliseconds that gives about eight ticks.
double tick_distance(double milliseconds) {
  const double raw = milliseconds / 8, size = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (factor * size >= raw * 0.999) return factor * size;
  return 10 * size;
}

std::string ticks(double top, double bottom, double seconds) {
  const double distance = tick_distance(seconds * 1e3);
  std::string out;
  for (int i = 0; i * distance <= seconds * 1e3 * (1 + 1e-9); ++i) {
    const double x = left + i * distance / (seconds * 1e3) * wide;
    out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"{}\"/>\n", x, top, bottom + 4,
                       faint);
    out += text(x, bottom + 17, fmt::format("{:.6g}", i * distance), 11, "middle");
  }
  return out + text(left + wide / 2.0, bottom + 34, "milliseconds", 12, "middle");
}

std::string draw(const Panel& panel, double top, double seconds, int chunks,
                 const std::vector<std::string>& rows) {
  const Timeline& timeline = panel.timeline;
  const double first = top + heading, bottom = first + row_height * double(timeline.ranks.size());
  std::string out = text(left, top + 16,
                         fmt::format("{}{:.2f} ms, bubble {:.1f}%", panel.name,
                                     timeline.end() * 1e3, 100 * timeline.bubble()),
                         13, "start", true);
  out += text(picture_width - 8, top + 16, "idle", 11, "end");
  if (seconds > 0) out += ticks(first, bottom, seconds);
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = first + row_height * double(rank) + 2;
    out += text(left - 8, y + row_height / 2.0 + 2,
                rows.empty() ? fmt::format("rank {}", rank) : rows.at(rank), 12, "end");
    out += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"/>\n",
                       left, y, seconds > 0 ? timeline.end() / seconds * wide : 0, row_height - 4,
                       ground);
    for (const TimedSlot& one : timeline.ranks[rank])
      out += box(one, y, seconds > 0 ? wide / seconds : 0, chunks);
    out += text(picture_width - 8, y + row_height / 2.0 + 2,
                fmt::format("{:.0f}%", 100 * timeline.idle(int(rank))), 11, "end");
  }
  return out;
}

// Shows the shades of the chunks side by side for each kind.
std::string legend(const std::set<Kind>& kinds, int chunks, double top) {
  std::string out;
  double x = left;
  for (const Kind kind : kinds) {
    for (int chunk = 0; chunk < chunks; ++chunk, x += 18)
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"14\" fill=\"{}\" "
          "fill-opacity=\"{:.2f}\"/>\n",
          x, top, colours[std::size_t(kind)], opacity(chunk, chunks));
    const auto name = std::string(to_string(kind)) +
                      (chunks > 1 ? fmt::format(", chunks 0 to {}", chunks - 1) : "");
    out += text(x + 6, top + 11, name);
    x += 26 + 7.2 * double(name.size());
  }
  return out;
}

std::string note(const std::string& words, double top) {
  std::string out;
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line); top += note_height)
    out += text(left, top + 11, line);
  return out;
}

std::string picture(const Captions& captions, const std::vector<Panel>& panels) {
  double seconds = 0;
  int chunks = 1;
  std::set<Kind> kinds;
  for (const Panel& panel : panels) {
    seconds = std::max(seconds, panel.timeline.end());
    for (const auto& slots : panel.timeline.ranks)
      for (const TimedSlot& one : slots) {
        chunks = std::max(chunks, one.slot.chunk + 1);
        kinds.insert(one.slot.kind);
      }
  }
  std::string body = text(left, 32, captions.title, 19, "start", true);
  double top = head;
  for (const Panel& panel : panels) {
    body += draw(panel, top, seconds, chunks, captions.rows);
    top += heading + row_height * double(panel.timeline.ranks.size()) + axis;
  }
  body += legend(kinds, chunks, top + 4) + note(captions.note, top + 4 + note_height);
  const double height = top + foot + note_height * double(std::ranges::count(captions.note, '\n'));
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n"
      "<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n{3}"
      "</svg>\n",
      picture_width, height, escaped_xml(captions.title), body);
}

}  // namespace

std::string draw_svg(const Timeline& timeline, const Captions& captions) {
  return picture(captions, {{"", timeline}});
}

std::string draw_svg(const Timeline& predicted, const Timeline& measured,
                     const Captions& captions) {
  return picture(captions, {{"predicted: ", predicted}, {"measured: ", measured}});
}

}  // namespace echelon
