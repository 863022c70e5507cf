// Every word is kept as its tokens, once, with the number of its occurrences. A queue holds pairs
// with their count and the words they were found in. The most frequent pair is taken out; if its
// count has changed meanwhile, it goes back with the present one. A merge changes only the words of
// its pair: of their neighbours, old pairs lose and new pairs gain the word's count, and the pairs
// that gained enter the queue with the words in which they did.
#include "echelon/data/tokenizer/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/byte_alphabet.h"
#include "echelon/data/tokenizer/pair_counts.h"

namespace echelon {
namespace {

using Id = BpeVocabulary::Id;
using Pair = std::uint64_t;  // the first token's id in the upper half

constexpr int bytes = 256;

Pair pair_of(Id first, Id second) { return Pair{first} << 32 | second; }
Id first_of(Pair pair) { return static_cast<Id>(pair >> 32); }
Id second_of(Pair pair) { return static_cast<Id>(pair); }

// Tokens by what they spell.
class Vocabulary {
 public:
  Id add(const std::string& token) {
    const auto [place, added] = ids_.try_emplace(token, static_cast<Id>(tokens_.size()));
    if (added) tokens_.push_back(token);
    return place->second;
  }
  const std::string& operator[](Id id) const { return tokens_[id]; }
  std::size_t size() const { return tokens_.size(); }
  std::vector<std::string> take() { return std::move(tokens_); }

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, Id> ids_;
};

// The tokens of all words, word after word. A word only becomes shorter.
class Words {
 public:
  Words(const WordCounts& counts, const std::array<Id, bytes>& id_of_byte) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto word = counts.word(i);
      words_.push_back({tokens_.size(), word.size(), counts.count(i)});
      for (const char c : word) tokens_.push_back(id_of_byte[static_cast<std::uint8_t>(c)]);
    }
  }

  std::size_t size() const { return words_.size(); }
  std::int64_t count(std::size_t word) const { return words_[word].count; }
  std::span<const Id> tokens(std::size_t word) const {
    return std::span(tokens_).subspan(words_[word].begin, words_[word].size);
  }

  // Replaces a pair in a word from left to right. change(pair, ±1) for every pair of neighbours
  // that is lost or gained.
  template <class Change>
  void merge(std::size_t word, Pair pair, Id merged, Change change) {
    auto& [begin, size, count] = words_[word];
    Id* const at = tokens_.data() + begin;
    const Id first = first_of(pair), second = second_of(pair);
    std::size_t out = 0;
    for (std::size_t in = 0; in < size; ++in, ++out) {
      if (at[in] != first || in + 1 == size || at[in + 1] != second) {
        at[out] = at[in];
        continue;
      }
      if (out > 0) {
        change(pair_of(at[out - 1], first), -1);
        change(pair_of(at[out - 1], merged), 1);
      }
      ++in;
      if (in + 1 < size) {
        change(pair_of(second, at[in + 1]), -1);
        change(pair_of(merged, at[in + 1]), 1);
      }
      at[out] = merged;
    }
    size = out;
  }

 private:
  struct Word {
    std::size_t begin, size;
    std::int64_t count;
  };
  std::vector<Word> words_;
  std::vector<Id> tokens_;
};

