#include "echelon/data/xz.h"

#include "echelon/base/build_config.h"

#if ECHELON_HAS_LZMA
#include <lzma.h>

#include <algorithm>
#include <vector>

#include "echelon/base/error.h"

namespace echelon {

std::optional<std::uint64_t> xz_size(std::span<const std::uint8_t> bytes) {
  lzma_options_lzma options;
  lzma_lzma_preset(&options, 9);
  // Preset 9 takes 64 MiB of window and ten times that of tables; a window as large as the input finds the same
  // matches.
  options.dict_size = static_cast<std::uint32_t>(
      std::clamp<std::size_t>(bytes.size(), LZMA_DICT_SIZE_MIN, options.dict_size));
  lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  std::vector<std::uint8_t> out(lzma_stream_buffer_bound(bytes.size()));
  std::size_t size = 0;
  if (lzma_stream_buffer_encode(filters, LZMA_CHECK_CRC64, nullptr, bytes.data(), bytes.size(), out.data(), &size,
                                out.size()) != LZMA_OK) {
    throw Error("liblzma could not compress the validation text; is memory short?");
  }
  return size;
}

}  // namespace echelon

#else

namespace echelon {
std::optional<std::uint64_t> xz_size(std::span<const std::uint8_t>) { return std::nullopt; }
}  // namespace echelon

#endif
