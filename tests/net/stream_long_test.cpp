// What happens only after millions of records.
#include <cstddef>
#include <future>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/net/stream.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

TEST(Tls, RenewsItsKeysOnBothSidesWhileBothWrite) {
  constexpr std::size_t records = (1 << 22) + 1000;
  const auto streams = tls_streams(local_sockets());
  // One byte a record, both ways at once, with sockets that are mostly full.
  const auto exchange = [](Stream& stream) {
    std::vector<std::byte> got(1 << 16);
    std::size_t written = 0;
    std::size_t read = 0;
    while (written < records || read < records) {
      std::size_t moved = 0;
      while (written < records) {
        const auto byte = std::byte(written % 251);
        if (stream.try_write(std::span(&byte, 1)) == 0) break;
        ++written;
        ++moved;
      }
      const auto size = stream.try_read(got);
      for (std::size_t i = 0; i < size; ++i, ++read) {
        if (got[i] != std::byte(read % 251)) throw Corrupt("byte " + std::to_string(read));
      }
      if (moved + size > 0) continue;
      short events = 0;
      if (written < records) events |= stream.write_events();
      if (read < records) events |= stream.read_events();
      if (!wait_ready(stream.socket().get(), events, in_time())) throw Timeout("stuck");
    }
  };
  auto there =
      std::async(std::launch::async, [&] { return outcome([&] { exchange(*streams.second); }); });
  const auto here = outcome([&] { exchange(*streams.first); });
  EXPECT_EQ(here, "done") << here;
  const auto seen = there.get();
  EXPECT_EQ(seen, "done") << seen;
}

}  // namespace
}  // namespace echelon
