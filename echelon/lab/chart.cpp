#include "echelon/lab/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/base/xml.h"

namespace echelon {
namespace {

constexpr double width = 720, height = 440;
constexpr double left = 80, right = 24, top = 70, bottom = 60;
constexpr double row = 18;  // of the legend
// From the palette of Okabe and Ito, which colour-blind readers can tell apart.
constexpr std::array<std::string_view, 5> colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#222222"};

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Where a value lies, from 0 to 1.
  double place(double value) const {
    return high > low ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) : 0.5;
  }
};

// 1, 2 and 5 of every power of ten.
std::vector<double> round_values(const Range& range) {
  std::vector<double> values;
  for (double power = std::pow(10, std::floor(std::log10(range.low))); power <= range.high;
       power *= 10)
    for (const double digit : {1, 2, 5})
      if (const double value = digit * power; value >= range.low && value <= range.high)
        values.push_back(value);
  return values;
}

class Picture {
 public:
  explicit Picture(const Chart& chart) : chart_(chart) {
    for (const auto& series : chart.series)
      for (const auto& [x, y] : series.points) {
        if (!(x > 0) || !(y > 0) || std::isinf(x) || std::isinf(y))
          throw InvalidArgument(
              fmt::format("the chart \"{}\" has the point ({}, {}), and its axes are logarithmic",
                          chart.title, x, y));
        x_.add(x);
        y_.add(y);
      }
    if (std::isinf(x_.low))
      throw InvalidArgument(fmt::format("the chart \"{}\" has no points", chart.title));
    y_ = {y_.low / 1.4, y_.high * 1.4};
  }

  std::string draw() {
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
        "<text x=\"{2}\" y=\"26\" font-size=\"16\">{3}</text>\n"
        "<text x=\"{2}\" y=\"46\" fill=\"#666666\">{4}</text>\n",
        width, height, left, escaped_xml(chart_.title), escaped_xml(chart_.note));
    draw_axes();
    for (const auto& series : chart_.series) draw_series(series);
    draw_legend();
    return text_ + "</svg>\n";
  }

 private:
  double x(double value) const { return left + x_.place(value) * (width - left - right); }
  double y(double value) const {
    return height - bottom - y_.place(value) * (height - top - bottom);
  }

  void draw_axes() {
    for (const double value : round_values(y_))
      text_ += fmt::format(
          "<path d=\"M{} {:.1f}H{}\" stroke=\"#dddddd\"/>\n"
          "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n",
          left, y(value), width - right, left - 8, y(value) + 4, value);
    for (const auto& [value, label] : chart_.ticks)
      text_ += fmt::format(
          "<path d=\"M{0:.1f} {1}v5\" stroke=\"#222222\"/>\n"
          "<text x=\"{0:.1f}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>\n",
          x(value), height - bottom, height - bottom + 20, escaped_xml(label));
    text_ += fmt::format(
        "<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#222222\"/>\n"
        "<text x=\"{4}\" y=\"{5}\" text-anchor=\"middle\">{6}</text>\n"
        "<text transform=\"translate(20 {7}) rotate(-90)\" text-anchor=\"middle\">{8}</text>\n",
        left, top, height - bottom, width - right, (left + width - right) / 2, height - 16,
        escaped_xml(chart_.x), (top + height - bottom) / 2, escaped_xml(chart_.y));
  }

  static std::string_view colour(const Series& series) {
    return colours[std::size_t(series.colour) % colours.size()];
  }

  static std::string stroke(const Series& series) {
    return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}", colour(series),
                       series.style == Series::Style::dashes ? " stroke-dasharray=\"5 4\"" : "");
  }

  void draw_series(const Series& series) {
    if (series.style == Series::Style::points) {
      for (const auto& [a, b] : series.points)
        text_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\"/>\n", x(a),
                             y(b), colour(series));
      return;
    }
    std::string path;
    for (const auto& [a, b] : series.points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(a), y(b));
    text_ += fmt::format("<path d=\"{}\" {}/>\n", path, stroke(series));
  }

  void draw_legend() {
    double at = top + 4;
    for (const auto& series : chart_.series) {
      const double begin = width - right - 220;
      text_ += series.style == Series::Style::points
                   ? fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"4.5\" fill=\"{}\"/>\n",
                                 begin + 12, at, colour(series))
                   : fmt::format("<path d=\"M{} {}h24\" {}/>\n", begin, at, stroke(series));
      text_ += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", begin + 32, at + 4,
                           escaped_xml(series.name));
      at += row;
    }
  }

  const Chart& chart_;
  Range x_, y_;
  std::string text_;
};

}  // namespace

std::string svg(const Chart& chart) { return Picture(chart).draw(); }

}  // namespace echelon
