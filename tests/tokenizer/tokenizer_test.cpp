// What the comparison with `tokenizers` (tests/python/tokenizer_test.py) does not show: files,
// errors, threads, and small cases that a reader can check by hand.
#include "echelon/data/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/data/tokenizer/normal_forms.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

class TokenizerFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("tokenizer_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void write(const char* name, std::string_view text) { write_file(folder_ / name, text); }
  Tokenizer open() const { return Tokenizer::open(folder_); }

  // The message of what open() throws.
  template <typename Kind>
  std::string refused() const {
    try {
      open();
    } catch (const Kind& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("another kind of error: ") + error.what();
    }
    return "nothing";
  }

  fs::path folder_;
};

// BERT's folder has no tokenizer.json in old checkpoints.
constexpr std::string_view bert_vocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngorgeous\nfilm\n##s\n,\nnaive\n";

constexpr std::string_view tiny_bpe = R"({
  "added_tokens": [{"id": 5, "content": "<end>", "special": true, "normalized": false}],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}, "merges": ["a b", "Ġ ab"]}})";

std::string with(std::string_view from, std::string_view to, std::string_view text = tiny_bpe) {
  std::string changed(text);
  const auto at = changed.find(from);
  EXPECT_NE(at, changed.npos) << from;
  return changed.replace(at, from.size(), to);
}

TEST_F(TokenizerFiles, ByteLevelBpeMergesTheLowestRankFirst) {
  write("tokenizer.json", tiny_bpe);
  const Tokenizer tokenizer = open();
  EXPECT_EQ(tokenizer.encode("ab ab").ids, (Ids{2, 4}));
  EXPECT_EQ(tokenizer.encode("aab b").ids, (Ids{0, 2, 3, 1}));
  EXPECT_EQ(tokenizer.encode("ab<end>ab").ids, (Ids{2, 5, 2}));
  EXPECT_EQ(tokenizer.encode("").ids, Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{2, 4, 5}), "ab ab");
  EXPECT_EQ(tokenizer.decode(Ids{2, 4, 5}, false), "ab ab<end>");
  EXPECT_EQ(tokenizer.decode(Ids{2, -1, 99}), "ab") << "ids of no token are left out";
  EXPECT_EQ(tokenizer.size(), 6);
  EXPECT_EQ(tokenizer.id("<end>"), 5);
  EXPECT_EQ(tokenizer.id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token(4), "Ġab");
  EXPECT_EQ(tokenizer.token(-5), "");
}

TEST_F(TokenizerFiles, LongWordsMergeLikeShortOnes) {
  write("tokenizer.json", tiny_bpe);
  const Tokenizer tokenizer = open();
  std::string text;
  Ids expected;
  for (int i = 0; i < 500; ++i) {
    text += i % 3 ? "ab" : "a";
    expected.push_back(i % 3 ? 2 : 0);
  }
  EXPECT_EQ(tokenizer.encode(text).ids, expected);
}

TEST_F(TokenizerFiles, SpansAreTheBytesOfTokens) {
  write("tokenizer.json", tiny_bpe);
  const Encoding one = open().encode("ab ab<end>", {.spans = true});
  EXPECT_EQ(one.spans, (std::vector<TokenSpan>{{0, 2}, {2, 5}, {5, 10}}));
}

