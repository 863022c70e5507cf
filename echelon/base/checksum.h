// A number that tells bytes apart: equal bytes have equal checksums, and different ones almost
// never do. Against accidents, not against enemies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace echelon {

// Depends on the byte order of the machine.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace echelon
