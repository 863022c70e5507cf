#include "echelon/lab/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;
  double number(const std::string& attribute) const { return std::stod(attributes.at(attribute)); }
};

std::string unescaped(std::string text) {
  const std::vector<std::pair<std::string, std::string>> signs = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [escaped, sign] : signs)
    for (auto at = text.find(escaped); at != text.npos; at = text.find(escaped, at + sign.size()))
      text.replace(at, escaped.size(), sign);
  return text;
}

// The elements of an XML document in their order; a failure if it is not well-formed.
class Document {
 public:
  explicit Document(const std::string& xml) { parse(xml); }

  std::vector<Element> all(const std::string& name) const {
    std::vector<Element> found;
    for (const auto& one : elements_)
      if (one.name == name) found.push_back(one);
    return found;
  }
  // The element with this text.
  Element with_text(const std::string& text) const {
    for (const auto& one : elements_)
      if (one.text == text) return one;
    ADD_FAILURE() << "nothing says: " << text;
    return {};
  }

 private:
  void parse(const std::string& xml) {  // a constructor cannot ASSERT
    std::vector<std::size_t> open;
    for (std::size_t at = 0; at < xml.size();) {
      const auto begin = std::min(xml.find('<', at), xml.size());
      const auto text = xml.substr(at, begin - at);
      if (open.empty()) {
        EXPECT_EQ(text.find_first_not_of("\n"), text.npos) << "outside of the document: " << text;
      } else {
        elements_[open.back()].text += readable(text);
      }
      if (begin == xml.size()) break;
      const auto end = xml.find('>', begin);
      ASSERT_NE(end, xml.npos) << "a tag does not end: " << xml.substr(begin, 40);
      std::string tag = xml.substr(begin + 1, end - begin - 1);
      at = end + 1;
      if (tag.starts_with("/")) {
        ASSERT_FALSE(open.empty()) << tag;
        EXPECT_EQ(tag.substr(1), elements_[open.back()].name);
        open.pop_back();
        continue;
      }
      const bool is_empty = tag.ends_with("/");
      if (is_empty) tag.pop_back();
      EXPECT_TRUE(!open.empty() || elements_.empty()) << "a second root: " << tag;
      elements_.push_back(element_of(tag));
      if (!is_empty) open.push_back(elements_.size() - 1);
    }
    EXPECT_TRUE(open.empty()) << "an element does not end";
  }

  static std::string readable(const std::string& text) {
    EXPECT_EQ(text.find_first_of("<>\""), text.npos) << text;
    for (auto at = text.find('&'); at != text.npos; at = text.find('&', at + 1)) {
      const auto sign = text.substr(at, text.find(';', at) + 1 - at);
      EXPECT_TRUE(sign == "&amp;" || sign == "&lt;" || sign == "&gt;" || sign == "&quot;") << sign;
    }
    return unescaped(text);
  }

  static Element element_of(const std::string& tag) {
    const auto space = std::min(tag.find(' '), tag.size());
    Element element{tag.substr(0, space), {}, {}};
    for (std::size_t at = space; at < tag.size();) {
      const auto name = tag.find_first_not_of(' ', at);
      if (name == tag.npos) break;
      const auto equals = tag.find("=\"", name), end = tag.find('"', equals + 2);
      if (equals == tag.npos || end == tag.npos) {
        ADD_FAILURE() << "an attribute without a value: " << tag;
        break;
      }
      const auto key = tag.substr(name, equals - name);
      const auto value = readable(tag.substr(equals + 2, end - equals - 2));
      EXPECT_TRUE(element.attributes.emplace(key, value).second) << key << " twice: " << tag;
      at = end + 1;
    }
    return element;
  }

  std::vector<Element> elements_;
};

