#include "echelon/optim/group_rule.h"

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

TEST(GroupRule, ReadsWhatARuleSays) {
  const auto both = parse_group("classifier.*: rate=10 decay=0.01");
  EXPECT_EQ(both.pattern, "classifier.*");
  EXPECT_EQ(both.rate, 10);
  EXPECT_EQ(both.decay, 0.01);
  const auto decay = parse_group("*.bias : decay=0");
  EXPECT_EQ(decay.pattern, "*.bias");
  EXPECT_EQ(decay.rate, std::nullopt);
  EXPECT_EQ(decay.decay, 0);
  const auto colons = parse_group("a::b.*:rate=1e-3");
  EXPECT_EQ(colons.pattern, "a::b.*") << "the last colon ends the name";
  EXPECT_EQ(colons.rate, 1e-3);
}

TEST(GroupRule, RefusesWhatItCannotRead) {
  const std::pair<const char*, const char*> all[] = {
      {"*.bias decay=0", "has no colon after the name"},
      {": decay=0", "has no name before the colon"},
      {"  : decay=0", "has no name before the colon"},
      {"*.bias:", "changes nothing"},
      {"*.bias: decay", "has \"decay\""},
      {"*.bias: lr=3", "has \"lr=3\""},
      {"*.bias: decay=0 decay=1", "has decay twice"},
      {"*.bias: rate=", "has rate = \"\""},
      {"*.bias: rate=-1", "has rate = \"-1\""},
      {"*.bias: rate=nan", "has rate = \"nan\""},
      {"*.bias: rate=inf", "has rate = \"inf\""},
      {"*.bias: rate=1x", "has rate = \"1x\""},
  };
  for (const auto& [rule, why] : all) {
    const auto said = thrown<InvalidArgument>([&, text = rule] { parse_group(text); });
    EXPECT_EQ(said,
              "optim.groups: \"" + std::string(rule) + "\" " + why +
                  "; a rule looks like \"classifier.*: rate=10 decay=0.01\", with rate, decay "
                  "or both, which are 0 or more");
  }
}

}  // namespace
}  // namespace echelon
