#include "echelon/base/xml.h"

#include <gtest/gtest.h>

namespace echelon {
namespace {

TEST(Xml, EscapesWhatWouldBeMarkup) {
  EXPECT_EQ(escaped_xml("a<b>c&d\"e"), "a&lt;b&gt;c&amp;d&quot;e");
}

TEST(Xml, PutsBlanksForControlCharactersAndKeepsUtf8) {
  EXPECT_EQ(escaped_xml("a\nb\x1f"
                        "naïve"),
            "a b naïve");
}

}  // namespace
}  // namespace echelon
