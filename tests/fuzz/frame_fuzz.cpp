// Feeds arbitrary bytes to the frame parser: whatever they are, frames come out or Corrupt does,
// and what comes out is what went in. The first byte decides in which steps the others are fed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "echelon/base/error.h"
#include "echelon/net/frame.h"

namespace {

using namespace echelon;

void require(bool holds) {
  if (!holds) std::abort();
}

// Reads fields in an order that the payload's own bytes decide.
void read_fields(const Frame& frame) {
  FrameReader reader(frame, "a peer");
  try {
    for (const auto byte : frame.payload) {
      switch (std::to_integer<int>(byte) % 4) {
        case 0:
          reader.number();
          break;
        case 1:
          require(reader.number_at_most(1000) <= 1000);
          break;
        case 2:
          require(reader.text().size() <= 4096);
          break;
        default:
          require(reader.text(3).size() <= 3);
      }
    }
    reader.end();
  } catch (const Corrupt&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = data[0] == 0 ? size : data[0];
  auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  FrameParser parser("a peer");
  std::size_t given = 0;
  try {
    for (auto rest = bytes; !rest.empty();) {
      const auto piece = rest.first(std::min(step, rest.size()));
      rest = rest.subspan(piece.size());
      parser.feed(piece);
      while (const auto frame = parser.next()) {
        require(frame->payload.size() <= Frame::max_payload);
        const auto again = encode(*frame);
        require(given + again.size() <= bytes.size());
        require(std::ranges::equal(again, bytes.subspan(given, again.size())));
        given += again.size();
        read_fields(*frame);
      }
    }
  } catch (const Corrupt&) {
  }
  return 0;
}
