#include "echelon/data/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/byte_alphabet.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {
namespace {

using Symbol = WordScratch::Symbol;
using QueuedMerge = WordScratch::Merge;

// Up to here, looking at all pairs for each merge is faster than a heap.
constexpr std::size_t few = 24;

// SentencePiece's space, U+2581.
constexpr std::string_view meta_space = "\xE2\x96\x81";

// For a heap with the lowest rank, and of equal ranks the leftmost, on top.
constexpr auto later = [](const QueuedMerge& a, const QueuedMerge& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
};

// Whether U+2581 is in a token behind another character.
bool continues_with_space(std::string_view token) {
  for (std::size_t at = token.find(meta_space); at != token.npos;
       at = token.find(meta_space, at + meta_space.size()))
    if (at > 0 && !token.substr(0, at).ends_with(meta_space)) return true;
  return false;
}

// Links symbols to their neighbours.
void link(std::vector<Symbol>& symbols) {
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = std::int32_t(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? std::int32_t(i) + 1 : -1;
  }
}

}  // namespace

MergeTable::MergeTable(std::size_t most)
    : mask_(std::bit_ceil(2 * most + 16) - 1), slots_(mask_ + 1) {}

void MergeTable::insert(const Merge& merge) {
  std::size_t at = place(merge.left, merge.right);
  while (slots_[at].left >= 0 && (slots_[at].left != merge.left || slots_[at].right != merge.right))
    at = (at + 1) & mask_;
  slots_[at] = merge;
}

Bpe::Bpe(const Vocabulary& vocabulary,
         const std::vector<std::pair<std::string, std::string>>& merges,
         const BpeSettings& settings, const std::string& where)
    : vocabulary_(vocabulary), settings_(settings), merges_(merges.size()) {
  const auto find = [&](const std::string& token, std::size_t rank) {
    const auto id = vocabulary.find(token);
    if (id < 0)
      throw Corrupt(fmt::format("{}: merge {} needs the token '{}', which the vocabulary lacks",
                                where, rank + 1, token));
    return id;
  };
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    if (right.size() < settings.prefix.size())
      throw Corrupt(fmt::format("{}: in merge {}, '{}' is shorter than the prefix '{}'", where,
                                rank + 1, right, settings.prefix));
    merges_.insert({find(left, rank), find(right, rank), std::uint32_t(rank),
                    find(left + right.substr(settings.prefix.size()), rank)});
  }
  if (settings.unknown) {
    unknown_ = vocabulary.find(*settings.unknown);
    if (unknown_ < 0)
      throw Corrupt(
          fmt::format("{}: the vocabulary lacks the unknown token '{}'", where, *settings.unknown));
  }
  for (int byte = 0; byte < 256; ++byte) {
    fallback_ids_[std::size_t(byte)] = vocabulary.find(fmt::format("<0x{:02X}>", byte));
    for (std::size_t place = 0; place < 4; ++place)
      byte_ids_[place][std::size_t(byte)] = vocabulary.find((place & 2 ? "" : settings.prefix) +
                                                            byte_characters()[std::size_t(byte)] +
                                                            (place & 1 ? settings.suffix : ""));
  }
  // If no merge makes a token with a space behind another character, none ever spans that place.
  splits_at_spaces_ = unknown_ >= 0 && !settings.byte_level && !settings.ignore_merges &&
                      settings.prefix.empty() && settings.suffix.empty() &&
                      vocabulary.find(meta_space) >= 0 &&
                      std::ranges::none_of(merges, [](const auto& merge) {
                        return continues_with_space(merge.first + merge.second);
                      });
  if (!settings.ignore_merges || !settings.byte_level) return;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id)
    if (vocabulary.has(id))
      if (const auto bytes = alphabet_to_bytes(vocabulary.text(id)); bytes && !bytes->empty())
        whole_.insert(*bytes, id);
}

void Bpe::add_unknown(WordScratch& scratch, std::size_t size, bool& last_is_unknown) const {
  if (unknown_ < 0) return;  // without an unknown token, what is unknown is left out
  if (last_is_unknown && settings_.fuse_unknown)
    scratch.symbols.back().size += std::uint32_t(size);
  else
    scratch.symbols.push_back({unknown_, std::uint32_t(size), 0, 0});
  last_is_unknown = true;
}

