#include "echelon/data/corpus/corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using Documents = std::vector<std::vector<std::int32_t>>;

class CorpusTest : public testing::Test {
 protected:
  // A corpus whose shards have these documents.
  fs::path write(const std::vector<Documents>& shards, std::int64_t vocab) const {
    CorpusDescription description;
    description.vocab = vocab;
    description.marks = {.begin = 1, .end = 1};
    description.tokenizer = "t";
    fs::create_directories(corpus_);
    for (const auto& shard : shards)
      write_file(shard_path(corpus_, description.shards.size()), [&](FileWriter& file) {
        TokenShardWriter writer(file, description.token_bytes());
        for (const auto& document : shard) {
          writer.add(document);
          writer.end_document();
        }
        const auto bytes = writer.bytes();
        description.shards.push_back(writer.finish());
        bytes_ = bytes;
      });
    write_file(corpus_ / "corpus.json", description.to_json());
    return corpus_;
  }

  Documents read() const {
    const Corpus corpus(corpus_);
    Documents all;
    for (std::int64_t i = 0; i < corpus.size(); ++i) {
      std::vector<std::int64_t> tokens(std::size_t(corpus.length(i)));
      corpus.read(i, 0, tokens);
      all.emplace_back(tokens.begin(), tokens.end());
    }
    return all;
  }

  void check() const {
    const auto corpus = std::make_shared<const Corpus>(corpus_);
    while (!CorpusCheck(corpus).run(Deadline::never())) {
    }
  }

  // What is said about a shard of 2-byte tokens with one byte changed, without its path.
  template <class Change>
  std::string refusal(Change change) const {
    const fs::path shard = write({{{7, 8, 9}, {}, {10}}}, 100).append("shard-00000.tokens");
    std::string bytes = read_file(shard);
    change(bytes);
    std::ofstream(shard, std::ios::binary) << bytes;
    const std::string said = thrown<Corrupt>([&] {
      read();
      check();
    });
    return said.starts_with(shard.string()) ? said.substr(shard.string().size()) : said;
  }

  const ScratchFolder folder_;
  const fs::path corpus_ = folder_ / "corpus";
  mutable std::uint64_t bytes_ = 0;
};

TEST_F(CorpusTest, GivesBackWhatWasWritten) {
  for (const std::int64_t vocab : {65536, 65537}) {
    const std::int32_t last = std::int32_t(vocab) - 1;
    write({{{1, 2, last}, {}}, {{4}}, {}, {{5, 6}}}, vocab);
    EXPECT_EQ(read(), (Documents{{1, 2, last}, {}, {4}, {5, 6}}));
    check();
    const Corpus corpus(corpus_);
    EXPECT_EQ(corpus.description().token_bytes(), vocab == 65536 ? 2 : 4);
    EXPECT_EQ(corpus.tokens(), 6);
    EXPECT_EQ(corpus.description().tokens(), 6);
    std::vector<std::int64_t> some(2);
    corpus.read(0, 1, some);
    EXPECT_EQ(some, (std::vector<std::int64_t>{2, last}));
  }
}

TEST_F(CorpusTest, KnowsTheSizeOfAShardWhileItIsWritten) {
  for (const std::size_t tokens : {0, 1, 3, 4, 1000}) {
    write({{std::vector<std::int32_t>(tokens, 3), {}}}, 100);
    EXPECT_EQ(bytes_, fs::file_size(shard_path(corpus_, 0))) << tokens;
  }
}

TEST_F(CorpusTest, ChecksShardsOfManyBlocks) {
  std::vector<std::int32_t> tokens(3 << 20);
  std::iota(tokens.begin(), tokens.end(), 0);
  write({{tokens, tokens}, {tokens}}, 1 << 30);
  check();
  EXPECT_EQ(read(), (Documents{tokens, tokens, tokens}));
  const auto shard = shard_path(corpus_, 1);
  std::string bytes = read_file(shard);
  bytes[7 << 20] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_NE(
      thrown<Corrupt>([&] { check(); }).find("shard-00001.tokens: byte 12582952: the checksum"),
      std::string::npos)
      << thrown<Corrupt>([&] { check(); });
}

TEST_F(CorpusTest, AnswersADeadline) {
  write({{std::vector<std::int32_t>(1 << 20, 3)}}, 1 << 20);
  CorpusCheck checked(std::make_shared<const Corpus>(corpus_));
  EXPECT_FALSE(checked.run(Deadline::in_seconds(0)));
  EXPECT_TRUE(checked.run(Deadline::never()));
}

