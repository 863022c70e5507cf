#include "echelon/parallel/pipeline/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "echelon/base/error.h"
#include "echelon/parallel/pipeline/simulate.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

Timeline simulated(PipelineOrder name, const PipelineShape& shape, double forward = 1e-3) {
  const std::vector<StageCosts> costs(std::size_t(shape.stages()), {forward, 1e-3, 1e-3});
  return simulate(make_schedule(name, shape), shape, costs);
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// What is wrong with the tags of a document: each must be closed, and tags must nest.
std::string unbalanced(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const auto end = xml.find_first_of("<>", at + 1);
    if (end == std::string::npos || xml[end] == '<') return "a tag that does not end";
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (std::ranges::count(tag, '"') % 2 != 0) return "a quote that does not end: " + tag;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closed, but not open: " + tag;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() ? "" : "left open: " + open.back();
}

TEST(PipelineText, DrawsALineForEachRankToScale) {
  EXPECT_EQ(draw_text(simulated(PipelineOrder::zero_bubble, {2, 3, 1}), 45),
            "rank 0 |F0-F1-   I0=W0~F2-I1=W1~I2=W2~| 10%\n"
            "rank 1 |   F0-I0=F1-I1=W0~F2-I2=W1~W2~| 10%\n"
            "       |<--- 10 ms, bubble 11.1% ---->|\n"
            "       F0 forward, I0 input, W0 weight of micro-batch 0; %: idle\n");
  EXPECT_EQ(draw_text(simulated(PipelineOrder::one_f_one_b, {4, 8, 1}), 80),
            "rank 0 |F0F1F2F3            B0==F4B1==F5B2==F6B3==F7B4==  B5==  B6==  B7==| 27%\n"
            "rank 1 |  F0F1F2        B0==F3B1==F4B2==F5B3==F6B4==F7B5==  B6==  B7==    | 27%\n"
            "rank 2 |    F0F1    B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==  B7==        | 27%\n"
            "rank 3 |      F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==            | 27%\n"
            "       |<--------------------- 33 ms, bubble 37.5% ---------------------->|\n"
            "       F0 forward, B0 backward of micro-batch 0; %: idle\n");
}

TEST(PipelineText, ShowsChunksByTheirLetters) {
  EXPECT_EQ(draw_text(simulated(PipelineOrder::interleaved, {2, 2, 2}), 50),
            "rank 0 |A0A1B0B1    b0==  b1==a0==a1==| 20%\n"
            "rank 1 |  A0A1B0b0==B1b1==a0==a1==    | 20%\n"
            "       |<--- 15 ms, bubble 25.0% ---->|\n"
            "       A0 forward, a0 backward of chunk A's micro-batch 0; %: idle\n");
}

TEST(PipelineText, KeepsTheLastDigitsOfANumberThatDoesNotFit) {
  EXPECT_EQ(lines(draw_text(simulated(PipelineOrder::gpipe, {1, 12, 1}), 86))[0],
            "rank 0 |F0F1F2F3F4F5F6F7F8F9F0F1B0==B1==B2==B3==B4==B5==B6==B7==B8==B9==B10=B11=| 0%");
}

TEST(PipelineText, LeavesTheMiddleOutIfSlotsWouldBeTooNarrow) {
  const auto drawn = lines(draw_text(simulated(PipelineOrder::zero_bubble, {8, 32, 1}), 80));
  EXPECT_EQ(drawn[0],
            "rank 0 |FFFFFFFF       IWFIWFIWFIWFIWFI .. IWFIWFIWFIWFIWFIWIWIWIWIWIWIWIW| 7%");
  EXPECT_EQ(drawn[7],
            "rank 7 |       FIFIFIFIFIFIFIFIWFIWFIWF .. FIWFIWFIWFIWFIWFIWFIWFIWWWWWWWW| 7%");
}

TEST(PipelineText, FitsItsWidthWhateverTheTimes) {
  for (const int width : {40, 80, 120, 200})
    for (const double forward : {0.0, 1e-12, 0.37e-3, 1e-3, 5.0})
      for (const PipelineShape shape : {PipelineShape{1, 1, 1}, {3, 6, 2}, {16, 64, 1}}) {
        const auto name =
            shape.chunks > 1 ? PipelineOrder::interleaved : PipelineOrder::zero_bubble;
        const auto drawn = lines(draw_text(simulated(name, shape, forward), width));
        ASSERT_EQ(std::ssize(drawn), shape.ranks + 2);
        for (int rank = 0; rank < shape.ranks; ++rank) {
          const std::string& line = drawn[std::size_t(rank)];
          EXPECT_LE(line.size(), std::size_t(width)) << line;
          EXPECT_EQ(line.rfind('|'), drawn.front().rfind('|')) << line;
        }
      }
  EXPECT_EQ(thrown<InvalidArgument>([] { draw_text(Timeline{}, 39); }),
            "a drawing of a pipeline needs 40 or more columns: 39 are too few");
}

TEST(PipelineText, UsesTheGivenRowNames) {
  const std::vector<std::string> rows = {"stage 0 (rank 0)", "stage 1 (rank 12)"};
  EXPECT_EQ(draw_text(simulated(PipelineOrder::gpipe, {2, 1, 1}), 60, rows),
            "stage 0 (rank 0)  |F0---               B0========| 50%\n"
            "stage 1 (rank 12) |     F0---B0========          | 50%\n"
            "                  |<--- 6 ms, bubble 100.0% ---->|\n"
            "                  F0 forward, B0 backward of micro-batch 0; %: idle\n");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              draw_text(simulated(PipelineOrder::gpipe, {2, 1, 1}), 46, rows);
            }),
            "a drawing of a pipeline needs 47 or more columns: 46 are too few");
}

