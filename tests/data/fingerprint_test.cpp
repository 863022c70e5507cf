#include "echelon/data/fingerprint.h"

#include <gtest/gtest.h>

namespace echelon {
namespace {

const DataFingerprint text = {.source = "book.txt",
                              .tokeniser = "bytes",
                              .files = 1,
                              .training = 900,
                              .validation = 100,
                              .sample = "12",
                              .digest = "34"};

DataFingerprint changed(auto member, auto value) {
  DataFingerprint other = text;
  other.*member = value;
  return other;
}

TEST(DataFingerprint, ComesBackFromJson) {
  const DataFingerprint back = fingerprint_of(to_json(text));
  EXPECT_EQ(back.source, text.source);
  EXPECT_EQ(back.tokeniser, text.tokeniser);
  EXPECT_EQ(back.files, text.files);
  EXPECT_EQ(back.training, text.training);
  EXPECT_EQ(back.validation, text.validation);
  EXPECT_EQ(back.sample, text.sample);
  EXPECT_EQ(back.digest, text.digest);
  EXPECT_EQ(fingerprint_of(to_json(changed(&DataFingerprint::source, "\xff name"))).training, 900)
      << "a path need not be UTF-8";
}

TEST(DataFingerprint, IsEmptyWhereThereIsNone) {
  for (const char* nothing : {"", "nonsense", "[1]", "{}", R"({"tokeniser": 7, "files": "one"})"})
    EXPECT_EQ(fingerprint_of(nothing).tokeniser, "") << nothing;
  EXPECT_EQ(difference(text, "a", {}, "b"), "");
  EXPECT_EQ(difference({}, "a", text, "b"), "");
}

TEST(DataFingerprint, SaysHowTwoDiffer) {
  const auto says = [](const DataFingerprint& other) {
    return difference(other, "rank 1", text, "rank 0");
  };
  EXPECT_EQ(says(text), "");
  EXPECT_EQ(says(changed(&DataFingerprint::source, "/elsewhere/book.txt")), "");
  EXPECT_EQ(says(changed(&DataFingerprint::tokeniser, "random")),
            "rank 1 has random tokens and rank 0 has text as bytes");
  EXPECT_EQ(says(changed(&DataFingerprint::training, 901)),
            "rank 1 has 901 bytes to train on and rank 0 has 900");
  EXPECT_EQ(says(changed(&DataFingerprint::validation, 0)),
            "rank 1 has 0 bytes to validate on and rank 0 has 100");
  EXPECT_EQ(says(changed(&DataFingerprint::files, 2)), "rank 1 has 2 files and rank 0 has 1");
  const std::string other_bytes = "rank 1 and rank 0 have 1000 bytes each, and not the same ones";
  EXPECT_EQ(says(changed(&DataFingerprint::sample, "13")), other_bytes);
  EXPECT_EQ(says(changed(&DataFingerprint::digest, "35")), other_bytes);
  EXPECT_EQ(says(changed(&DataFingerprint::digest, "")), "") << "it is not known yet";
}

}  // namespace
}  // namespace echelon
