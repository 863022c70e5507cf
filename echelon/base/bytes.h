// Numbers of bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace echelon {

// "512 B", "3.1 KiB", "1.0 MiB", "27.4 GiB".
std::string human_bytes(std::uint64_t bytes);

// "950", "12.3k", "1.05M", "124M", "7.50B": counts of parameters and tokens, three digits.
std::string human_count(double count);

}  // namespace echelon
