// Counts every byte that this rank sent, by purpose.
//
// Only payload counts: the caller's data. Over links, "sent" is what was written to a link. In
// shared memory nothing is sent; the payload of peers that this rank read or wrote counts instead
// (see cost.h). Message headers, 32 bytes each, are not counted.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/net/link.h"

namespace echelon {

class Ledger {
 public:
  struct Entry {
    Operation operation;
    std::string tag;
    Algorithm algorithm;
    LinkKind link;
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
  };

  void add(Operation operation, std::string_view tag, Algorithm algorithm, LinkKind link,
           std::uint64_t bytes, std::uint64_t calls = 1);

  std::vector<Entry> entries() const;
  // The entries added since entries() returned `before`, and adding them again: for operations that
  // are recorded once and replayed.
  std::vector<Entry> since(const std::vector<Entry>& before) const;
  void add(const std::vector<Entry>& again);
  std::uint64_t bytes() const;               // all
  std::uint64_t bytes(LinkKind link) const;  // over links of one kind
  void clear() { restore({}); }
  void restore(std::vector<Entry> entries);  // a result of entries(): later entries are dropped

  // {"rank": 0, "bytes": …, "entries": [{"operation": …, "tag": …, "algorithm": …, "link": …,
  //  "calls": …, "bytes": …}]}
  std::string json(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t last_ = 0;  // index of the last match: equal calls follow each other
};

}  // namespace echelon
