#include "echelon/data/record_texts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// Its normalizer makes 216,000 bytes of each a, so that a long text is refused.
Tokenizer growing(const ScratchFolder& folder) {
  const std::string step =
      fmt::format(R"({{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}})",
                  std::string(60, 'a'));
  write_file(folder / "tokenizer.json",
             fmt::format(R"({{"normalizer": {{"type": "Sequence", "normalizers": [{0}, {0}, {0}]}},
                              "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false}},
                              "model": {{"type": "BPE", "vocab": {{"a": 0, "b": 1, "</s>": 2}},
                                         "merges": []}}}})",
                         step));
  return Tokenizer::open(folder.path());
}

TEST(RecordTexts, WhatTheTokeniserRefusesHasThePlaceOfItsRecord) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = growing(folder);
  write_file(folder / "a.tsv", "prompt\tanswer\nb\tb\nb\t" + std::string(400'000, 'a') + "\n");
  const Records records(folder / "a.tsv");
  const std::vector<std::int64_t> numbers = {1, 0};
  const EncodeRecords what{records, tokenizer, {1}, numbers, 8};
  const EncodeRecords both{records, tokenizer, {0, 1}, numbers, 8};
  const std::string says = (folder / "a.tsv").string() + ", line 3: ";
  EXPECT_TRUE(thrown<InvalidArgument>([&] { encode_plain(what); }).starts_with(says));
  EXPECT_TRUE(thrown<InvalidArgument>([&] { encode_texts(both); }).starts_with(says));
  EXPECT_TRUE(thrown<InvalidArgument>([&] { encode_answers(both); }).starts_with(says));
}

}  // namespace
}  // namespace echelon
