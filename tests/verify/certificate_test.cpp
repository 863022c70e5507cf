// The text, JSON and HTML of `echelon verify`.
#include "echelon/verify/certificate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "echelon/verify/faults.h"
#include "echelon/verify/matrix.h"

namespace echelon {
namespace {

VerifyCell cell(const std::string& name, double difference) {
  return {.name = name,
          .world = 4,
          .mesh = "2x2x1",
          .max_abs_diff = difference,
          .bound = 1e-9,
          .bytes_ok = true,
          .memory_ok = true,
          .bubble_ok = true,
          .bubble = "1/4",
          .notes = {},
          .seconds = 0.5};
}

TEST(Certificate, ComesBackFromItsJson) {
  const Certificate one{.cells = {cell("a", 1e-13), cell("b", INFINITY)},
                        .broken_worlds = 1,
                        .command = "echelon verify",
                        .fault = ""};
  EXPECT_EQ(one.failed(), 2);
  const std::string json = to_json(one);
  for (const char* field : {"echelon", "commit", "torch", "compiler", "machine", "cpu", "cores",
                            "date", "command", "cells", "broken_worlds", "failed"})
    EXPECT_NE(json.find("\"" + std::string(field) + "\":"), std::string::npos) << field;
  EXPECT_EQ(json.find("\"fault"), std::string::npos);
  const auto cells = parse_cells(json);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_TRUE(cells[0].ok());
  EXPECT_EQ(cells[0].mesh, "2x2x1");
  EXPECT_EQ(cells[0].bubble, "1/4");
  EXPECT_EQ(cells[0].seconds, 0.5);
  EXPECT_FALSE(cells[1].ok()) << "what is not finite is no small difference";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Certificate, HasALineForACellThatBeginsWithItsResult) {
  EXPECT_EQ(to_text(cell("2x2x1, 1f1b", 2.5e-13)),
            "ok          4   2.5e-13  1.0e-09  2x2x1, 1f1b\n");
  EXPECT_EQ(text_head(), "result  world  max diff    bound  strategy\n");
  VerifyCell bad = cell("2x2x1, 1f1b", 0.5);
  bad.notes = {"max diff: 5.0e-01 from one process, more than 1.0e-09",
               "bytes: 8 were sent for gradients, not 4", "memory: too much (rank 1)"};
  EXPECT_EQ(to_text(bad),
            "FAILED      4   5.0e-01  1.0e-09  2x2x1, 1f1b\n"
            "        max diff: 5.0e-01 from one process, more than 1.0e-09\n"
            "        bytes: 8 were sent for gradients, not 4\n"
            "        memory: too much (rank 1)\n");
}

TEST(Certificate, KeepsAllLinesToEightyColumns) {
  for (const auto& choice : pairwise_choices()) {
    VerifyCell bad = cell(name_of(choice), INFINITY);
    bad.notes = {"error: " + name_of(choice) + ", which is as long as what a rank may say"};
    std::string words;
    for (const auto& line : lines_of(to_text(bad))) {
      EXPECT_LE(line.size(), 80u) << line;
      words += line.substr(std::min(line.size(), line.find_first_not_of(' '))) + " ";
    }
    EXPECT_NE(words.find(name_of(choice)), std::string::npos) << "no word is lost: " << words;
    EXPECT_NE(words.find(bad.notes[0]), std::string::npos) << "no word is lost: " << words;
  }
}

TEST(Certificate, ShowsFailuresFirstAndEscapesEverything) {
  const std::string page = to_html({.cells = {cell("good one", 0), cell("<b>\"bad\" & one", 1)},
                                    .broken_worlds = 0,
                                    .command = "echelon verify --json '<x>'",
                                    .fault = ""});
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_EQ(page.find("<x>"), std::string::npos);
  const auto bad = page.find("&lt;b&gt;&quot;bad&quot; &amp; one");
  ASSERT_NE(bad, std::string::npos);
  EXPECT_LT(bad, page.find("good one"));
  EXPECT_NE(page.find("1 of 2 cells failed"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "it needs nothing else";
}

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

TEST(Certificate, HasEveryCellOnce) {
  const std::string page = to_html(
      {.cells = {cell("good one", 0), cell("bad one", 1)}, .command = "verify", .fault = ""});
  EXPECT_EQ(count(page, "good one"), 1);
  EXPECT_EQ(count(page, "bad one"), 1);
}

TEST(Certificate, SaysWhetherAnInjectedFaultWasCaught) {
  const Fault& fault = *find_fault("lost-gradient");
  Certificate one{.cells = {cell("good one", 0), cell("bad one", 1)},
                  .command = "echelon verify --inject lost-gradient",
                  .fault = fault.name};
  EXPECT_NE(to_json(one).find("\"fault\": \"lost-gradient\""), std::string::npos);
  EXPECT_NE(to_json(one).find("\"fault_caught\": true"), std::string::npos);
  EXPECT_NE(to_html(one).find("class=\"verdict good\">The fault lost-gradient was injected, and "
                              "caught: 1 of 2 cells failed<"),
            std::string::npos);
  EXPECT_NE(to_html(one).find(fault.what), std::string::npos);
  one.cells.pop_back();
  one.broken_worlds = 1;  // which says nothing about the fault
  EXPECT_NE(to_json(one).find("\"fault_caught\": false"), std::string::npos);
  EXPECT_NE(to_html(one).find("class=\"verdict bad\">The fault lost-gradient was injected, and NOT "
                              "caught: 0 of 1 cells failed<"),
            std::string::npos);
}

}  // namespace
}  // namespace echelon
