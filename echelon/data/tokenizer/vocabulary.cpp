#include "echelon/data/tokenizer/vocabulary.h"

#include <cstring>

namespace echelon::tok {
namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return std::uint64_t(product) ^ std::uint64_t(product >> 64);
}

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15, other = 0xD1B54A32D192ED03;
  std::uint64_t hash = bytes.size() * odd, eight = 0;
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= sizeof(eight); at += sizeof(eight), left -= sizeof(eight)) {
    std::memcpy(&eight, at, sizeof(eight));
    hash = mix(hash ^ eight, other);
  }
  eight = 0;
  std::memcpy(&eight, at, left);
  return mix(hash ^ eight, odd);
}

void IdTable::grow() {
  std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

void IdTable::insert(std::string_view text, std::int32_t id) {
  if (2 * (count_ + 1) > slots_.size()) grow();
  const auto hash = std::uint32_t(hash_bytes(text));
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  for (; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].hash != hash || text_of(slots_[at]) != text) continue;
    slots_[at].id = id;
    return;
  }
  slots_[at] = {hash, std::uint32_t(text.size()), bytes_.size(), id};
  bytes_.insert(bytes_.end(), text.begin(), text.end());
  ++count_;
}

std::int32_t IdTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const auto hash = std::uint32_t(hash_bytes(text));
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask)
    if (slots_[at].hash == hash && text_of(slots_[at]) == text) return slots_[at].id;
  return -1;
}

void Vocabulary::insert(std::string_view text, std::int32_t id) {
  table_.insert(text, id);
  if (std::size_t(id) >= text_of_.size()) text_of_.resize(std::size_t(id) + 1, -1);
  text_of_[std::size_t(id)] = std::int32_t(texts_.size());
  texts_.emplace_back(text);
}

std::string_view Vocabulary::text(std::int32_t id) const {
  return has(id) ? std::string_view(texts_[std::size_t(text_of_[std::size_t(id)])])
                 : std::string_view();
}

}  // namespace echelon::tok
