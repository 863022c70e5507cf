// Vectors that tell whether a collective gave the right elements: every rank's is known to every
// other, and so is their sum, exactly, in any type and whatever the order in which it is taken.
//
// Element i of rank r is entry (i + stride r) mod n of a random table of -1, 0 and 1; n is a prime,
// so a piece that lies elsewhere, comes from another rank, is missing or counted twice does not
// fit.
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
