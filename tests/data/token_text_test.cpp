#include "echelon/data/token_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "echelon/base/utf8.h"
#include "echelon/data/encoded_text.h"
#include "echelon/data/tokenizer/bpe_trainer.h"
#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

using Ids = std::vector<std::int32_t>;

// A byte-level BPE without merges: every byte is a token. Its name is the character that GPT-2
// writes for the byte.
Tokenizer bytes_alone(const ScratchFolder& folder) {
  std::string vocabulary;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    std::string name;
    append_utf8(name, visible ? byte : next++);
    if (name == "\"" || name == "\\") name.insert(0, "\\");
    vocabulary += (byte ? ",\"" : "\"") + name + "\":" + std::to_string(byte);
  }
  std::ofstream(folder / "vocab.json") << "{" << vocabulary << "}";
  std::ofstream(folder / "merges.txt") << "#version: 0.2\n";
  return Tokenizer::open(folder.path());
}

TEST(TokenText, NeverGivesHalfOfACharacter) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = bytes_alone(folder);
  const std::string whole = "a \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 z";
  Ids ids;
  tokenizer.append(whole, ids);
  ASSERT_EQ(ids.size(), whole.size());
  TokenText text(tokenizer, {});
  std::string all;
  for (const auto id : ids) {
    const std::string some = text.add(id);
    EXPECT_EQ(utf8_prefix(some), some.size());
    EXPECT_EQ(some.find("\xEF\xBF\xBD"), std::string::npos) << "of " << all;
    all += some;
  }
  EXPECT_EQ(all + text.rest(), whole);
}

TEST(TokenText, GivesBytesThatAreNoCharacterUpAfterAWhile) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = bytes_alone(folder);
  TokenText text(tokenizer, {});
  EXPECT_EQ(text.add(0xE2), "");
  EXPECT_EQ(text.add('x').substr(3), "x");
  EXPECT_EQ(text.add(0xE2), "");
  EXPECT_EQ(text.rest(), "\xEF\xBF\xBD");
  EXPECT_EQ(text.rest(), "");
  std::string all;
  for (int i = 0; i < 8; ++i) all += text.add(0x80);
  EXPECT_FALSE(all.empty());
}

TEST(TokenText, JoinsWordsAsTheWholeTextDoes) {
  const ScratchFolder folder;
  std::ofstream(folder / "vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##known\nword\n";
  const Tokenizer tokenizer = Tokenizer::open(folder.path());
  const Ids ids = {7, 5, 6, 7};
  TokenText text(tokenizer, std::span(ids).first(1));
  std::string all;
  for (const auto id : std::span(ids).subspan(1)) all += text.add(id);
  EXPECT_EQ("word" + all, tokenizer.decode(ids));
  EXPECT_EQ(all, " unknown word");
}

TEST(EncodedText, IsTheSameInPartsOnAnyNumberOfThreads) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = bytes_alone(folder);
  std::string text;
  while (text.size() < 300'000) text += "line " + std::to_string(text.size()) + " \xC3\xA9\n";
  const Ids one = encode_whole(tokenizer, text, "a.txt", 1);
  EXPECT_EQ(one.size(), text.size());
  EXPECT_EQ(one, encode_whole(tokenizer, text, "a.txt", 3));
  const EncodedWindows windows(one, 100);
  EXPECT_EQ(windows.size(), std::ssize(one) / 100 - (std::ssize(one) % 100 == 0));
  const Batch batch = windows.get(std::vector<std::int64_t>{1});
  EXPECT_EQ(batch.input[0][0].item<std::int64_t>(), one[100]);
  EXPECT_EQ(batch.target[0][99].item<std::int64_t>(), one[200]);
}

// No configuration says which token begins a text.
TEST(EncodedText, TakesSpecialTokensFromTheTemplate) {
  const ScratchFolder folder;
  std::ofstream(folder / "tokenizer.json") << R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]},
    "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "</s>": 2}, "merges": []}})";
  const Tokenizer tokenizer = Tokenizer::open(folder.path());
  const TokenTexts texts = encode_lines(tokenizer, "aaa\n", "a.txt", 4, 1);
  ASSERT_EQ(texts.size(), 2);
  EXPECT_EQ(Ids(texts.ids(0).begin(), texts.ids(0).end()), (Ids{1, 0, 0, 2}));
  EXPECT_EQ(Ids(texts.ids(1).begin(), texts.ids(1).end()), (Ids{1, 0, 2}));
}

// A token may span a line end and the indentation behind it.
TEST(EncodedText, HasTheTokensOfTheWhole) {
  const ScratchFolder folder;
  WordCounts counts;
  for (const char* word : {"\n   ", " line", "line"}) counts.add(word, 10);
  write_tokenizer(folder.path(), train_bpe(counts, {.vocab = 270}));
  const Tokenizer tokenizer = Tokenizer::open(folder.path());
  for (const std::string line : {"line\n    line", "line\n", "\u6f22\u5b57 line\n\n   "}) {
    std::string text;
    while (text.size() < 300'000) text += line;
    Ids whole;
    tokenizer.append(text, whole);
    EXPECT_TRUE(encode_whole(tokenizer, text, "a.txt", 3) == whole) << line;
  }
}

TEST(EncodedText, CutsLongLinesIntoSeveralTextsWithTheirSpecialTokens) {
  const ScratchFolder folder;
  std::ofstream(folder / "vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n";
  const Tokenizer tokenizer = Tokenizer::open(folder.path());
  const TokenTexts texts = encode_lines(tokenizer, "a b c\r\n\n  \nb\n", "a.txt", 4, 2);
  const auto ids = [&](std::int64_t i) { return Ids(texts.ids(i).begin(), texts.ids(i).end()); };
  ASSERT_EQ(texts.size(), 3);
  EXPECT_EQ(ids(0), (Ids{2, 5, 6, 3}));
  EXPECT_EQ(ids(1), (Ids{2, 7, 3}));
  EXPECT_EQ(ids(2), (Ids{2, 6, 3}));
}

}  // namespace
}  // namespace echelon
