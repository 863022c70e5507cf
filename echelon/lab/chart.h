// A chart of measured points and predicted lines, as an SVG picture. Both axes are logarithmic.
//
//   Chart chart{.title = "…", .x = "bucket", .y = "ms"};
//   chart.series.push_back({.name = "measured", .points = {{65536, 1.5}, {1 << 20, 0.9}}});
//   write_file("chart.svg", svg(chart));
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace echelon {

struct Series {
  enum class Style { points, line, dashes };

  std::string name;
  Style style = Style::points;
  int colour = 0;  // series of one colour belong together
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title, note;                            // the note stands below the title
  std::string x, y;                                   // names of the axes, with units
  std::vector<std::pair<double, std::string>> ticks;  // of the x axis
  std::vector<Series> series;                         // coordinates are positive
};

// Throws InvalidArgument if there are no points, or a coordinate is not positive.
std::string svg(const Chart& chart);

}  // namespace echelon
