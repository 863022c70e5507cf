#include "echelon/collective/seeded_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/collective/reduce.h"

namespace echelon {
namespace {

constexpr std::size_t entries = 4093, stride = 797;  // both prime

void store(DataType type, int value, std::byte* to) {
  const auto put = [&](auto typed) { std::memcpy(to, &typed, sizeof typed); };
  switch (type) {
    case DataType::f64:
      return put(double(value));
    case DataType::f32:
      return put(float(value));
    case DataType::f16:
    case DataType::bf16: {
      const auto wide = float(value);
      return convert(DataType::f32, &wide, type, to, 1);
    }
    case DataType::i64:
      return put(std::int64_t(value));
    case DataType::i32:
      return put(std::int32_t(value));
    case DataType::i8:
      return put(std::int8_t(value));
    case DataType::u8:
      return put(std::uint8_t(value));
    case DataType::boolean:  // its sum is or
      return put(std::uint8_t(value > 0));
  }
}

std::string text(const std::byte* bytes, std::size_t count) {
  std::string hex = "0x";
  for (std::size_t i = count; i-- > 0;) hex += fmt::format("{:02x}", unsigned(bytes[i]));
  return hex;
}

}  // namespace

SeededValues::SeededValues(DataType type, int ranks, std::uint64_t seed)
    : type_(type), values_(entries * size_of(type)), sums_(values_.size()) {
  std::vector<int> table(entries);
  for (std::size_t k = 0; k < entries; ++k) {
    const int random = int(philox(seed, k)[0] % 3);
    table[k] = type == DataType::boolean ? random / 2 : random - 1;
    store(type, table[k], values_.data() + k * size_of(type));
  }
  for (std::size_t k = 0; k < entries; ++k) {
    int sum = 0;
    for (int r = 0; r < ranks; ++r) sum += table[place(r, k)];
    store(type, sum, sums_.data() + k * size_of(type));
  }
}

std::size_t SeededValues::place(int rank, std::size_t index) const {
  return (index + stride * std::size_t(rank)) % entries;
}

void SeededValues::fill(int rank, std::size_t first, std::byte* out, std::size_t count) const {
  const std::size_t element = size_of(type_);
  for (std::size_t at = place(rank, first); count > 0; at = 0) {
    const std::size_t run = std::min(count, entries - at);
    std::memcpy(out, values_.data() + at * element, run * element);
    out += run * element;
    count -= run;
  }
}

void SeededValues::check(int rank, std::size_t first, const std::byte* seen, std::size_t count,
                         const std::string& what) const {
  compare(values_, place(rank, first), first, seen, count, what);
}

void SeededValues::check_sum(std::size_t first, const std::byte* seen, std::size_t count,
                             const std::string& what) const {
  compare(sums_, place(0, first), first, seen, count, what);
}

void SeededValues::compare(const std::vector<std::byte>& table, std::size_t at, std::size_t first,
                           const std::byte* seen, std::size_t count,
                           const std::string& what) const {
  const std::size_t element = size_of(type_);
  for (; count > 0; at = 0) {
    const std::size_t run = std::min(count, entries - at);
    const std::byte* expected = table.data() + at * element;
    if (std::memcmp(seen, expected, run * element) != 0) {
      std::size_t i = 0;
      while (std::memcmp(seen + i * element, expected + i * element, element) == 0) ++i;
      throw Error(fmt::format("{} gave a wrong value: element {} is {} and should be {} ({})", what,
                              first + i, text(seen + i * element, element),
                              text(expected + i * element, element), name(type_)));
    }
    seen += run * element;
    first += run;
    count -= run;
  }
}

}  // namespace echelon