TEST_F(TokenizerFiles, BertsVocabularyIsWordPieceWithItsTemplate) {
  if (!tok::has_normal_forms) GTEST_SKIP() << "built without utf8proc";
  write("vocab.txt", bert_vocabulary);
  const Tokenizer tokenizer = open();
  EXPECT_EQ(tokenizer.encode("A gorgeous  films,").ids, (Ids{2, 5, 6, 7, 8, 9, 3}));
  EXPECT_EQ(tokenizer.encode("na\xC3\xAFve").ids, (Ids{2, 10, 3}));
  EXPECT_EQ(tokenizer.encode("unknown [MASK]", {.special = false}).ids, (Ids{1, 4}));
  const Encoding pair = tokenizer.encode_pair("a film", "films");
  EXPECT_EQ(pair.ids, (Ids{2, 5, 7, 3, 7, 8, 3}));
  EXPECT_EQ(pair.types, (Ids{0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("A gorgeous films,").ids), "a gorgeous films,");
  const SpecialTokens& special = tokenizer.special();
  EXPECT_EQ(special.padding, 0);
  EXPECT_EQ(special.unknown, 1);
  EXPECT_EQ(special.classifier, 2);
  EXPECT_EQ(special.separator, 3);
  EXPECT_EQ(special.mask, 4);
  EXPECT_EQ(special.begin, std::nullopt);
}

TEST_F(TokenizerFiles, TheConfigurationBesideAVocabularyCounts) {
  if (!tok::has_normal_forms) GTEST_SKIP() << "built without utf8proc";
  write("vocab.txt", bert_vocabulary);
  write("tokenizer_config.json", R"({"do_lower_case": false, "pad_token": {"content": "[MASK]"}})");
  const Tokenizer tokenizer = open();
  EXPECT_EQ(tokenizer.encode("A film", {.special = false}).ids, (Ids{1, 7}));
  EXPECT_EQ(tokenizer.special().padding, 4);
  EXPECT_EQ(tokenizer.files().size(), 2U);
}

TEST_F(TokenizerFiles, VocabularyAndMergesAreGpt2s) {
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<|endoftext|>": 5})");
  write("merges.txt", "#version: 0.2\na b\nĠ ab\n");
  const Tokenizer tokenizer = open();
  EXPECT_EQ(tokenizer.encode("ab ab<|endoftext|>").ids, (Ids{2, 4, 5}));
  EXPECT_EQ(tokenizer.special().end, 5);
  EXPECT_EQ(tokenizer.decode(Ids{2, 4, 5}), "ab ab");
}

constexpr std::string_view tiny_vocabulary =
    R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<|endoftext|>": 5})";
constexpr std::string_view tiny_merges = "#version: 0.2\na b\nĠ ab\n";

TEST_F(TokenizerFiles, MergesOfOtherTokenisersThanGpt2sAreRefused) {
  write("vocab.json", tiny_vocabulary);
  write("merges.txt", tiny_merges);
  for (const char* name : {"RobertaTokenizer", "CLIPTokenizer", "Qwen2TokenizerFast",
                           "PreTrainedTokenizerFast", "BertTokenizer"}) {
    write("tokenizer_config.json", fmt::format(R"({{"tokenizer_class": "{}"}})", name));
    EXPECT_EQ(refused<InvalidArgument>(),
              fmt::format("{}: tokenizer_class {} is not supported: vocab.json is read as that of "
                          "GPT2Tokenizer; load the folder with AutoTokenizer of `transformers` and "
                          "save it, which writes tokenizer.json",
                          (folder_ / "tokenizer_config.json").string(), name));
  }
  for (const char* name : {"GPT2Tokenizer", "GPT2TokenizerFast"}) {
    write("tokenizer_config.json", fmt::format(R"({{"tokenizer_class": "{}"}})", name));
    EXPECT_EQ(open().encode("ab ab").ids, (Ids{2, 4})) << name;
  }
  for (const char* key : {"add_bos_token", "add_eos_token"}) {
    write("tokenizer_config.json",
          fmt::format(R"({{"tokenizer_class": "GPT2Tokenizer", "{}": true}})", key));
    EXPECT_NE(refused<InvalidArgument>().find(fmt::format("{} true is not supported", key)),
              std::string::npos);
  }
}

TEST_F(TokenizerFiles, VocabulariesOfOtherTokenisersThanBertsAreRefused) {
  write("vocab.txt", bert_vocabulary);
  for (const char* name : {"MPNetTokenizer", "BertJapaneseTokenizer", "GPT2Tokenizer"}) {
    write("tokenizer_config.json", fmt::format(R"({{"tokenizer_class": "{}"}})", name));
    EXPECT_NE(refused<InvalidArgument>().find("vocab.txt is read as that of BertTokenizer, "),
              std::string::npos);
  }
  if (!tok::has_normal_forms) GTEST_SKIP() << "built without utf8proc";
  for (const char* name : {"BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer"}) {
    write("tokenizer_config.json", fmt::format(R"({{"tokenizer_class": "{}"}})", name));
    EXPECT_EQ(open().encode("a film").ids, (Ids{2, 5, 7, 3})) << name;
  }
}