TEST_F(CorpusTest, NamesThePlaceOfDamage) {
  EXPECT_EQ(refusal([](auto& s) { s[0] = 'X'; }),
            ": byte 0: this is no shard of a corpus: it does not begin with ECTOKENS");
  EXPECT_EQ(refusal([](auto& s) { s[8] = 2; }),
            ": byte 8: the version is 2, and this program reads 1");
  EXPECT_EQ(refusal([](auto& s) { s[12] = 3; }), ": byte 12: a token has 3 bytes, not 2 or 4");
  EXPECT_EQ(refusal([](auto& s) { s.resize(40); }),
            ": byte 40: the file ends here, before a shard of a corpus can");
  EXPECT_EQ(refusal([](auto& s) { s.pop_back(); }),
            ": byte 71: the file does not end with ECTOKEND: it was cut");
  EXPECT_EQ(refusal([](auto& s) { s[48] = 5; }),
            ": byte 48: 5 tokens and 3 documents do not fill the 80 bytes of the file");
  EXPECT_EQ(refusal([](auto& s) { s[48 + 7] = '\x80'; }),
            ": byte 48: 9223372036854775812 tokens and 3 documents do not fill the 80 bytes of the "
            "file");
  EXPECT_EQ(refusal([](auto& s) { s[40] = 3; }),
            ": byte 24: the last document does not end with the 4 tokens");
  EXPECT_EQ(refusal([](auto& s) { s[24] = 5; }), ": byte 24: document 0 has tokens 0 to 5 of 4");
  EXPECT_EQ(refusal([](auto& s) { s[24] = 3, s[32] = 2; }),
            ": byte 32: document 1 has tokens 3 to 2 of 4");
  EXPECT_EQ(refusal([](auto& s) { s[18] = 100; }),
            ": byte 18: the token 100 is not below 100, the size of the vocabulary");
  EXPECT_NE(refusal([](auto& s) { s[18] = 9; }).find(": byte 64: the checksum is "),
            std::string::npos);
}

TEST_F(CorpusTest, ComparesShardsWithItsDescription) {
  const auto says = [&](const std::string& old, const std::string& now) {
    write({{{7, 8}}, {{9}}}, 100);
    std::string json = read_file(corpus_ / "corpus.json");
    const auto at = json.find(old);
    if (at == json.npos) return "no " + old;
    write_file(corpus_ / "corpus.json", json.replace(at, old.size(), now));
    return thrown<Corrupt>([&] { Corpus(fs::path(corpus_)); });
  };
  const std::string json = (corpus_ / "corpus.json").string();
  EXPECT_EQ(says("\"tokens\": 2,", "\"tokens\": 3,"), json + ": tokens is 3, and the rest says 4");
  EXPECT_EQ(says("\"version\": 1", "\"version\": 2"),
            json + " has version 2, and this program reads 1");
  EXPECT_EQ(says("echelon corpus", "else"),
            json + " does not describe a corpus: its format is not \"echelon corpus\"");
  EXPECT_EQ(says("\"vocab\": 100", "\"vocab\": 70000"),
            json + ": token_bytes is 2, and the rest says 4");
  EXPECT_EQ(says("\"begin\": 1", "\"begin\": 100"),
            json + ": begin is 100, not an integer from 0 to 99");
  EXPECT_EQ(says("checksum\": \"", "checksum\": \"z").find(json + ": the checksum z"), 0u);
  write({{{7, 8}}, {{9}}}, 100);
  fs::remove(shard_path(corpus_, 1));
  EXPECT_EQ(thrown<Corrupt>([&] { Corpus(fs::path(corpus_)); }),
            shard_path(corpus_, 1).string() + " is missing: " + json + " lists 2 shards");
  fs::copy_file(shard_path(corpus_, 0), shard_path(corpus_, 1));
  EXPECT_EQ(thrown<Corrupt>([&] { Corpus(fs::path(corpus_)); }),
            shard_path(corpus_, 1).string() + " is not the shard that " + json +
                " describes: its counts or its checksum differ");
  fs::remove(json);
  EXPECT_EQ(thrown<InvalidArgument>([&] { Corpus(fs::path(corpus_)); }),
            "there is no corpus in " + corpus_.string() +
                ": it has no corpus.json; make one with echelon tokenize corpus");
}

TEST_F(CorpusTest, NoticesThatAShardIsChangedWhileItIsRead) {
  write({{{7, 8}}}, 100);
  const Corpus corpus(corpus_);
  std::vector<std::int64_t> tokens(2);
  corpus.read(0, 0, tokens);
  fs::resize_file(shard_path(corpus_, 0), 10);
  EXPECT_NE(thrown<Error>([&] { corpus.read(0, 0, tokens); }).find("was changed while"),
            std::string::npos);
}

TEST_F(CorpusTest, HasADigestOfItsTokens) {
  const auto digest = [&](const Documents& documents) {
    return Corpus(write({documents}, 100)).digest();
  };
  const auto one = digest({{7, 8}});
  EXPECT_EQ(digest({{7, 8}}), one);
  EXPECT_NE(digest({{7, 9}}), one);
  EXPECT_NE(digest({{7}, {8}}), one);
}

}  // namespace
}  // namespace echelon
