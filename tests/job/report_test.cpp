#include "echelon/job/report.h"

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "echelon/job/pipeline_trace.h"

namespace echelon {
namespace {

TEST(Report, WrapsUnderTheTextAtEightyColumns) {
  EXPECT_EQ(report_line("data", "a book"), "data        a book\n");
  const std::string words = "eleven side eleven side eleven side eleven side eleven side ";
  EXPECT_EQ(report_line("pipeline", words + words),
            "pipeline    eleven side eleven side eleven side eleven side eleven side eleven\n"
            "            side eleven side eleven side eleven side eleven side\n");
}

TEST(Report, FillsALineToTheLastColumn) {
  const std::string fits(68, 'x');
  EXPECT_EQ(report_line("run", fits), "run         " + fits + "\n");
  EXPECT_EQ(report_line("run", fits + " y"), "run         " + fits + "\n            y\n");
  const std::string wider(200, 'x');  // a path is not cut
  EXPECT_EQ(report_line("run", wider), "run         " + wider + "\n");
}

TEST(Report, KeepsThePlacesOfAPictureAndEndsNoLineInBlanks) {
  EXPECT_EQ(report_line("mesh", "two ranks  \n\n    data 0\n[ 0 ]  [ 1 ]   \n"),
            "mesh        two ranks\n"
            "\n"
            "                data 0\n"
            "            [ 0 ]  [ 1 ]\n");
}

TEST(Report, CountsColumnsNotBytes) {
  std::string dots;
  for (int i = 0; i < 68; ++i) dots += "…";
  EXPECT_EQ(report_line("run", "… " + dots.substr(0, 66 * 3)),
            "run         … " + dots.substr(0, 66 * 3) + "\n");
}

TEST(Report, AlignsRowsOfMemoryWithTheirHead) {
  MemoryUse use;
  use.bytes.fill(std::uint64_t{12345} << 20);
  const std::string head = memory_head(), row = memory_row("rank 1023, the least", use);
  EXPECT_LE(head.size(), 80u) << head;
  EXPECT_EQ(row.size(), head.size()) << head << "\n" << row;
  EXPECT_TRUE(head.ends_with("comm   total")) << head;
  EXPECT_TRUE(row.ends_with(" 12345.0 74070.0")) << row;
}

TEST(Report, LeavesABlankBetweenColumnsOfMemoryHoweverLarge) {
  const auto row = [](std::uint64_t mib) {
    MemoryUse use;
    use.bytes.fill(mib << 20);
    return memory_row("predicted", use);
  };
  EXPECT_TRUE(row(99'999).ends_with(" 99999.0 99999.0  585.9G")) << row(99'999);
  EXPECT_TRUE(row(442'643).ends_with("  432.3G  432.3G 2593.6G")) << row(442'643);
  for (std::uint64_t mib = 1; mib < std::uint64_t{1} << 41; mib = mib * 3 + 1) {
    EXPECT_EQ(row(mib).size(), 80U) << row(mib);
    std::istringstream words(row(mib));
    const std::vector<std::string> columns{std::istream_iterator<std::string>(words), {}};
    EXPECT_EQ(columns.size(), 8U) << row(mib);
  }
}

TEST(Report, CutsLongLinesOfASampleAtEightyColumns) {
  EXPECT_EQ(sample_lines("def f():\n\treturn \xff\n"), "  │ def f():\n  │  return .\n  │ \n");
  EXPECT_EQ(sample_lines(std::string(76, 'x')), "  │ " + std::string(76, 'x') + "\n");
  EXPECT_EQ(sample_lines(std::string(77, 'x')), "  │ " + std::string(76, 'x') + "\n  │ x\n");
}

TEST(Report, WarnsOfAPipelineInWhichNothingOverlaps) {
  EXPECT_EQ(
      one_micro_batch_warning(PipelineOrder::one_f_one_b, {.ranks = 4, .micro_batches = 1}, 32),
      "train.micro_batches = 1: ranks of a pipeline work one at a time, and each idles "
      "(p-1)/(m+p-1) = 3/4 = 75.0 % of a step; with train.micro_batches=16 it would be "
      "(p-1)/(m+p-1) = 3/19 = 15.8 %");
  EXPECT_NE(one_micro_batch_warning(PipelineOrder::gpipe, {.ranks = 2, .micro_batches = 1}, 1)
                .find("set a larger train.batch"),
            std::string::npos);
  EXPECT_EQ(
      one_micro_batch_warning(PipelineOrder::one_f_one_b, {.ranks = 4, .micro_batches = 2}, 32),
      "");
  EXPECT_EQ(
      one_micro_batch_warning(PipelineOrder::one_f_one_b, {.ranks = 1, .micro_batches = 1}, 32),
      "");
}

MeshLayout layout_of(const MeshShape& shape, int chunks) {
  MeshLayout layout;
  layout.mesh.shape = shape;
  layout.pipeline = {.ranks = shape.pipeline, .micro_batches = 4, .chunks = chunks};
  return layout;
}

TEST(PipelineTrace, NamesStagesWithTheRanksThatHaveThem) {
  EXPECT_EQ(pipeline_rows(layout_of({.pipeline = 2, .data = 2}, 1)),
            (std::vector<std::string>{"stage 0 (rank 0)", "stage 1 (rank 2)"}));
  EXPECT_EQ(pipeline_rows(layout_of({.pipeline = 2, .tensor = 2}, 2)),
            (std::vector<std::string>{"stages 0,2 (rank 0)", "stages 1,3 (rank 2)"}));
  EXPECT_EQ(pipeline_rows(layout_of({.pipeline = 2}, 4))[1], "stages 1,3..7 (rank 1)");
  MeshLayout dealt = layout_of({.pipeline = 2}, 1);
  dealt.mesh.order = {1, 0};
  EXPECT_EQ(pipeline_rows(dealt)[0], "stage 0 (rank 1)");
}

TEST(PipelineTrace, ExplainsIdleAndBubbleWithTheirClosedFormsAndResults) {
  const Slot::Kind forward = Slot::Kind::forward;
  Timeline predicted, measured;
  predicted.ranks = {{{{forward, 0, 0}, 0, 8}}, {{{forward, 0, 0}, 3, 11}}};
  measured.ranks = {{{{forward, 0, 0}, 0, 8}}, {{{forward, 0, 0}, 4, 12}}};
  const std::string note =
      bubble_note(PipelineOptions(), {.ranks = 4, .micro_batches = 8}, predicted, measured);
  EXPECT_EQ(note,
            "idle (%) is the share of the step in which a rank computes nothing:\n"
            "  (p-1)/(m+p-1) = 3/11 = 27.3 %, where all stages cost the same\n"
            "bubble is what the step takes beyond its busiest rank's work, over that work:\n"
            "  (p-1)/m = 3/8 = 37.5 %, where all stages cost the same\n"
            "  predicted 37.5 %, as it ran 50.0 %\n");
  std::istringstream lines(note);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

}  // namespace
}  // namespace echelon