TEST_F(TokenizerFiles, TokensAddedBesideAVocabularyCount) {
  write("vocab.json", tiny_vocabulary);
  write("merges.txt", tiny_merges);
  write("added_tokens.json", R"({"<user>": 7, "<pad>": 6, "word": 8})");
  write("tokenizer_config.json",
        R"({"additional_special_tokens": ["<user>", {"content": "ab", "single_word": true}]})");
  write("special_tokens_map.json", R"({"pad_token": "<pad>", "eos_token": {"content": "b"}})");
  const Tokenizer tokenizer = open();
  EXPECT_EQ(tokenizer.encode("a<user>a<pad>word").ids, (Ids{0, 7, 0, 6, 8}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 7, 6, 8}), "aword") << "those with a role are special";
  EXPECT_EQ(tokenizer.special().padding, 6);
  EXPECT_EQ(tokenizer.special().end, 1) << "what the configuration lacks";
  EXPECT_EQ(tokenizer.special().begin, 5);
  EXPECT_EQ(tokenizer.size(), 9);
  EXPECT_EQ(tokenizer.files().size(), 5U);

  write("tokenizer_config.json", R"({"pad_token": "a", "eos_token": "<|endoftext|>"})");
  EXPECT_EQ(open().special().padding, 0) << "the configuration counts first";
  EXPECT_EQ(open().special().end, 5);

  write("tokenizer_config.json", R"({"additional_special_tokens": ["<new>"]})");
  EXPECT_NE(refused<InvalidArgument>().find(
                "additional_special_tokens[0] is '<new>', which neither the vocabulary nor "
                "added_tokens.json has"),
            std::string::npos);
  write("tokenizer_config.json", "{}");
  write("added_tokens.json", R"({"<pad>": 7})");
  EXPECT_NE(refused<Corrupt>().find("has '<pad>' with id 7, not 6, the first that is free"),
            std::string::npos);
  write("added_tokens.json", R"({"ab": 6})");
  EXPECT_NE(refused<Corrupt>().find("has 'ab' with id 6, but the vocabulary has it with id 2"),
            std::string::npos);
  write("added_tokens.json", R"({"<pad>": "6"})");
  EXPECT_NE(refused<Corrupt>().find("<pad> is \"6\", not an integer"), std::string::npos);
}

TEST_F(TokenizerFiles, TextsAreCutAndFilledUp) {
  if (!tok::has_normal_forms) GTEST_SKIP() << "built without utf8proc";
  write("vocab.txt", bert_vocabulary);
  const Tokenizer tokenizer = open();
  EXPECT_EQ(tokenizer.encode("a a a a", {.max_length = 4}).ids, (Ids{2, 5, 5, 3}));
  EXPECT_EQ(tokenizer.encode("a a", {.pad_to = 6}).ids, (Ids{2, 5, 5, 3, 0, 0}));
  EXPECT_EQ(tokenizer.encode("a", {.max_length = 2}).ids, (Ids{2, 3}));
  EXPECT_EQ(tokenizer.encode_pair("a a a a a", "film film", {.max_length = 8}).ids,
            (Ids{2, 5, 5, 5, 3, 7, 7, 3}))
      << "the longer text is cut";
  EXPECT_THROW(tokenizer.encode("a", {.max_length = 1}), InvalidArgument);
  EXPECT_THROW(tokenizer.encode("a", {.pad_to = -1}), InvalidArgument);
}

TEST_F(TokenizerFiles, ManyThreadsGiveTheSameInTheSameOrder) {
  write("tokenizer.json", tiny_bpe);
  const Tokenizer tokenizer = open();
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) texts.push_back(std::string(std::size_t(i % 70), 'a') + "b ab");
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (const int threads : {1, 3, 8}) {
    const auto all = tokenizer.encode_all(views, {}, threads);
    ASSERT_EQ(all.size(), texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i)
      ASSERT_EQ(all[i].ids, tokenizer.encode(texts[i]).ids) << i << " on " << threads;
  }
}