// Where the axes are, by the path that draws both: "M80 70V380H696".
struct Axes {
  double left = 0, top = 0, bottom = 0, right = 0;
  explicit Axes(const Document& picture) {
    for (const auto& path : picture.all("path")) {
      char m = 0, v = 0, h = 0;
      std::istringstream in(path.attributes.at("d"));
      if (in >> m >> left >> top >> v >> bottom >> h >> right && v == 'V' && h == 'H') return;
    }
    ADD_FAILURE() << "no axes";
  }
};

constexpr double rounding = 0.051;  // coordinates have one decimal

const Chart& powers() {
  static const Chart chart{
      .title = "Powers",
      .note = "of ten",
      .x = "bucket",
      .y = "ms",
      .ticks = {{1, "one"}, {10, "ten"}, {1000, "thousand"}},
      .series = {{.name = "measured", .points = {{1, 0.1}, {10, 100}, {1000, 1}, {100, 10}}}}};
  return chart;
}

// Circles of the data, without that of the legend.
std::vector<Element> points_of(const Document& picture, std::size_t count) {
  auto circles = picture.all("circle");
  EXPECT_EQ(circles.size(), count + 1) << "one more is in the legend";
  circles.resize(count);
  return circles;
}

// The x axis reaches from the smallest to the largest value, and the y axis 1.4 times as far on
// either side. A value v of a range from a to b lies at log(v / a) / log(b / a) of its length.
TEST(Chart, PlacesPointsWhereALogarithmicAxisHasThem) {
  const Document picture(svg(powers()));
  const Axes axes(picture);
  const auto& points = powers().series[0].points;
  const auto drawn = points_of(picture, points.size());
  const double low = 0.1 / 1.4, high = 100 * 1.4;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto [x, y] = points[i];
    const double along = std::log(x / 1) / std::log(1000. / 1),
                 up = std::log(y / low) / std::log(high / low);
    EXPECT_NEAR(drawn[i].number("cx"), axes.left + along * (axes.right - axes.left), rounding) << x;
    EXPECT_NEAR(drawn[i].number("cy"), axes.bottom - up * (axes.bottom - axes.top), rounding) << y;
  }
}

TEST(Chart, DrawsALineThroughThePointsThatItsCirclesHave) {
  Chart chart = powers();
  chart.series.push_back(chart.series[0]);
  chart.series[0].style = Series::Style::line;
  chart.series[1].style = Series::Style::dashes;
  std::vector<std::string> lines;
  const Document picture(svg(chart));
  for (const auto& path : picture.all("path"))
    if (path.attributes.at("d").find('L') != std::string::npos)
      lines.push_back(path.attributes.at("d") +
                      (path.attributes.contains("stroke-dasharray") ? " dashed" : ""));
  std::string through;
  for (const auto& point : points_of(Document(svg(powers())), 4))
    through +=
        (through.empty() ? "M" : "L") + point.attributes.at("cx") + " " + point.attributes.at("cy");
  EXPECT_EQ(lines, (std::vector{through, through + " dashed"}));
}

TEST(Chart, LabelsItsAxesAtTheirValues) {
  const Document picture(svg(powers()));
  const auto points = points_of(picture, 4);
  EXPECT_NEAR(picture.with_text("one").number("x"), points[0].number("cx"), rounding);
  EXPECT_NEAR(picture.with_text("ten").number("x"), points[1].number("cx"), rounding);
  EXPECT_NEAR(picture.with_text("thousand").number("x"), points[2].number("cx"), rounding);
  // Labels of the y axis stand 4 below their lines, which is the middle of their digits.
  EXPECT_NEAR(picture.with_text("0.1").number("y") - 4, points[0].number("cy"), 2 * rounding);
  EXPECT_NEAR(picture.with_text("100").number("y") - 4, points[1].number("cy"), 2 * rounding);
  EXPECT_NEAR(picture.with_text("1").number("y") - 4, points[2].number("cy"), 2 * rounding);
  for (const char* between : {"0.2", "0.5", "2", "5", "10", "20", "50"})
    EXPECT_TRUE(picture.with_text(between).attributes.contains("y")) << between;
}

