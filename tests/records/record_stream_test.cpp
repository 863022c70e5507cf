#include "echelon/data/records/record_stream.h"

#include <gtest/gtest.h>

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

class RecordStreamTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  // Every record in all columns, and where the first ones begin; then what is said about the file,
  // if it is refused.
  template <class Read>
  static Rows told(Read read) {
    Rows rows;
    try {
      read(rows);
    } catch (const Error& error) {
      rows.push_back({"refused", error.what()});
    }
    return rows;
  }
  static Rows streamed(const std::filesystem::path& path, bool header) {
    return told([&](Rows& rows) {
      RecordStream stream(path, {.header = header});
      std::vector<int> all;
      for (std::size_t i = 0; i < stream.columns().size(); ++i) all.push_back(int(i));
      for (std::vector<std::string> fields; stream.next(all, fields);) {
        rows.push_back(fields);
        if (rows.size() <= 49) rows.back().push_back(stream.place());
      }
    });
  }
  static Rows by_number(const std::filesystem::path& path, bool header) {
    return told([&](Rows& rows) {
      const Records records(path, {.header = header});
      std::vector<int> all;
      for (std::size_t i = 0; i < records.columns().size(); ++i) all.push_back(int(i));
      for (std::int64_t i = 0; i < records.size(); ++i) {
        rows.push_back(records.read(i, all));
        if (i < 49) rows.back().push_back(records.place(i));
      }
    });
  }

  const ScratchFolder folder_;
};

// Records is compared with Python's modules (records_test.py).
TEST_F(RecordStreamTest, GivesWhatRecordsGives) {
  std::string long_csv = "text,number\n", long_jsonl;
  for (int i = 0; i < 30'000; ++i) {
    const std::string text(std::size_t(i % 97), "a\n"[i % 2]);
    long_csv += "\"" + text + "\n\"," + std::to_string(i) + "\r\n";
    long_jsonl += "{\"t\": \"" + std::string(std::size_t(i % 89), 'x') +
                  "\", \"n\": " + std::to_string(i) + "}\n";
  }
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.tsv", "sentence\tlabel\nhide new secretions\t0\n\"quoted , \t1\n"},
      {"b.tsv", "x\ty\n\t"},
      {"c.csv", "text,label\r\n\"one, \"\"two\"\"\",1\r\n\"two\nlines\r\nor three\",0\r\nplain,\n"},
      {"d.jsonl", "\xEF\xBB\xBF{\"a\": 1, \"b\": \"x\\n\"}\n{\"b\": true, \"a\": \"é\"}"},
      {"e.csv", long_csv},
      {"f.jsonl", long_jsonl},
      {"g.csv", "a,b\n" + std::string(3'000'000, 'x') + ",1\n" + "\"" +
                    std::string(1'000'000, 'y') + "\",2"},
      {"empty.tsv", ""},
      {"mark.tsv", "\xEF\xBB\xBF"},
  };
  for (const auto& [name, content] : files)
    for (const bool header : {true, false}) {
      const auto path = write(name, content);
      EXPECT_TRUE(streamed(path, header) == by_number(path, header)) << name << " " << header;
    }
}

TEST_F(RecordStreamTest, RefusesWhatRecordsRefusesWhenItGetsThere) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.tsv", "a\tb\n1\t2\n3\n"},
      {"b.tsv", "a\n1\n\n2\n"},
      {"c.csv", "a\n\"1\n\n2"},
      {"d.csv", "a,b\n1,x\"y\n"},
      {"e.jsonl", "{\"a\": 1}\n{\"a\": }"},
      {"f.jsonl", "{\"a\": 1}\n{}\n"},
      {"g.jsonl", "{\"a\": [1]}\n"},
      {"h.jsonl", "{\"a\": 1, \"a\": 2}\n"},
      {"i.csv", "a,b\n\"1\n\xff\",2\n"},
      {"j.csv", "a,b\n"},
  };
  for (const auto& [name, content] : files) {
    const auto path = write(name, content);
    const auto both = {streamed(path, true), by_number(path, true)};
    for (const auto& rows : both) ASSERT_FALSE(rows.empty()) << name;
    EXPECT_EQ(both.begin()->back(), (both.end() - 1)->back()) << name;
    EXPECT_EQ(both.begin()->back().front(), "refused") << name;
  }
  EXPECT_EQ(streamed(write("a.tsv", "a\tb\n1\t2\n3\n"), true).size(), 2) << "one is given first";
}

// A quote that opens no field, or is never closed, must not bring the rest of the file into memory.
TEST_F(RecordStreamTest, HasNoMoreThanTheLongestRecordInMemory) {
  const auto refusal = [](const std::filesystem::path& path, std::size_t longest) {
    return thrown<Corrupt>([&] {
      RecordStream stream(path, {.longest = longest});
      const std::array first = {0};
      for (std::vector<std::string> fields; stream.next(first, fields);) {
      }
    });
  };
  std::string rest;
  for (int i = 0; i < 200'000; ++i) rest += "plain,1\n";
  const auto stray = write("stray.csv", "text,n\n\"two\nlines\",1\n5\" disk,0\n" + rest);
  EXPECT_EQ(refusal(stray, 100),
            stray.string() +
                ", line 4: a quote is within a field that does not begin with one: write the field "
                "in quotes, and its quotes twice");
  const auto open = write("open.csv", "text,n\nplain,1\n\"disk,0\n" + rest);
  EXPECT_EQ(refusal(open, 1000),
            open.string() +
                ", line 3: the record has more than 1000 B; split it, or close the quote that it "
                "opens");
  EXPECT_EQ(refusal(open, longest_record),
            open.string() + ", line 3: a quote is opened and never closed");
}

TEST_F(RecordStreamTest, ReadsRecordsUpToTheLongest) {
  for (const std::string end : {"\n", "\r\n"})
    for (const std::size_t size : {9, 10, 11, 12, 13}) {
      const std::string record(size, 'x');
      const auto path = write("a.tsv", "a" + end + "b" + end + record + end + "c" + end);
      const auto told_with = [&](auto reader) { return thrown<Corrupt>([&] { reader(); }); };
      const std::string said = told_with([&] {
        RecordStream stream(path, {.longest = 10});
        const std::array first = {0};
        for (std::vector<std::string> fields; stream.next(first, fields);) {
        }
      });
      EXPECT_EQ(said, size <= 10 ? "(nothing was thrown)"
                                 : path.string() +
                                       ", line 3: the record has more than 10 B; "
                                       "split it");
      EXPECT_EQ(told_with([&] { Records(path, {.longest = 10}); }), said) << "Records does so, too";
    }
}

TEST_F(RecordStreamTest, NeedsAFileOfRecords) {
  EXPECT_EQ(thrown<InvalidArgument>([&] { RecordStream(folder_ / "none.tsv"); }),
            "there is no file " + (folder_ / "none.tsv").string() + " to read records from");
  const auto text = write("a.txt", "text");
  EXPECT_EQ(thrown<InvalidArgument>([&] { RecordStream stream(text); }),
            text.string() +
                " has no records: the name of a file with records ends with .tsv, .csv or .jsonl");
  const auto path = write("a.tsv", "a\tb\n1\t2\n");
  EXPECT_EQ(thrown<InvalidArgument>([&] { RecordStream(path).column("c"); }),
            path.string() + " has no column c; its columns are: a, b");
}

}  // namespace
}  // namespace echelon