TEST(PipelineText, AcceptsMeasuredTimes) {
  Timeline measured;
  measured.ranks = {{{{Slot::Kind::forward, 0, 0}, -0.001, 0.010}},
                    {{{Slot::Kind::forward, 0, 0}, 0.011, 0.0203}}};
  EXPECT_EQ(lines(draw_text(measured, 46))[0], "rank 0 |F0--------------                | 46%");
}

TEST(PipelineSvg, HasABoxForEachSlotAndSaysWhatItIs) {
  const std::string svg =
      draw_svg(simulated(PipelineOrder::zero_bubble, {3, 5, 1}), {.title = "zero-bubble"});
  EXPECT_EQ(unbalanced(svg), "");
  EXPECT_EQ(count(svg, "<title>forward(chunk 0, micro-batch "), 15);
  EXPECT_EQ(count(svg, "<title>input(chunk 0, micro-batch "), 15);
  EXPECT_EQ(count(svg, "<title>weight(chunk 0, micro-batch "), 15);
  EXPECT_EQ(count(svg, "<title>weight(chunk 0, micro-batch 0): 6.000 to 7.000 ms</title>"), 1);
  for (const std::string part : {">rank 0<", ">rank 2<", ">milliseconds<", ">forward<", ">input<",
                                 ">weight<", ">17.00 ms, bubble 13.3%<", ">zero-bubble</title>"})
    EXPECT_EQ(count(svg, part), 1) << part;
  EXPECT_EQ(count(svg, ">backward<"), 0);
}

TEST(PipelineSvg, ShowsChunksByTheirShades) {
  const std::string svg =
      draw_svg(simulated(PipelineOrder::interleaved, {2, 4, 3}), {.title = "interleaved"});
  EXPECT_EQ(unbalanced(svg), "");
  for (const std::string shade : {"1.00", "0.70", "0.40"})
    EXPECT_EQ(count(svg, "fill-opacity=\"" + shade + "\""), 2 * 2 * 4 + 2) << shade;
  EXPECT_EQ(count(svg, ">forward, chunks 0 to 2<"), 1);
}

TEST(PipelineSvg, DrawsPredictedAndMeasuredOnOneScale) {
  const PipelineShape shape{2, 1, 1};
  const Timeline predicted = simulated(PipelineOrder::gpipe, shape),
                 measured = simulated(PipelineOrder::gpipe, shape, 2e-3);
  const std::string svg = draw_svg(predicted, measured, {.title = "both"});
  EXPECT_EQ(unbalanced(svg), "");
  EXPECT_LT(svg.find(">predicted: 6.00 ms, bubble 100.0%<"),
            svg.find(">measured: 8.00 ms, bubble 100.0%<"));
  // There are 838 pixels for 8 ms: a backward of 2 ms is equally wide in both.
  EXPECT_EQ(count(svg, "width=\"209.50\" height=\"22\" fill=\"#e69f00\""), 4);
}

TEST(PipelineSvg, UsesTheGivenRowNamesAndShowsTheNote) {
  const Timeline timeline = simulated(PipelineOrder::gpipe, {2, 1, 1});
  const std::string svg = draw_svg(timeline, timeline,
                                   {.title = "two",
                                    .rows = {"stage 0 (rank 0)", "stage 1 (rank 2)"},
                                    .note = "a bubble\nis idle time\n"});
  EXPECT_EQ(unbalanced(svg), "");
  EXPECT_EQ(count(svg, ">stage 1 (rank 2)<"), 2);
  EXPECT_EQ(count(svg, ">rank 1<"), 0);
  EXPECT_EQ(count(svg, ">a bubble<") + count(svg, ">is idle time<"), 2);
  const auto height = [](const std::string& picture) {
    return std::stod(picture.substr(picture.find("height=\"") + 8));
  };
  EXPECT_EQ(height(svg), height(draw_svg(timeline, timeline, {.title = "two"})) + 2 * 18);
}

TEST(PipelineSvg, EscapesItsTitle) {
  const std::string svg =
      draw_svg(simulated(PipelineOrder::gpipe, {1, 1, 1}), {.title = "a < b & \"c\" > d\x01"});
  EXPECT_EQ(unbalanced(svg), "");
  EXPECT_EQ(count(svg, ">a &lt; b &amp; &quot;c&quot; &gt; d <"), 2);
  EXPECT_EQ(unbalanced(draw_svg(Timeline{}, {.title = "nothing ran"})), "");
}

}  // namespace
}  // namespace echelon
