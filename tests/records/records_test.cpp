#include "echelon/data/records/records.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Rows = std::vector<std::vector<std::string>>;

class RecordsTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  // All records in all columns.
  Rows rows(const std::string& name, const std::string& content, bool header = true) const {
    const Records records(write(name, content), {.header = header});
    std::vector<int> columns;
    for (std::size_t i = 0; i < records.columns().size(); ++i) columns.push_back(int(i));
    Rows all = {records.columns()};
    for (std::int64_t i = 0; i < records.size(); ++i) all.push_back(records.read(i, columns));
    return all;
  }

  // What is said about a file, without its path.
  std::string refusal(const std::string& name, const std::string& content) const {
    const auto path = write(name, content);
    const std::string said = thrown<Corrupt>([&] {
      const Records records(path);
      const std::array first = {records.column("a")};
      for (std::int64_t i = 0; i < records.size(); ++i) records.read(i, first);
    });
    const auto at = said.find(path.string());
    return at == std::string::npos ? said : std::string(said).erase(at, path.string().size());
  }

  const ScratchFolder folder_;
};

TEST_F(RecordsTest, TsvIsTakenAsItIs) {
  EXPECT_EQ(rows("train.tsv", "sentence\tlabel\nhide new secretions\t0\n\"quoted , \t1\n"),
            (Rows{{"sentence", "label"}, {"hide new secretions", "0"}, {"\"quoted , ", "1"}}));
  EXPECT_EQ(rows("a.tsv", "x\ty\n\t\n"), (Rows{{"x", "y"}, {"", ""}})) << "empty fields";
  EXPECT_EQ(rows("a.tsv", "x\ny"), (Rows{{"x"}, {"y"}})) << "no line feed at the end";
}

TEST_F(RecordsTest, ColumnsWithoutAHeaderAreNumbered) {
  EXPECT_EQ(
      rows("cola.tsv", "gj04\t1\t\tOur friends.\ngj05\t0\t*\tThey.\n", false),
      (Rows{{"1", "2", "3", "4"}, {"gj04", "1", "", "Our friends."}, {"gj05", "0", "*", "They."}}));
}

TEST_F(RecordsTest, CsvFollowsItsStandard) {
  EXPECT_EQ(
      rows("a.csv",
           "text,label\r\n\"one, \"\"two\"\"\",1\r\n\"two\nlines\r\nor three\",0\r\nplain,\n"),
      (Rows{{"text", "label"},
            {"one, \"two\"", "1"},
            {"two\nlines\r\nor three", "0"},
            {"plain", ""}}));
  EXPECT_EQ(rows("a.csv", "\"\",\"\"\n\"\",x", false), (Rows{{"1", "2"}, {"", ""}, {"", "x"}}));
  EXPECT_EQ(rows("a.csv", "\"a,\"\"\n\"\"\",\"\"\"\"\n,\"\n\"\n", false),
            (Rows{{"1", "2"}, {"a,\"\n\"", "\""}, {"", "\n"}}))
      << "quotes written twice, beside commas and line ends";
}

TEST_F(RecordsTest, JsonlHasTextNumbersAndTruthValues) {
  const Records records(
      write("a.jsonl", R"({"text": "caf\u00e9 \ud83d\ude00\n\"", "label": 3, "more": [{}, null]})"
                       "\n"
                       R"( {"label":true,"text":"é", "other": {"a": [1, -2.5e+3]}} )"));
  EXPECT_EQ(records.columns(), (std::vector<std::string>{"text", "label", "more"}));
  const std::array columns = {records.column("label"), records.column("text")};
  EXPECT_EQ(records.read(0, columns), (std::vector<std::string>{"3", "café 😀\n\""}));
  EXPECT_EQ(records.read(1, columns), (std::vector<std::string>{"true", "é"}));
}

TEST_F(RecordsTest, AByteOrderMarkAndCarriageReturnsAreNoPartOfTheText) {
  EXPECT_EQ(rows("a.tsv", "\xEF\xBB\xBFx\ty\r\n1\t2\r\n"), (Rows{{"x", "y"}, {"1", "2"}}));
  EXPECT_EQ(rows("a.csv", "\xEF\xBB\xBF\"x\"\r\n1\r\n"), (Rows{{"x"}, {"1"}}));
  EXPECT_EQ(rows("a.jsonl", "\xEF\xBB\xBF{\"x\": \"1\"}\r\n"), (Rows{{"x"}, {"1"}}));
}

TEST_F(RecordsTest, AMissingColumnIsAnsweredWithThoseThatExist) {
  const Records records(write("a.tsv", "sentence\tlabel\tlabel\nx\t1\t2\n"));
  const std::string path = (folder_ / "a.tsv").string();
  EXPECT_EQ(thrown<InvalidArgument>([&] { records.column("text"); }),
            path + " has no column text; its columns are: sentence, label, label");
  EXPECT_EQ(thrown<InvalidArgument>([&] { records.column("label"); }),
            path + " has two columns label; its columns are: sentence, label, label");
  EXPECT_EQ(thrown<InvalidArgument>([&] { Records(folder_ / "none.tsv"); }),
            "there is no file " + (folder_ / "none.tsv").string() + " to read records from");
  EXPECT_EQ(thrown<InvalidArgument>([&] { Records(write("a.txt", "x")); }),
            (folder_ / "a.txt").string() +
                " has no records: the name of a file with records ends with .tsv, .csv or .jsonl");
}

