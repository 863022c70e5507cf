// Every byte that this rank sent, by what it was for.
//
// What counts is payload: the numbers of the caller. Through links, "sent" is what was handed to a
// link; in shared memory nobody sends, and what counts is the payload of peers that this rank read
// or wrote (facts of cost.h). Headers of messages are not counted: 32 bytes for each.
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
  // What was added since entries() gave `before`, and adding that once more: for operations that
  // were recorded once and are replayed.
  std::vector<Entry> since(const std::vector<Entry>& before) const;
  void add(const std::vector<Entry>& again);
  std::uint64_t bytes() const;               // all
  std::uint64_t bytes(LinkKind link) const;  // over links of one kind
  void clear() { restore({}); }
  void restore(std::vector<Entry> entries);  // as entries() gave them: what came since is forgotten

  // {"rank": 0, "bytes": …, "entries": [{"operation": …, "tag": …, "algorithm": …, "link": …,
  //  "calls": …, "bytes": …}]}
  std::string json(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t last_ = 0;  // where the last one was found: calls come in runs
};

}  // namespace echelon
