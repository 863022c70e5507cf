// Encodes texts for the suite that compares with `tokenizers`:
//
//   tokenizer_oracle TOKENIZER encode SPECIAL(0|1) MAX_LENGTH PAD_TO [pair] < TEXTS
//   tokenizer_oracle TOKENIZER decode SKIP(0|1) < LINES OF IDS
//   tokenizer_oracle TOKENIZER time THREADS ROUNDS < TEXTS
//
// A text is its size in bytes as 4 bytes (little-endian) and the bytes. encode writes a record for
// each text, or pair: the number of tokens, then for each its id, type, begin and end, all as 4
// bytes. decode writes texts. time prints the seconds of each round of encode_all as JSON.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace {

using echelon::Tokenizer;

std::uint32_t number_at(const std::string& bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (int i = 3; i >= 0; --i) number = number << 8 | std::uint8_t(bytes.at(at + std::size_t(i)));
  return number;
}

std::vector<std::string_view> texts_in(const std::string& input) {
  std::vector<std::string_view> texts;
  for (std::size_t at = 0; at < input.size();) {
    const std::uint32_t size = number_at(input, at);
    texts.push_back(std::string_view(input).substr(at + 4, size));
    at += 4 + size;
  }
  return texts;
}

void put(std::uint32_t number) {
  for (int i = 0; i < 4; ++i) std::putchar(int(number >> 8 * i & 255));
}

void encode(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts, char** words,
            bool pairs) {
  const echelon::EncodeOptions options{.special = words[0] == std::string_view("1"),
                                       .max_length = std::atoll(words[1]),
                                       .pad_to = std::atoll(words[2]),
                                       .spans = true};
  for (std::size_t i = 0; i < texts.size(); i += pairs ? 2 : 1) {
    const echelon::Encoding one = pairs ? tokenizer.encode_pair(texts[i], texts.at(i + 1), options)
                                        : tokenizer.encode(texts[i], options);
    // Without spans, texts take shorter ways.
    echelon::EncodeOptions plain = options;
    plain.spans = false;
    const echelon::Encoding same = pairs ? tokenizer.encode_pair(texts[i], texts[i + 1], plain)
                                         : tokenizer.encode(texts[i], plain);
    if (same.ids != one.ids)
      throw echelon::Error("other ids without spans: " + std::string(texts[i]));
    put(std::uint32_t(one.ids.size()));
    for (std::size_t j = 0; j < one.ids.size(); ++j) {
      put(std::uint32_t(one.ids[j]));
      put(std::uint32_t(one.types[j]));
      put(one.spans[j].begin);
      put(one.spans[j].end);
    }
  }
}

void decode(const Tokenizer& tokenizer, const std::string& input, bool skip) {
  std::istringstream lines(input);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const std::vector<std::int32_t> ids{std::istream_iterator<std::int32_t>(words), {}};
    const std::string text = tokenizer.decode(ids, skip);
    put(std::uint32_t(text.size()));
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
}

void time(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts, int threads,
          int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::size_t tokens = 0;
    for (const auto& one : tokenizer.encode_all(texts, {}, threads)) tokens += one.ids.size();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("{\"seconds\": %.6f, \"tokens\": %zu}\n", seconds.count(), tokens);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) return 2;
  const Tokenizer tokenizer = Tokenizer::open(argv[1]);
  const std::string_view what = argv[2];
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  if (what == "decode")
    decode(tokenizer, input, argv[3] == std::string_view("1"));
  else if (what == "time" && argc > 4)
    time(tokenizer, texts_in(input), std::atoi(argv[3]), std::atoi(argv[4]));
  else if (argc > 5)
    encode(tokenizer, texts_in(input), argv + 3, argc > 6);
  return 0;
} catch (const echelon::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