TEST_F(TokenizerFiles, TheFirstBadTextIsReported) {
  write("tokenizer.json", tiny_bpe);
  std::vector<std::string_view> texts(1000, "ab");
  texts[700] = "ab\xFF";
  try {
    open().encode_all(texts, {}, 4);
    FAIL() << "invalid UTF-8 was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("byte 2 is 0xff"), std::string::npos) << error.what();
  }
}

TEST_F(TokenizerFiles, AppendAddsNothingAround) {
  write("tokenizer.json", tiny_bpe);
  Ids ids{7};
  open().append("ab ab", ids);
  EXPECT_EQ(ids, (Ids{7, 2, 4}));
}

TEST_F(TokenizerFiles, TheDigestIsThatOfTheFiles) {
  write("tokenizer.json", tiny_bpe);
  const std::string digest = open().digest();
  EXPECT_EQ(open().digest(), digest);
  write("tokenizer.json", with("\"a b\", ", "\"a b\",  "));
  EXPECT_NE(open().digest(), digest);
}

TEST_F(TokenizerFiles, AFolderWithoutATokeniserIsRefused) {
  EXPECT_FALSE(has_tokenizer(folder_));
  EXPECT_NE(refused<InvalidArgument>().find("has no tokeniser"), std::string::npos);
  EXPECT_THROW(Tokenizer::open(folder_ / "nothing"), InvalidArgument);
  write("vocab.json", "{}");
  EXPECT_FALSE(has_tokenizer(folder_)) << "merges.txt is missing";
}

TEST_F(TokenizerFiles, UnknownPiecesAreRefusedWithTheirName) {
  const struct {
    std::string json, message;
  } cases[] = {{with("\"BPE\"", "\"Unigram\""), "model.type Unigram is not supported"},
               {with("{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
                     R"({"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}]})"),
                "pre_tokenizer.pretokenizers[0] Metaspace is not supported"},
               {with("\"decoder\"", R"("normalizer": {"type": "Precompiled"}, "decoder")"),
                "normalizer Precompiled is not supported"},
               {with("\"type\": \"BPE\"", R"("type": "BPE", "dropout": 0.1)"),
                "model.dropout 0.1 is not supported"},
               {with("\"type\": \"BPE\"", R"("type": "BPE", "byte_fallback": true)"),
                "model with byte_fallback is not supported"},
               {with("\"decoder\": {\"type\": \"ByteLevel\"}", R"("decoder": {"type": "CTC"})"),
                "decoder CTC is not supported"},
               {with("\"decoder\"", R"("post_processor": {"type": "Fancy"}, "decoder")"),
                "post_processor Fancy is not supported"}};
  for (const auto& one : cases) {
    write("tokenizer.json", one.json);
    const std::string message = refused<InvalidArgument>();
    EXPECT_NE(message.find(one.message), std::string::npos) << message;
    EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
  }
}

