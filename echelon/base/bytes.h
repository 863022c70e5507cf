// Numbers of bytes, rates and times for people.
#pragma once

#include <cstdint>
#include <string>

namespace echelon {

// "512 B", "3.1 KiB", "1.0 MiB", "27.4 GiB".
std::string human_bytes(std::uint64_t bytes);

// "12.5 MB/s", "9.81 GB/s": bytes a second in decimal units, as links are sold; three digits.
std::string human_rate(double bytes_a_second);

// "430 ns", "1.12 ms", "223 ms", "4.50 s": three digits.
std::string human_seconds(double seconds);

// "less than a second", "12 minutes", "3 hours", "2 days": for "measured … ago".
std::string human_age(double seconds);

// "950", "12.3k", "1.05M", "124M", "7.50B": counts of parameters and tokens, three digits.
std::string human_count(double count);

}  // namespace echelon
