// A cache of measured link figures for later jobs between the same machines, in the folder
// ECHELON_CACHE, else $XDG_CACHE_HOME/echelon, else ~/.cache/echelon.
//
// A file is valid for a day and for one description of the links (machines, ranks, addresses,
// interfaces). Nothing here fails: figures that cannot be read or written are measured again.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "echelon/collective/cost.h"

namespace echelon {

class LinkCache {
 public:
  explicit LinkCache(std::string links);  // the description of the links

  // The cached figures, with `reused` set; nothing if there are none or they are older than a day.
  std::optional<Figures> read() const;
  // Stores figures, unless their spread shows that the link or the machine was busy.
  void write(const Figures& figures) const;
  void discard() const;

  // If slow messages take this many times as long as fast ones, it is not because of the link.
  static constexpr double steady = 2;

 private:
  std::string links_;
  std::filesystem::path file_;  // empty if there is no cache folder
};

}  // namespace echelon
