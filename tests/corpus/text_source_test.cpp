#include "echelon/data/corpus/text_source.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

class TextSourceTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  // The documents, their pieces marked by a bar; and the number of batches.
  static std::vector<std::string> documents(TextSource source, std::size_t* batches = nullptr) {
    std::vector<std::string> found = {""};
    for (TextBatch batch; source.next(batch);) {
      if (batches) ++*batches;
      for (const auto& piece : batch.pieces) {
        found.back() += piece.text;
        if (piece.ends)
          found.emplace_back();
        else
          found.back() += "|";
      }
    }
    EXPECT_EQ(found.back(), "") << "the last document ends";
    found.pop_back();
    return found;
  }

  const ScratchFolder folder_;
};

using Texts = std::vector<std::string>;

TEST_F(TextSourceTest, GivesFilesAndRecordsAsDocuments) {
  const std::vector files = {write("a.txt", "one\ntwo"), write("b.txt", ""),
                             write("c.tsv", "text\tn\nthree\t3\n\t4\n"),
                             write("d.jsonl", "{\"n\": 1, \"text\": \"five\\n\"}")};
  EXPECT_EQ(documents(TextSource(files, {.column = "text"})),
            (Texts{"one\ntwo", "", "three", "", "five\n"}));
  TextSource source(files, {.column = "text"});
  TextBatch batch;
  EXPECT_TRUE(source.next(batch));
  EXPECT_FALSE(batch.pieces[0].is_record);
  EXPECT_TRUE(batch.pieces[2].is_record);
  EXPECT_FALSE(source.next(batch));
  EXPECT_EQ(source.bytes(), 7 + 5 + 5);
}

TEST_F(TextSourceTest, SaysWhereAPieceBegins) {
  const auto text = write("a.txt", "one two\nthree four\nfive six");
  const auto records = write("b.csv", "text\n\"two\nlines\"\nfour\n");
  TextSource source({text, records}, {.column = "text", .batch_bytes = 10});
  std::vector<std::string> places;
  for (TextBatch batch; source.next(batch);)
    for (const auto& piece : batch.pieces) places.push_back(source.place(piece));
  const std::string a = text.string(), b = records.string();
  EXPECT_EQ(places, (Texts{a, a + ", from byte 8 on", a + ", from byte 19 on", b + ", line 2",
                           b + ", line 4"}));
}

TEST_F(TextSourceTest, CutsLongDocuments) {
  const auto file = write("a.txt", "one two\nthree four\nfive six");
  TextSource::Options options{.cut = whole_lines, .batch_bytes = 10};
  std::size_t batches = 0;
  EXPECT_EQ(documents(TextSource({file}, options), &batches),
            (Texts{"one two\n|three four\n|five six"}));
  EXPECT_EQ(batches, 2u) << "the first line does not fill one";
  options.cut = whole_words;
  EXPECT_EQ(documents(TextSource({file}, options)), (Texts{"one two|\nthree four|\nfive six"}));
  options.cut = [](std::string_view) { return std::size_t{0}; };
  EXPECT_EQ(documents(TextSource({file}, options)), (Texts{"one two\nthree four\nfive six"}));
}

TEST_F(TextSourceTest, JoinsShortDocuments) {
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < 100; ++i) files.push_back(write(std::to_string(i) + ".txt", "0123456789"));
  std::size_t batches = 0;
  EXPECT_EQ(documents(TextSource(files, {.batch_bytes = 55}), &batches), Texts(100, "0123456789"));
  EXPECT_EQ(batches, 20u);
}

TEST_F(TextSourceTest, CutsBetweenWordsOnly) {
  EXPECT_EQ(whole_words("ab cd"), 2u);
  EXPECT_EQ(whole_words("ab  cd"), 2u) << "not between blanks";
  EXPECT_EQ(whole_words("ab\u3000 cd"), 0u) << "U+3000 is white space, too";
  EXPECT_EQ(whole_words("ab\n\ncd"), 2u);
  EXPECT_EQ(whole_words(" ab"), 0u);
  EXPECT_EQ(whole_words(""), 0u);
}

TEST_F(TextSourceTest, NamesTheByteThatIsNotUtf8) {
  const auto file = write("a.txt", "one\ntwo\nthr\xff\nee\nfour\n");
  TextSource source({file}, {.batch_bytes = 4});
  TextBatch batch;
  EXPECT_TRUE(source.next(batch));
  EXPECT_TRUE(source.next(batch));
  EXPECT_EQ(thrown<Corrupt>([&] { source.next(batch); }),
            file.string() + ": byte 11, 0xff, is not UTF-8; convert the file");
}

// A batch may end anywhere in a character.
TEST_F(TextSourceTest, NeverCutsWithinACharacter) {
  for (const std::string character : {"\u6f22", "\U0001F600"})
    for (std::size_t shift = 0; shift < 2 * character.size(); ++shift) {
      std::string text(shift, 'x');
      for (int i = 0; i < 40; ++i) text += character + (i % 7 ? "" : "\n");
      const auto cut = [](std::string_view some) {
        EXPECT_EQ(utf8_prefix(some), some.size()) << "half a character is no text";
        return whole_lines(some);
      };
      const auto file = write("a.txt", text);
      auto found = documents(TextSource({file}, {.cut = cut, .batch_bytes = 32})).front();
      std::erase(found, '|');
      EXPECT_EQ(found, text) << shift;
    }
}

TEST_F(TextSourceTest, NamesTheByteAtEveryPlaceInABatch) {
  for (std::size_t place = 0; place < 40; ++place)
    for (const std::string bad : {"\xff", "\xe6\xbc", "\x80"}) {
      const auto file = write("a.txt", std::string(place, 'x') + bad + std::string(20, '\n'));
      TextSource source({file}, {.batch_bytes = 16});
      const auto read = [&] {
        for (TextBatch batch; source.next(batch);) {
        }
      };
      EXPECT_EQ(thrown<Corrupt>(read), fmt::format("{}: byte {}, 0x{:02x}, is not UTF-8; convert "
                                                   "the file",
                                                   file.string(), place, std::uint8_t(bad[0])));
    }
}

TEST_F(TextSourceTest, LooksAtEveryFileFirst) {
  const auto text = write("a.txt", "x"), records = write("b.csv", "a,b\n1,2\n");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              TextSource({text, folder_ / "no"}, {});
            }),
            "there is no file " + (folder_ / "no").string() + " to read text from");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              TextSource({text, records}, {});
            }),
            records.string() + " has records: name the column of the text, as in --text a");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              TextSource({text, records}, {.column = "c"});
            }),
            records.string() + " has no column c; its columns are: a, b");
  EXPECT_EQ(thrown<InvalidArgument>([&] { TextSource({text}, {.column = "c"}); }),
            "the column c is given, and no file has records: their names end with .tsv, .csv or "
            ".jsonl");
}

}  // namespace
}  // namespace echelon