void Bpe::split_bytes(std::string_view word, WordScratch& scratch) const {
  bool unknown = false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto byte = std::uint8_t(word[i]);
    const std::size_t place = (i == 0 ? 2 : 0) + (i + 1 == word.size() ? 1 : 0);
    const auto id = byte_ids_[place][byte];
    if (id >= 0) {
      scratch.symbols.push_back({id, 1, 0, 0});
      unknown = false;
    } else {
      add_unknown(scratch, 1, unknown);
    }
  }
}

void Bpe::split(std::string_view word, WordScratch& scratch) const {
  bool unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t size = decode_utf8(word.data() + at).size;
    std::string_view character = word.substr(at, size);
    const bool first = at == 0, last = at + size == word.size();
    if ((!first && !settings_.prefix.empty()) || (last && !settings_.suffix.empty())) {
      scratch.text.clear();
      if (!first) scratch.text += settings_.prefix;
      scratch.text += character;
      if (last) scratch.text += settings_.suffix;
      character = scratch.text;
    }
    at += size;
    if (const auto id = vocabulary_.find(character); id >= 0) {
      scratch.symbols.push_back({id, std::uint32_t(size), 0, 0});
      unknown = false;
      continue;
    }
    if (settings_.byte_fallback && std::ranges::all_of(character, [&](char c) {
          return fallback_ids_[std::uint8_t(c)] >= 0;
        })) {
      // The reference puts an unknown character before this one behind its bytes.
      const bool held = unknown;
      const Symbol symbol = held ? scratch.symbols.back() : Symbol{};
      if (held) scratch.symbols.pop_back();
      for (const char c : character)
        scratch.symbols.push_back({fallback_ids_[std::uint8_t(c)], 1, 0, 0});
      if (held) scratch.symbols.push_back(symbol);
      continue;
    }
    add_unknown(scratch, size, unknown);
  }
}

// The symbols lie side by side: a merge moves the rest of a short word by one.
void Bpe::merge_few(WordScratch& scratch) const {
  auto& symbols = scratch.symbols;
  std::array<const MergeTable::Merge*, few> pairs;
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i)
    pairs[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    std::size_t best = count;
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (pairs[i] && (best == count || pairs[i]->rank < pairs[best]->rank)) best = i;
    if (best == count) break;
    symbols[best].id = pairs[best]->id;
    symbols[best].size += symbols[best + 1].size;
    for (std::size_t i = best + 1; i + 1 < count; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best + 1; i + 2 < count; ++i) pairs[i] = pairs[i + 1];
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < count) pairs[best] = merges_.find(symbols[best].id, symbols[best + 1].id);
  }
  symbols.resize(count);
}

void Bpe::merge_many(WordScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.merges;
  link(symbols);
  queue.clear();
  const auto consider = [&](std::int32_t at, std::int32_t next) {
    const auto* merge = merges_.find(symbols[std::size_t(at)].id, symbols[std::size_t(next)].id);
    if (merge) queue.push_back({merge->rank, at, merge->id});
    return merge != nullptr;
  };
  for (std::int32_t i = 0; i + 1 < std::int32_t(symbols.size()); ++i) consider(i, i + 1);
  std::ranges::make_heap(queue, later);
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, later);
    const QueuedMerge top = queue.back();
    queue.pop_back();
    Symbol& left = symbols[std::size_t(top.at)];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[std::size_t(left.next)];
    const auto* merge = merges_.find(left.id, right.id);
    if (!merge || merge->id != top.id) continue;  // a neighbour has changed since
    left.id = top.id;
    left.size += right.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[std::size_t(left.next)].previous = top.at;
    if (left.previous >= 0 && consider(left.previous, top.at)) std::ranges::push_heap(queue, later);
    if (left.next >= 0 && consider(top.at, left.next)) std::ranges::push_heap(queue, later);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.size == 0; });
}

void Bpe::encode(std::string_view word, WordTokens& out, WordScratch& scratch) const {
  if (settings_.ignore_merges) {
    const auto id = settings_.byte_level ? whole_.find(word) : vocabulary_.find(word);
    if (id >= 0) return out.push(id, word.size());
  }
  scratch.symbols.clear();
  if (settings_.byte_level)
    split_bytes(word, scratch);
  else
    split(word, scratch);
  if (scratch.symbols.size() <= few)
    merge_few(scratch);
  else
    merge_many(scratch);
  for (const Symbol& symbol : scratch.symbols) out.push(symbol.id, symbol.size);
}

}  // namespace echelon::tok
