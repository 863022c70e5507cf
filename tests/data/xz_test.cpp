#include "echelon/data/xz.h"

#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/file.h"
#include "echelon/base/random.h"
#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

// The size of a file compressed by the xz program, or 0 if the program is missing. Single-threaded,
// as xz was before 5.6.
std::uint64_t xz_program(const std::string& text) {
  ScratchFolder folder;
  write_file(folder / "text", text);
  const std::string command = "xz -9 -T1 -c " + (folder / "text").string() + " 2>/dev/null | wc -c";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  unsigned long long size = 0;
  const int read = std::fscanf(pipe, "%llu", &size);
  ::pclose(pipe);
  return read == 1 ? size : 0;
}

// Repeating words, as in text: few enough that every match length and distance occurs.
std::string prose(std::size_t words) {
  std::string text;
  for (std::size_t i = 0; i < words; ++i) {
    const auto draw = uniform_at(1, i);
    const auto word = static_cast<std::uint64_t>(draw * draw * 3000);
    const auto length = 2 + philox(2, word)[0] % 8;
    for (std::uint64_t c = 0; c < length; ++c) {
      text.push_back(static_cast<char>('a' + philox(3, word, c)[0] % 26));
    }
    text += i % 12 == 11 ? ".\n" : " ";
  }
  return text;
}

std::uint64_t ours(const std::string& text) {
  return xz_size({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}).value();
}

TEST(XzSize, IsThatOfTheProgram) {
  if (!xz_size({})) GTEST_SKIP() << "liblzma is not built in";
  if (xz_program("text") == 0) GTEST_SKIP() << "there is no xz program here";
  for (const std::size_t words : {0, 1, 50, 3000, 60000}) {
    const std::string text = prose(words);
    EXPECT_EQ(ours(text), xz_program(text)) << text.size() << " bytes";
  }
}

TEST(XzSize, IsSmallForWhatRepeatsAndLargeForWhatDoesNot) {
  if (!xz_size({})) GTEST_SKIP() << "liblzma is not built in";
  std::string noise;
  for (std::uint64_t i = 0; i < 100'000; ++i) noise.push_back(static_cast<char>(philox(1, i)[0]));
  EXPECT_LT(ours(std::string(100'000, 'x')), 300U);
  EXPECT_GT(ours(noise), 100'000U);
}

}  // namespace
}  // namespace echelon
