// Test vectors that show whether a collective returned the right elements: every rank knows the
// vectors of all ranks, and their exact sum in any type and order.
//
// Element i of rank r is entry (i + stride r) mod n of a random table of -1, 0 and 1, where n is
// prime. So a piece that is misplaced, from another rank, missing or counted twice is detected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "echelon/collective/type.h"

namespace echelon {

class SeededValues {
 public:
  SeededValues(DataType type, int ranks, std::uint64_t seed);

  // Elements first, first + 1, … of a rank's vector.
  void fill(int rank, std::size_t first, std::byte* out, std::size_t count) const;
  // Throws Error, naming `what` and the first element that differs from a rank's vector, or from
  // the sum of all ranks'.
  void check(int rank, std::size_t first, const std::byte* seen, std::size_t count,
             const std::string& what) const;
  void check_sum(std::size_t first, const std::byte* seen, std::size_t count,
                 const std::string& what) const;

 private:
  std::size_t place(int rank, std::size_t index) const;
  void compare(const std::vector<std::byte>& table, std::size_t at, std::size_t first,
               const std::byte* seen, std::size_t count, const std::string& what) const;

  DataType type_;
  std::vector<std::byte> values_, sums_;  // the table, and for entry k the sum of all ranks' there
};

}  // namespace echelon
