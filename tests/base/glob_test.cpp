#include "echelon/base/glob.h"

#include <gtest/gtest.h>

#include <string>

namespace echelon {
namespace {

// The definition, by trying every length for every *.
bool plainly(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*')
    return !name.empty() && pattern[0] == name[0] && plainly(pattern.substr(1), name.substr(1));
  for (std::size_t skip = 0; skip <= name.size(); ++skip)
    if (plainly(pattern.substr(1), name.substr(skip))) return true;
  return false;
}

std::vector<std::string> texts(const std::string& letters, int longest) {
  std::vector<std::string> all = {""};
  for (std::size_t i = 0; i < all.size() && int(all[i].size()) < longest; ++i)
    for (const char letter : letters) all.push_back(all[i] + letter);
  return all;
}

TEST(Glob, MatchesAsTryingEveryLengthDoes) {
  int matched = 0;
  for (const auto& pattern : texts("ab*", 5))
    for (const auto& name : texts("ab", 5)) {
      EXPECT_EQ(glob_matches(pattern, name), plainly(pattern, name)) << pattern << " on " << name;
      matched += plainly(pattern, name);
    }
  EXPECT_GT(matched, 1000);
}

TEST(Glob, TreatsOnlyTheStarAsSpecial) {
  EXPECT_TRUE(glob_matches("h.*.ln_1.weight", "h.10.ln_1.weight"));
  EXPECT_FALSE(glob_matches("h.?.weight", "h.1.weight"));
  EXPECT_FALSE(glob_matches("h.[0-9]", "h.1"));
  EXPECT_TRUE(glob_matches("a?[b]", "a?[b]"));
}

TEST(Glob, EndsForPatternsWithManyStars) {
  const std::string name(2000, 'a');
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  EXPECT_TRUE(glob_matches(pattern + "*", name));
  EXPECT_FALSE(glob_matches(pattern + "*b", name));
}

TEST(Glob, NamesWhatIsNearAPatternThatMatchesNothing) {
  const std::vector<std::string> names = {"bert.embeddings.LayerNorm.weight", "bert.pooler.weight",
                                          "classifier.weight", "classifier.bias"};
  EXPECT_EQ(near_names("clasifier.*", names),
            (std::vector<std::string>{"classifier.weight", "classifier.bias"}));
  EXPECT_EQ(near_names("bert.pool.*", names), (std::vector<std::string>{"bert.pooler.weight"}));
  EXPECT_EQ(near_names("*.weight", names, 2),
            (std::vector<std::string>{"bert.embeddings.LayerNorm.weight", "bert.pooler.weight"}));
  EXPECT_EQ(near_names("zzz*", names), std::vector<std::string>());
}

}  // namespace
}  // namespace echelon
