// The peer info of all ranks, in pages: frames of bounded size, however many ranks there are.
//
// A page holds the texts of consecutive ranks: the first rank (8 bytes), how many (8), then for
// each how many bytes it shares with the text before it in the page (8) and the rest of it as a
// text. Ranks of one host follow each other and share all but their port, socket and process, so a
// page has about a third of the bytes of its texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "echelon/net/frame.h"

namespace echelon {

constexpr std::size_t peer_page_bytes = 64 << 10;  // of payload, unless one text is longer

std::vector<Frame> peer_pages(const std::vector<std::string>& infos, std::uint8_t kind);

// Reassembles the pages. Every field is checked; a page that is missing, repeated or out of order
// throws Corrupt, and so does one that claims more ranks than the world has.
class PeerPages {
 public:
  PeerPages(int world, std::string from);
  void add(const Frame& page);
  bool complete() const { return infos_.size() == world_; }
  std::vector<std::string> take() { return std::move(infos_); }

 private:
  std::size_t world_;
  std::string from_;
  std::vector<std::string> infos_;
};

}  // namespace echelon