TEST_F(TokenizerFiles, DamagedFilesAreRefusedWithTheirPlace) {
  const struct {
    std::string json, message;
  } cases[] = {
      {"", "line 1, column 1"},
      {"[1]", "holds a list, not an object"},
      {std::string(tiny_bpe.substr(0, 200)), "cannot be read on from line"},
      {with("\"vocab\"", "\"words\""), "model.vocab is missing"},
      {with("\"b\": 1", "\"b\": -1"), "model.vocab.b is -1, not an integer from 0"},
      {with("\"b\": 1", "\"b\": 99999999999"), "model.vocab.b is 99999999999"},
      {with("\"b\": 1", "\"b\": 1.5"), "model.vocab.b is 1.5"},
      {with("a b", "ab"), "model.merges[0] is \"ab\", not two tokens"},
      {with("a b", "a c"), "merge 1 needs the token 'c'"},
      {with("\"id\": 5, \"content\": \"<end>\"", "\"id\": 5, \"content\": \"ab\""),
       "has 'ab' with id 5, but the vocabulary has it with id 2"},
      {with("\"type\": \"BPE\"", R"("type": "BPE", "unk_token": "?")"),
       "lacks the unknown token '?'"},
      {with("\"b\": 1", "\"b\": 0"), "an id of its own"},
      {with("}],", R"(}, {"id": 5, "content": "<two>"}],)"),
       "has '<two>' with id 5, which '<end>' has"},
      {with("}],", R"(}, {"id": 6, "content": "<end>"}],)"), "has '<end>' a second time"},
      {with("}],", R"(}, {"id": 7, "content": "<two>"}],)"),
       "added_tokens[1].id is 7, not 6, the first that is free"},
      {with("\"id\": 5", "\"id\": 9"), "added_tokens[0].id is 9, not 5, the first that is free"},
      {with("\"decoder\"", R"("padding": {"pad_id": 6}, "decoder")"),
       "padding has the id 6, which no token has"},
      {with("\"decoder\"",
            R"("post_processor": {"type": "BertProcessing", "cls": ["x", 0],
                        "sep": ["y", 40000]}, "decoder")"),
       "post_processor has the id 40000, which no token has"},
      {with("\"decoder\"", R"("truncation": {"direction": "Up"}, "decoder")"),
       "truncation.direction is \"Up\", not Left or Right"}};
  for (const auto& one : cases) {
    write("tokenizer.json", one.json);
    const std::string message = refused<Corrupt>();
    EXPECT_NE(message.find(one.message), std::string::npos) << message;
  }
}

TEST_F(TokenizerFiles, DamagedVocabulariesAreRefusedWithTheirLine) {
  write("vocab.txt", "[PAD]\n\n[UNK]\n");
  EXPECT_NE(refused<Corrupt>().find("line 2 is empty"), std::string::npos);
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n");
  EXPECT_NE(refused<Corrupt>().find("lacks the token '[SEP]'"), std::string::npos);
  write("vocab.txt", "[PAD]\n\xFF\n");
  EXPECT_NE(refused<Corrupt>().find("line 2 is not UTF-8"), std::string::npos);
  fs::remove(folder_ / "vocab.txt");
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  write("merges.txt", "#version: 0.2\na b\na  b\n");
  EXPECT_NE(refused<Corrupt>().find("line 3 is not two tokens"), std::string::npos);
}

// Each step alone stays within its bound.
TEST_F(TokenizerFiles, TextsThatGrowInSeveralStepsAreRefusedBeforeTheyAreMade) {
  const std::string step =
      fmt::format(R"({{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}})",
                  std::string(60, 'a'));
  write("tokenizer.json",
        with("\"decoder\"", fmt::format(R"("normalizer": {{"type": "Sequence", "normalizers":
             [{0}, {0}, {0}]}}, "decoder")",
                                        step)));
  const Tokenizer tokenizer = open();
  const std::string text(400'000, 'a');
  try {
    tokenizer.encode(text);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("makes 1464000000 bytes or more of a text of 400000"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(TokenizerFiles, ValuesThatNestDeeplyAreRefused) {
  const std::string nested = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  write("tokenizer.json",
        with("\"type\": \"BPE\"", fmt::format(R"("type": "BPE", "dropout": {})", nested)));
  EXPECT_EQ(refused<Corrupt>(), (folder_ / "tokenizer.json").string() +
                                    ": model.dropout is a list, not a number or null");
}

TEST_F(TokenizerFiles, SequencesThatNestTooDeepAreRefused) {
  std::string nested;
  for (int i = 0; i < 100; ++i) nested += R"({"type": "Sequence", "pretokenizers": [)";
  for (int i = 0; i < 100; ++i) nested += "]}";
  write("tokenizer.json", with(R"({"type": "ByteLevel", "add_prefix_space": false})", nested));
  EXPECT_NE(refused<InvalidArgument>().find("nests deeper"), std::string::npos);
}

}  // namespace
}  // namespace echelon
