#include "echelon/net/peer_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/net/peer_info.h"

namespace echelon {
namespace {

constexpr std::size_t entry_bytes = 12;  // of an entry, without its text

std::size_t shared_bytes(const std::string& a, const std::string& b) {
  return std::size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

std::vector<Frame> peer_pages(const std::vector<std::string>& infos, std::uint8_t kind) {
  std::vector<Frame> pages;
  for (std::size_t first = 0; first < infos.size();) {
    std::vector<std::size_t> shared;
    std::size_t bytes = 0, end = first;
    for (; end < infos.size(); ++end) {
      const std::size_t same = end == first ? 0 : shared_bytes(infos[end - 1], infos[end]);
      bytes += entry_bytes + infos[end].size() - same;
      if (end > first && bytes > peer_page_bytes) break;
      shared.push_back(same);
    }
    FrameWriter writer;
    writer.number(first).number(end - first);
    for (std::size_t i = first; i < end; ++i)
      writer.number(shared[i - first]).text(std::string_view(infos[i]).substr(shared[i - first]));
    pages.push_back(writer.frame(kind));
    first = end;
  }
  return pages;
}

PeerPages::PeerPages(int world, std::string from)
    : world_(std::size_t(world)), from_(std::move(from)) {}

void PeerPages::add(const Frame& page) {
  FrameReader reader(page, from_);
  const auto first = reader.number();
  if (first != infos_.size())
    throw Corrupt(
        fmt::format("{} sent a page of peer info that begins with rank {} where rank {} of "
                    "{} is due",
                    from_, first, infos_.size(), world_));
  const auto count = reader.number_at_most(world_ - infos_.size());
  if (count == 0) throw Corrupt(fmt::format("{} sent an empty page of peer info", from_));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t longest = i == 0 ? 0 : infos_.back().size();
    const auto shared = std::size_t(reader.number_at_most(longest));
    std::string text = shared == 0 ? std::string() : infos_.back().substr(0, shared);
    text += reader.text(PeerInfo::longest - std::min(shared, PeerInfo::longest));
    infos_.push_back(std::move(text));
  }
  reader.end();
}

}  // namespace echelon
