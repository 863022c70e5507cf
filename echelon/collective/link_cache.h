// The figures of links that an earlier job measured, kept in a file for the next job between the
// same machines: ECHELON_CACHE, else $XDG_CACHE_HOME/echelon, ~/.cache/echelon.
//
// A file holds for one description of the links (machines, ranks, addresses, interfaces), for a
// day. Nothing here fails: what cannot be read is measured, what cannot be written is measured next
// time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "echelon/collective/cost.h"

namespace echelon {

class LinkCache {
 public:
  explicit LinkCache(std::string links);  // their description

  // Those that are kept, `reused`; nothing where there are none, or they are older than a day.
  std::optional<Figures> read() const;
  // Keeps them, unless their spread says that link or machine were busy.
  void write(const Figures& figures) const;
  void discard() const;

  // Slow messages that take so many times as long as fast ones are no property of a link.
  static constexpr double steady = 2;

 private:
  std::string links_;
  std::filesystem::path file_;  // empty: there is no folder for it
};

}  // namespace echelon
