// How small `xz -9` makes some bytes: the yardstick beside a language model's bits per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace echelon {

// Bytes of the .xz file, or nothing where liblzma is not built in.
std::optional<std::uint64_t> xz_size(std::span<const std::uint8_t> bytes);

}  // namespace echelon
