// Tokens as text by id, and ids by text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace echelon::tok {

// A hash of bytes for tables in memory: words are short, so eight bytes at a time are enough.
std::uint64_t hash_bytes(std::string_view bytes);

// Strings to ids. All strings lie in one buffer, and the table is flat.
class IdTable {
 public:
  // A string that is already there gets the new id.
  void insert(std::string_view text, std::int32_t id);
  // -1: not there.
  std::int32_t find(std::string_view text) const;
  std::size_t size() const { return count_; }

 private:
  struct Slot {
    std::uint32_t hash = 0, size = 0;
    std::size_t begin = 0;
    std::int32_t id = -1;
  };
  void grow();
  std::string_view text_of(const Slot& slot) const {
    return {bytes_.data() + slot.begin, slot.size};
  }

  std::vector<Slot> slots_;
  std::vector<char> bytes_;
  std::size_t count_ = 0;
};

// An id may have several texts (the last counts for its text), a text has one id.
class Vocabulary {
 public:
  static constexpr std::int32_t most = 1 << 24;  // ids are below this

  void insert(std::string_view text, std::int32_t id);
  std::int32_t find(std::string_view text) const { return table_.find(text); }
  std::string_view text(std::int32_t id) const;  // empty if there is none
  bool has(std::int32_t id) const {
    return id >= 0 && std::size_t(id) < text_of_.size() && text_of_[std::size_t(id)] >= 0;
  }
  std::int32_t size() const { return std::int32_t(text_of_.size()); }  // 1 + the largest id
  std::size_t count() const { return table_.size(); }                  // texts

 private:
  IdTable table_;
  std::vector<std::int32_t> text_of_;  // in texts_, by id; -1: no token. Ids may have gaps
  std::vector<std::string> texts_;
};

}  // namespace echelon::tok
