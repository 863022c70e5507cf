#include "echelon/lab/word_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <unordered_set>

#include "echelon/base/error.h"
#include "echelon/base/file.h"

namespace echelon {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The words of a text in lower case, the most frequent first.
std::vector<std::string> words_by_frequency(std::string_view text) {
  std::unordered_map<std::string, std::size_t> counts;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    while (end < text.size() && is_letter(text[end])) ++end;
    if (end == begin) {
      ++begin;
      continue;
    }
    std::string word(text.substr(begin, end - begin));
    for (char& c : word) c = char(c | 0x20);
    ++counts[word];
    begin = end;
  }
  std::vector<std::string> words;
  for (const auto& [word, count] : counts) words.push_back(word);
  std::sort(words.begin(), words.end(), [&](const auto& a, const auto& b) {
    const auto of_a = counts[a], of_b = counts[b];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  return words;
}

}  // namespace

std::vector<std::string> word_vocabulary(std::span<const std::string_view> texts,
                                         std::size_t size) {
  std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, continued;
  for (char c = '!'; c <= '~'; ++c) {
    if (c >= 'A' && c <= 'Z') continue;
    tokens.emplace_back(1, c);
    if (std::isalnum(static_cast<unsigned char>(c))) continued.push_back(std::string("##") + c);
  }
  tokens.insert(tokens.end(), continued.begin(), continued.end());
  if (tokens.size() > size)
    throw InvalidArgument(fmt::format(
        "a vocabulary of {} tokens has no room for special tokens and characters, which are {}",
        size, tokens.size()));
  std::unordered_set<std::string> have(tokens.begin(), tokens.end());
  for (const auto text : texts)
    for (auto& word : words_by_frequency(text))
      if (tokens.size() < size && have.insert(word).second) tokens.push_back(std::move(word));
  return tokens;
}

void write_word_vocabulary(const std::filesystem::path& folder,
                           std::span<const std::string> tokens) {
  std::string lines;
  for (const auto& token : tokens) lines += token + "\n";
  std::filesystem::create_directories(folder);
  write_file(folder / "vocab.txt", lines);
  write_file(folder / "tokenizer_config.json",
             "{\n  \"tokenizer_class\": \"DistilBertTokenizer\",\n  \"do_lower_case\": true\n}\n");
}

}  // namespace echelon
