#include "echelon/data/xz.h"

#include "echelon/base/build_config.h"

#if ECHELON_HAS_LZMA
#include <lzma.h>

#include <algorithm>
#include <array>

#include "echelon/base/error.h"

namespace echelon {

std::optional<std::uint64_t> xz_size(std::span<const std::uint8_t> bytes) {
  lzma_options_lzma options;
  lzma_lzma_preset(&options, 9);
  // Preset 9 has a window of 64 MiB and ten times that in tables; a window as large as the input
  // finds the same matches.
  options.dict_size = static_cast<std::uint32_t>(
      std::clamp<std::size_t>(bytes.size(), LZMA_DICT_SIZE_MIN, options.dict_size));
  lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  // As a stream, as the xz program does: the one-call encoder's block header is larger.
  lzma_stream stream = LZMA_STREAM_INIT;
  lzma_ret status = lzma_stream_encoder(&stream, filters, LZMA_CHECK_CRC64);
  stream.next_in = bytes.data();
  stream.avail_in = bytes.size();
  std::array<std::uint8_t, 1 << 14> out;  // only counted
  while (status == LZMA_OK) {
    stream.next_out = out.data();
    stream.avail_out = out.size();
    status = lzma_code(&stream, LZMA_FINISH);
  }
  const std::uint64_t size = stream.total_out;
  lzma_end(&stream);
  if (status != LZMA_STREAM_END)
    throw Error("liblzma could not compress the validation text; is memory short?");
  return size;
}

}  // namespace echelon

#else

namespace echelon {
std::optional<std::uint64_t> xz_size(std::span<const std::uint8_t>) { return std::nullopt; }
}  // namespace echelon

#endif
