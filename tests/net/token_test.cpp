#include "echelon/net/token.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/folder.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Wanted = std::map<std::string, std::optional<std::string>>;

// Sets variables of the environment, or unsets them, while it lives.
class Variables {
 public:
  explicit Variables(const Wanted& wanted) {
    for (const auto& [name, value] : wanted) {
      const char* const old = std::getenv(name.c_str());
      old_[name] = old ? std::optional<std::string>(old) : std::nullopt;
      set(name, value);
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (const auto& [name, value] : old_) set(name, value);
  }

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  Wanted old_;
};

void write_secret(const std::filesystem::path& file, const std::string& text, mode_t mode = 0600) {
  write_file(file, text);
  ::chmod(file.c_str(), mode);
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string hex(const Token::Mac& mac) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const auto byte : mac) {
    text += digits[std::to_integer<unsigned>(byte) >> 4];
    text += digits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Token, IsRandomAndLong) {
  const auto one = Token::random();
  const auto other = Token::random();
  EXPECT_EQ(one.text().size(), 64u);
  EXPECT_NE(one.text(), other.text());
  EXPECT_EQ(Token::parse(one.text()).text(), one.text());
}

TEST(Token, IgnoresWhiteSpaceAtItsEnds) {
  EXPECT_EQ(Token::parse(" \t0123456789 abcdef\r\n").text(), "0123456789 abcdef");
}

TEST(Token, RefusesAShortTextWithoutRepeatingIt) {
  EXPECT_EQ(Token::parse("0123456789abcdef").text().size(), 16u);
  const auto said = thrown<InvalidArgument>([] { Token::parse("  hunter2secret!! "); });
  EXPECT_TRUE(has(said, "has 15 characters, but needs at least 16")) << said;
  EXPECT_FALSE(has(said, "hunter2")) << said;
}

TEST(Token, RefusesWhatTheEnvironmentCannotCarry) {
  const std::string with_zero("0123456789abcdef\0more", 21);
  const auto said = thrown<InvalidArgument>([&] { Token::parse(with_zero); });
  EXPECT_TRUE(has(said, "zero byte")) << said;
  const auto long_said = thrown<InvalidArgument>([] { Token::parse(std::string(5000, 'x')); });
  EXPECT_TRUE(has(long_said, "longer than 4096")) << long_said;
}

TEST(Token, ComputesHmacSha256) {
  // RFC 4231, test case 6: its key of 131 bytes is one that a token may have.
  const auto token = Token::parse(std::string(131, '\xaa'));
  EXPECT_EQ(hex(token.mac(bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Token, TellsEqualMacsFromOthersInEveryByte) {
  const auto mac = Token::random().mac(bytes_of("message"));
  EXPECT_TRUE(equal(mac, mac));
  for (std::size_t i = 0; i < mac.size(); ++i) {
    auto other = mac;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(equal(mac, other)) << "byte " << i;
  }
}

TEST(Token, FillsWithRandomBytes) {
  std::vector<std::byte> bytes(1000);
  fill_random(bytes);
  // Each value is expected about four times.
  EXPECT_LT(std::ranges::count(bytes, std::byte{0}), 40);
}

TEST(Token, IsReadFromAFileOfItsOwnerAlone) {
  const ScratchFolder folder;
  write_secret(folder / "token", "0123456789abcdef\n");
  EXPECT_EQ(Token::read(folder / "token").text(), "0123456789abcdef");
  write_secret(folder / "read-only", "0123456789abcdef\n", 0400);
  EXPECT_EQ(Token::read(folder / "read-only").text(), "0123456789abcdef");
}

TEST(Token, RefusesAFileThatOthersMayRead) {
  const ScratchFolder folder;
  for (const mode_t mode : {0640, 0604, 0620, 0644}) {
    write_secret(folder / "token", "0123456789abcdef\n", mode);
    const auto said = thrown<InvalidArgument>([&] { Token::read(folder / "token"); });
    EXPECT_TRUE(has(said, "chmod 600")) << said;
  }
}

TEST(Token, RefusesWhatIsNoFile) {
  const ScratchFolder folder;
  const auto missing = thrown<InvalidArgument>([&] { Token::read(folder / "missing"); });
  EXPECT_TRUE(has(missing, "No such file")) << missing;
  const auto directory = thrown<InvalidArgument>([&] { Token::read(folder.path()); });
  EXPECT_TRUE(has(directory, "no regular file")) << directory;
  ::mkfifo((folder / "pipe").c_str(), 0600);
  const auto pipe = thrown<InvalidArgument>([&] { Token::read(folder / "pipe"); });
  EXPECT_TRUE(has(pipe, "no regular file")) << pipe;
}

TEST(Token, RefusesAFileThatIsTooShortOrTooLong) {
  const ScratchFolder folder;
  write_secret(folder / "short", "short\n");
  const auto short_said = thrown<InvalidArgument>([&] { Token::read(folder / "short"); });
  EXPECT_TRUE(has(short_said, "at least 16")) << short_said;
  write_secret(folder / "long", std::string(1 << 20, 'x'));
  const auto long_said = thrown<InvalidArgument>([&] { Token::read(folder / "long"); });
  EXPECT_TRUE(has(long_said, "longer than 4096")) << long_said;
}

TEST(Token, IsFoundInTheEnvironmentFirst) {
  const ScratchFolder folder;
  write_secret(folder / "token", "the file's own token\n");
  const Variables both({{"ECHELON_TOKEN", "the environment's token"},
                        {"ECHELON_TOKEN_FILE", folder / "token"},
                        {"XDG_CONFIG_HOME", folder.path()}});
  EXPECT_EQ(Token::find().text(), "the environment's token");
  const Variables file_only(Wanted{{"ECHELON_TOKEN", std::nullopt}});
  EXPECT_EQ(Token::find().text(), "the file's own token");
}

TEST(Token, TakesAnEmptyVariableForAMistake) {
  const Variables empty(Wanted{{"ECHELON_TOKEN", ""}});
  const auto said = thrown<InvalidArgument>([] { Token::find(); });
  EXPECT_TRUE(has(said, "the token of ECHELON_TOKEN has 0 characters")) << said;
}

TEST(Token, IsMadeOnFirstUseAndKept) {
  const ScratchFolder folder;
  const Variables none({{"ECHELON_TOKEN", std::nullopt},
                        {"ECHELON_TOKEN_FILE", std::nullopt},
                        {"XDG_CONFIG_HOME", folder / "config"}});
  const auto made = Token::find();
  struct stat status = {};
  ASSERT_EQ(::stat((folder / "config/echelon/token").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(Token::find().text(), made.text());
}

TEST(Token, IsOneForAllProcessesThatMakeItAtOnce) {
  const ScratchFolder folder;
  const Variables none({{"ECHELON_TOKEN", std::nullopt},
                        {"ECHELON_TOKEN_FILE", std::nullopt},
                        {"XDG_CONFIG_HOME", folder.path()}});
  std::vector<std::future<std::string>> found;
  for (int i = 0; i < 8; ++i) {
    found.push_back(std::async(std::launch::async, [] { return Token::find().text(); }));
  }
  const auto first = found[0].get();
  for (std::size_t i = 1; i < found.size(); ++i) EXPECT_EQ(found[i].get(), first);
  // No file aside is left.
  std::error_code error;
  const auto files = list_folder(folder / "echelon", error);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].name, "token");
}

TEST(Token, IsKeptInTheHomeFolderWithoutXdg) {
  const ScratchFolder folder;
  const Variables none({{"ECHELON_TOKEN", std::nullopt},
                        {"ECHELON_TOKEN_FILE", std::nullopt},
                        {"XDG_CONFIG_HOME", "not/absolute"},
                        {"HOME", folder.path()}});
  const auto made = Token::find();
  EXPECT_EQ(Token::read(folder / ".config/echelon/token").text(), made.text());
}

}  // namespace
}  // namespace echelon