TEST(Chart, StaysInItsFrame) {
  const Document picture(svg(powers()));
  const Axes axes(picture);
  const auto frame = picture.all("svg").at(0);
  EXPECT_GT(axes.left, 0);
  EXPECT_LT(axes.right, frame.number("width"));
  EXPECT_LT(axes.bottom, frame.number("height"));
  for (const auto& text : picture.all("text")) {
    if (!text.attributes.contains("x")) continue;  // the rotated name of the y axis
    EXPECT_GT(text.number("x"), 0) << text.text;
    EXPECT_LT(text.number("x"), frame.number("width")) << text.text;
    EXPECT_LT(text.number("y"), frame.number("height")) << text.text;
  }
}

TEST(Chart, DrawsOnePointInTheMiddleOfTheXAxis) {
  Chart chart = powers();
  chart.ticks.clear();
  chart.series[0].points = {{7, 3}};
  const Document picture(svg(chart));
  const Axes axes(picture);
  const auto point = points_of(picture, 1)[0];
  EXPECT_NEAR(point.number("cx"), (axes.left + axes.right) / 2, rounding);
  EXPECT_NEAR(point.number("cy"), (axes.top + axes.bottom) / 2, rounding);
}

TEST(Chart, EscapesEveryText) {
  const std::string evil = "<a href=\"x\"> & </svg>";
  Chart chart = powers();
  chart.title = "title " + evil;
  chart.note = "note " + evil;
  chart.x = "x " + evil;
  chart.y = "y " + evil;
  chart.ticks[0].second = "tick " + evil;
  chart.series[0].name = "name " + evil;
  const Document picture(svg(chart));
  for (const char* what : {"title ", "note ", "x ", "y ", "tick ", "name "})
    EXPECT_EQ(picture.with_text(what + evil).name, "text");
  EXPECT_EQ(picture.all("a").size(), 0u);
}

TEST(Chart, GivesSeriesOfOneColourOneColour) {
  Chart chart = powers();
  for (const int colour : {1, 0, 1, 5000})
    chart.series.push_back({.name = "more", .colour = colour, .points = {{1, 1}}});
  const auto drawn = Document(svg(chart)).all("circle");
  ASSERT_EQ(drawn.size(), 4u + 4u + 5u);
  const auto colour = [&](std::size_t series) { return drawn[3 + series].attributes.at("fill"); };
  EXPECT_EQ(colour(0), colour(2));
  EXPECT_EQ(colour(1), colour(3));
  EXPECT_NE(colour(0), colour(1));
}

TEST(Chart, RefusesPointsThatALogarithmicAxisDoesNotHave) {
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<double, double>> bad = {
      {0, 1}, {1, 0}, {-1, 1}, {1, -1}, {infinity, 1}, {1, infinity}, {nan, 1}, {1, nan}};
  for (const auto& point : bad) {
    Chart chart = powers();
    chart.series[0].points.push_back(point);
    EXPECT_NE(
        thrown<InvalidArgument>([&] { svg(chart); }).find("the chart \"Powers\" has the point ("),
        std::string::npos)
        << point.first << ", " << point.second;
  }
  Chart chart = powers();
  chart.series[0].points.push_back({0, 2});
  EXPECT_EQ(thrown<InvalidArgument>([&] { svg(chart); }),
            "the chart \"Powers\" has the point (0, 2), and its axes are logarithmic");
}

TEST(Chart, RefusesToDrawNothing) {
  Chart chart = powers();
  chart.series[0].points.clear();
  EXPECT_EQ(thrown<InvalidArgument>([&] { svg(chart); }), "the chart \"Powers\" has no points");
  chart.series.clear();
  EXPECT_EQ(thrown<InvalidArgument>([&] { svg(chart); }), "the chart \"Powers\" has no points");
}

}  // namespace
}  // namespace echelon
