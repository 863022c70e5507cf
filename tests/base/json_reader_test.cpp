#include "echelon/base/json_reader.h"

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

TEST(JsonReader, GivesWhatIsThere) {
  const auto all = JsonReader::parse(
      R"({"a": {"n": -3, "big": 18446744073709551615, "x": 0.5}, "list": ["t", true]})",
      "some.json");
  EXPECT_TRUE(all.has("a"));
  EXPECT_FALSE(all.has("b"));
  EXPECT_EQ(all.at("a").at("n").integer(), -3);
  EXPECT_EQ(all.at("a").at("big").count(), UINT64_MAX);
  EXPECT_EQ(all.at("a").at("x").number(0, 1), 0.5);
  EXPECT_EQ(all.at("list").items()[0].text(), "t");
  EXPECT_TRUE(all.at("list").items()[1].boolean());
}

TEST(JsonReader, SaysWhereATextStopsBeingJson) {
  const auto why = [](const std::string& text) {
    return thrown<Corrupt>([&] { JsonReader::parse(text, "some.json"); });
  };
  EXPECT_EQ(why("{\"a\": 1,\n  oops}"),
            "some.json is not JSON: it cannot be read on from line 2, column 3");
  EXPECT_EQ(why(""), "some.json is not JSON: it is empty");
  EXPECT_EQ(why(" \n"), "some.json is not JSON: it is empty");
  for (const std::string text : {"{\"a\": \"\xff\"}", "{", "nul", "[1,]", "\"\\ud800\""})
    EXPECT_TRUE(why(text).starts_with("some.json is not JSON: it cannot be read on from line 1"))
        << why(text);
  EXPECT_EQ(why("[1e999]"), "some.json is not JSON: it has a number that is too large");
}

TEST(JsonReader, NamesThePlaceOfWhatIsMissingOrOfAnotherKind) {
  const auto all = JsonReader::parse(
      R"({"shape": {"ranks": -1, "hosts": "two", "huge": 1e99, "beyond": 18446744073709551615},
          "list": [{"x": []}], "none": null})",
      "plan.json");
  const auto why = [&](const auto& read) { return thrown<Corrupt>([&] { read(); }); };
  const auto shape = all.at("shape");
  EXPECT_EQ(why([&] { shape.at("ranks").integer(1); }),
            "plan.json: shape.ranks is -1, not an integer of at least 1");
  EXPECT_EQ(why([&] { shape.at("ranks").count(); }),
            "plan.json: shape.ranks is -1, not an integer of at least 0");
  EXPECT_EQ(why([&] { shape.at("hosts").integer(1, 8); }),
            "plan.json: shape.hosts is \"two\", not an integer from 1 to 8");
  EXPECT_EQ(why([&] { shape.at("huge").integer(); }),
            "plan.json: shape.huge is 1e+99, not an integer");
  EXPECT_EQ(why([&] { shape.at("beyond").integer(); }),
            "plan.json: shape.beyond is 18446744073709551615, not an integer");
  EXPECT_EQ(why([&] { shape.at("local"); }), "plan.json: shape.local is missing");
  EXPECT_EQ(why([&] { all.at("list").at("x"); }),
            "plan.json: list is a list, not an object with x");
  EXPECT_EQ(why([&] { all.at("list").items()[0].at("x").text(); }),
            "plan.json: list[0].x is a list, not a string");
  EXPECT_EQ(why([&] { all.at("none").boolean(); }), "plan.json: none is null, not true or false");
  EXPECT_EQ(why([&] { all.items(); }), "plan.json holds an object, not a list");
}

TEST(JsonReader, ShowsNoMoreThanTheBeginningOfWhatIsWrongAndNothingThatDisturbsATerminal) {
  const auto long_one = JsonReader::parse("\"" + std::string(5000, 'x') + "\"", "f");
  EXPECT_LT(thrown<Corrupt>([&] { long_one.boolean(); }).size(), 120u);
  const auto escape = JsonReader::parse("\"\\u001b[2J\xc3\xa4\"", "f");
  for (const char c : thrown<Corrupt>([&] { escape.boolean(); })) EXPECT_TRUE(c >= 32 && c < 127);
}

}  // namespace
}  // namespace echelon
