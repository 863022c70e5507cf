// What is drawn over what, on a screen that does what the codes say.
#include "echelon/base/terminal.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace echelon {
namespace {

// A terminal of some rows, with the lines that have scrolled off it.
class Screen {
 public:
  explicit Screen(int rows) : rows_(rows) {}

  void take(const std::string& text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '\r') {
        column_ = 0;
      } else if (c == '\n') {
        column_ = 0;  // the system puts a \r before it
        ++row_;
        if (row_ - top_ == rows_) ++top_;
      } else if (c == '\x1b') {
        const auto end = text.find_first_of("AJ", i);
        ASSERT_NE(end, text.npos) << text.substr(i);
        const std::string code = text.substr(i + 1, end - i);
        if (code == "[J") {
          lines_.resize(std::size_t(row_) + 1);
          line().resize(std::size_t(column_), ' ');
        } else {
          row_ -= std::stoi(code.substr(1));
          ASSERT_GE(row_, top_) << "a terminal does not scroll back";
        }
        i = end;
      } else {
        if (line().size() <= std::size_t(column_)) line().resize(std::size_t(column_) + 1, ' ');
        line()[std::size_t(column_++)] = c;
      }
    }
  }
  // Everything that was ever shown and not drawn over, without empty lines at the end.
  std::string text() const {
    std::string all;
    for (const auto& one : lines_) all += one + "\n";
    while (all.ends_with("\n\n")) all.pop_back();
    return all == "\n" ? "" : all;
  }

 private:
  std::string& line() {
    if (lines_.size() <= std::size_t(row_)) lines_.resize(std::size_t(row_) + 1);
    return lines_[std::size_t(row_)];
  }

  int rows_, row_ = 0, column_ = 0, top_ = 0;
  std::vector<std::string> lines_;
};

class Drawing : public testing::Test {
 protected:
  ~Drawing() override { terminal::clear(); }

  template <class Call>
  void show(Screen& screen, const Call& call) {
    testing::internal::CaptureStdout();
    call();
    screen.take(testing::internal::GetCapturedStdout());
  }
  static void print(const char* text) {
    std::fputs(text, stdout);
    std::fflush(stdout);
  }
};

TEST_F(Drawing, ReplacesWhatWasDrawnBefore) {
  for (const int rows : {4, 24}) {  // four lines fill the smaller screen to its end
    Screen screen(rows);
    show(screen, [] {
      print("begin\n");
      terminal::draw("old bar, which is long");
    });
    EXPECT_EQ(screen.text(), "begin\nold bar, which is long\n");
    show(screen, [] { terminal::draw("first\nsecond\nbar"); });
    EXPECT_EQ(screen.text(), "begin\nfirst\nsecond\nbar\n");
    show(screen, [] { terminal::draw("one\nbar"); });
    EXPECT_EQ(screen.text(), "begin\none\nbar\n") << "of a taller table nothing is left";
    show(screen, [] { terminal::draw("bar"); });
    EXPECT_EQ(screen.text(), "begin\nbar\n");
    show(screen, [] { terminal::clear(); });
    EXPECT_EQ(screen.text(), "begin\n");
  }
}

TEST_F(Drawing, StaysOneTableWhereTheScreenScrolls) {
  Screen screen(4);
  show(screen, [] {
    print("1\n2\n3\n4\n5\n");
    for (int i = 0; i < 9; ++i) terminal::draw("first\nsecond\nbar " + std::to_string(i));
  });
  EXPECT_EQ(screen.text(), "1\n2\n3\n4\n5\nfirst\nsecond\nbar 8\n");
}

TEST_F(Drawing, GivesItsPlaceToALineThatIsPrinted) {
  Screen screen(24);
  show(screen, [] {
    terminal::draw("first\nsecond\nbar");
    terminal::clear();
    print("a warning\n");
    terminal::draw("first\nsecond\nbar");
  });
  EXPECT_EQ(screen.text(), "a warning\nfirst\nsecond\nbar\n");
}

TEST_F(Drawing, IsKeptAboveWhatFollows) {
  for (const std::string drawn : {"bar", "first\nbar", "first\nsecond\nbar"}) {
    Screen screen(3);
    show(screen, [&] {
      terminal::draw("older\nolder");
      terminal::draw(drawn);
      terminal::keep();
      print("the end\n");
    });
    EXPECT_EQ(screen.text(), drawn + "\nthe end\n");
  }
}

TEST_F(Drawing, IsClearedAndKeptOnce) {
  testing::internal::CaptureStdout();
  terminal::clear();
  terminal::keep();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << "nothing is drawn";
  Screen screen(24);
  show(screen, [] {
    terminal::draw("first\nbar");
    terminal::keep();
    terminal::keep();
    print("the end\n");
    terminal::clear();
  });
  EXPECT_EQ(screen.text(), "first\nbar\nthe end\n");
}

}  // namespace
}  // namespace echelon