TEST_F(RecordsTest, WhatIsNotRightIsNamedWithItsLine) {
  EXPECT_EQ(refusal("a.tsv", ""), " is empty: it has no record");
  EXPECT_EQ(refusal("a.tsv", "\xEF\xBB\xBF"), " is empty: it has no record");
  EXPECT_EQ(refusal("a.tsv", "a\tb\n"), " has a header and no record");
  EXPECT_EQ(refusal("a.tsv", "a\tb\n1\t2\n3\n"),
            ", line 3: the line has 1 column and the first has 2");
  EXPECT_EQ(refusal("a.tsv", "a\tb\n1\t2\t3\n"),
            ", line 2: the line has 3 columns and the first has 2");
  EXPECT_EQ(refusal("a.tsv", "a\tb\n1\t2\n\n3\t4\n"), ", line 3: the line is empty; remove it");
  EXPECT_EQ(refusal("a.tsv", "a\tb\n1\t2\n\r\n"), ", line 3: the line is empty; remove it");
  EXPECT_EQ(refusal("a.tsv", "a\n1\ncaf\xE9\n"),
            ", line 3: byte 4 of the line, 0xe9, is not UTF-8; convert the file");
  EXPECT_EQ(refusal("a.csv", "a,b\n\"two\nlines\",1\nx,y,z\n"),
            ", line 4: the line has 3 columns and the first has 2");
  EXPECT_EQ(refusal("a.csv", "a,b\n1,2\n3,\"not closed\n5,6\n"),
            ", line 3: a quote is opened and never closed");
  EXPECT_EQ(refusal("a.csv", "a,b\n1,\"x\"y\n"),
            ", line 2: a closing quote must be followed by a comma or the end of the line");
  EXPECT_EQ(refusal("a.csv", "a,b\n1,x\"y\"\n"),
            ", line 2: a quote is within a field that does not begin with one: write the field in "
            "quotes, and its quotes twice");
  EXPECT_EQ(refusal("a.csv", "a,b\n5\" disk,0\n7\" disk,1\n"),
            ", line 2: a quote is within a field that does not begin with one: write the field in "
            "quotes, and its quotes twice");
  EXPECT_EQ(refusal("a.jsonl", "{\"a\": 1}\n[1]\n"),
            ", line 2: this is no JSON object: an object must begin with { at column 1");
  EXPECT_EQ(refusal("a.jsonl", "{\"a\": 1}\n{\"b\": 1}\n"), ", line 2: the object has no a");
  EXPECT_EQ(refusal("a.jsonl", "{\"a\": 1}\n{\"a\": 1, \"a\": 2}\n"),
            ", line 2: the object has two values of a");
  EXPECT_EQ(refusal("a.jsonl", "{\"a\": null}\n"),
            ", line 1: the value of a is null, not text or a number");
  EXPECT_EQ(refusal("a.jsonl", "{\"a\": [1]}\n"),
            ", line 1: the value of a is a list, not text or a number");
}

TEST_F(RecordsTest, JsonIsReadStrictly) {
  const auto said = [&](const std::string& line) {
    const std::string all = refusal("a.jsonl", line), begin = ", line 1: this is no JSON object: ";
    return all.starts_with(begin) ? all.substr(begin.size()) : all;
  };
  EXPECT_EQ(said("{\"a\": 1"), "a comma or } is missing at column 8");
  EXPECT_EQ(said("{\"a\": }"), "a value is missing at column 7");
  EXPECT_EQ(said("{\"a\": 1,}"), "a key must be a string in quotes at column 9");
  EXPECT_EQ(said("{\"a\" 1}"), "a colon is missing after a key at column 6");
  EXPECT_EQ(said("{\"a\": 01}"), "a number begins with 0 at column 7");
  EXPECT_EQ(said("{\"a\": NaN}"), "a value is missing at column 7");
  EXPECT_EQ(said("{\"a\": \"x}"), "a string is not closed at column 10");
  EXPECT_EQ(said("{\"a\": \"\t\"}"), "a control character is in a string at column 8");
  EXPECT_EQ(said(R"({"a": "\x"})"), "a backslash begins no escape of JSON at column 8");
  EXPECT_EQ(said(R"({"a": "\u12g4"})"),
            "\\u must be followed by four hexadecimal digits at column 8");
  EXPECT_EQ(said(R"({"a": "\ud83d"})"), "an escape is half of a surrogate pair at column 8");
  EXPECT_EQ(said(R"({"a": "\ude00\ud83d"})"), "an escape is half of a surrogate pair at column 8");
  EXPECT_EQ(said("{\"a\": 1} x"), "something follows the object at column 10");
  EXPECT_EQ(said("{\"a\": " + std::string(100, '[')),
            "values are nested over 64 deep at column 70");
}

TEST_F(RecordsTest, AFileThatChangesIsNotReadOn) {
  const auto path = write("a.tsv", "a\nb\nc\n");
  const Records records(path);
  ASSERT_EQ(::truncate(path.c_str(), 3), 0);
  const std::array first = {0};
  EXPECT_EQ(thrown<Error>([&] { records.read(1, first); }),
            path.string() +
                " was changed while it was being read: it had 6 bytes and has 3 now; "
                "leave it as it is until the job has ended");
}

}  // namespace
}  // namespace echelon
