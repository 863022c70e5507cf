// The size of some bytes after `xz -9`: a baseline for a language model's bits per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace echelon {

// Bytes of the .xz file, or nothing if liblzma is not built in.
std::optional<std::uint64_t> xz_size(std::span<const std::uint8_t> bytes);

}  // namespace echelon
