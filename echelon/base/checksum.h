// A number that tells bytes apart: equal bytes have equal checksums, and different ones almost
// never do. Against accidents, not against enemies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace echelon {

// Of one machine's bytes: words are taken as they lie in memory.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace echelon
