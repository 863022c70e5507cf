#include "echelon/data/corpus/document_marks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// A tokeniser with the tokens "a", as 0, and `special`, as 1 and so on.
Tokenizer with(const ScratchFolder& folder, std::initializer_list<const char*> special) {
  std::string vocabulary = R"("a": 0)";
  int id = 1;
  for (const char* token : special) vocabulary += fmt::format(R"(, "{}": {})", token, id++);
  write_file(
      folder / "tokenizer.json",
      fmt::format(R"({{"model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}})", vocabulary));
  return Tokenizer::open(folder.path());
}

using Id = std::optional<std::int32_t>;

TEST(DocumentMarks, AreTheTokensThatBeginAndEndATextOrBertsInTheirPlace) {
  const ScratchFolder folder;
  const auto marks = [&](std::initializer_list<const char*> special) {
    const DocumentMarks found = require_document_marks(with(folder, special));
    return std::pair(found.begin, found.end);
  };
  EXPECT_EQ(marks({"<s>", "</s>", "[CLS]", "[SEP]"}), std::pair(Id(1), Id(2)));
  EXPECT_EQ(marks({"<|endoftext|>"}), std::pair(Id(1), Id(1)));
  EXPECT_EQ(marks({"</s>"}), std::pair(Id(), Id(1)));
  EXPECT_EQ(marks({"[CLS]", "[SEP]"}), std::pair(Id(1), Id(2)));
}

TEST(DocumentMarks, AreRefusedWhereACausalModelNeedsThemAndThereAreNone) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = with(folder, {"<pad>"});
  EXPECT_FALSE(document_marks(tokenizer).begin || document_marks(tokenizer).end);
  EXPECT_EQ(thrown<InvalidArgument>([&] { require_document_marks(tokenizer); }),
            fmt::format("the tokeniser {} has no token that begins or ends a text, which a causal "
                        "model needs between documents: add one, such as <|endoftext|>, to its "
                        "tokenizer.json",
                        (folder / "tokenizer.json").string()));
}

}  // namespace
}  // namespace echelon