class Merges {
 public:
  Merges(Words words, Vocabulary& vocabulary) : words_(std::move(words)), vocabulary_(vocabulary) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
      const auto tokens = words_.tokens(word);
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
        change(pair_of(tokens[i], tokens[i + 1]), words_.count(word), word);
    }
    queue_changes();
  }

  // Makes the most frequent pair a token. False: no pair is frequent enough.
  bool next(std::int64_t min_frequency) {
    Candidate top = {};
    do {
      if (queue_.empty()) return false;
      top = queue_.top();
      queue_.pop();
      const auto now = static_cast<std::uint64_t>(counts_.at(top.pair).count);
      if (now == top.count) break;
      top.count = now;
      queue_.push(top);
    } while (true);
    if (top.count < 1 || top.count < static_cast<std::uint64_t>(min_frequency)) return false;
    const Id merged =
        vocabulary_.add(vocabulary_[first_of(top.pair)] + vocabulary_[second_of(top.pair)]);
    merges_.push_back(top.pair);
    for (const auto word : std::exchange(places_[top.places], {}))
      words_.merge(word, top.pair, merged,
                   [&](Pair pair, int sign) { change(pair, sign * words_.count(word), word); });
    queue_changes();
    return true;
  }

  std::int64_t text_tokens() const {
    std::int64_t sum = 0;
    for (std::size_t word = 0; word < words_.size(); ++word)
      sum += words_.count(word) * std::ssize(words_.tokens(word));
    return sum;
  }

  // A pair that was merged twice stands where it was merged last.
  std::vector<std::pair<Id, Id>> take() const {
    std::vector<std::pair<Id, Id>> merges;
    std::unordered_map<Pair, std::size_t> last;
    for (std::size_t i = 0; i < merges_.size(); ++i) last[merges_[i]] = i;
    for (std::size_t i = 0; i < merges_.size(); ++i)
      if (last[merges_[i]] == i) merges.emplace_back(first_of(merges_[i]), second_of(merges_[i]));
    return merges;
  }

 private:
  struct Candidate {
    std::uint64_t count;
    Pair pair;
    std::size_t places;
    bool operator<(const Candidate& other) const {
      return std::tuple(count, other.pair, other.places) < std::tuple(other.count, pair, places);
    }
  };

  void change(Pair pair, std::int64_t by, std::uint32_t word) {
    auto& entry = counts_.at(pair);
    entry.count += by;
    if (by <= 0) return;
    if (entry.gained == PairCounts::none) {
      entry.gained = static_cast<std::uint32_t>(gained_.size());
      gained_.push_back({pair, {}});
    }
    auto& words = gained_[entry.gained].second;
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void queue_changes() {
    for (auto& [pair, words] : gained_) {
      auto& entry = counts_.at(pair);
      entry.gained = PairCounts::none;
      if (entry.count <= 0) continue;
      queue_.push({static_cast<std::uint64_t>(entry.count), pair, places_.size()});
      places_.push_back(std::move(words));
    }
    gained_.clear();
  }

  Words words_;
  Vocabulary& vocabulary_;
  PairCounts counts_;
  std::vector<std::pair<Pair, std::vector<std::uint32_t>>> gained_;  // since the last merge
  std::vector<std::vector<std::uint32_t>> places_;                   // the words of each candidate
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> merges_;
};

}  // namespace

void check_bpe_options(const BpeTrainerOptions& options) {
  for (auto one = options.special.begin(); one != options.special.end(); ++one) {
    if (one->empty()) throw InvalidArgument("a special token is empty; give it a text");
    if (std::find(options.special.begin(), one, *one) != one)
      throw InvalidArgument(fmt::format("the special token {} is given twice", *one));
  }
  const auto least = bytes + static_cast<std::int64_t>(options.special.size());
  if (options.vocab < least)
    throw InvalidArgument(fmt::format(
        "a vocabulary of {} tokens is too small: the bytes need 256 and the special tokens {}, so "
        "it must have at least {}",
        options.vocab, options.special.size(), least));
}

BpeVocabulary train_bpe(const WordCounts& words, const BpeTrainerOptions& options) {
  check_bpe_options(options);
  if (words.size() == 0) throw InvalidArgument("there is no text to train a tokeniser on");
  Vocabulary vocabulary;
  for (const auto& token : options.special) vocabulary.add(token);
  const auto& characters = tok::byte_characters();
  std::array<int, bytes> order;  // of the characters, which UTF-8 keeps
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return characters[std::size_t(a)] < characters[std::size_t(b)]; });
  std::array<Id, bytes> ids;
  for (const int byte : order)
    ids[std::size_t(byte)] = vocabulary.add(characters[std::size_t(byte)]);

  Merges merges(Words(words, ids), vocabulary);
  while (static_cast<std::int64_t>(vocabulary.size()) < options.vocab &&
         merges.next(options.min_frequency)) {
  }
  BpeVocabulary bpe;
  bpe.merges = merges.take();
  bpe.text_tokens = merges.text_tokens();
  bpe.special = options.special.size();
  bpe.tokens = vocabulary.take();
  return bpe;
}

}  // namespace echelon
