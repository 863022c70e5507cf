// The dimensions of a mesh of ranks, from the outermost to the innermost, and sets of them.
#pragma once

#include <compare>
#include <initializer_list>
#include <string>

#include "echelon/base/named_enum.h"

namespace echelon {

enum class Dimension {
  pipeline,  // other layers
  data,      // other samples
  context,   // other tokens of the same samples
  expert,    // other experts, and other samples
  tensor,    // other columns or rows of the same matrices
};
constexpr auto names_of(Dimension) {
  return names("pipeline", "data", "context", "expert", "tensor");
}
inline constexpr auto all_dimensions = all_values<Dimension>;

class Dimensions {
 public:
  constexpr Dimensions() = default;
  constexpr Dimensions(std::initializer_list<Dimension> some) {
    for (const Dimension one : some) add(one);
  }
  constexpr void add(Dimension one) { bits_ |= bit(one); }
  constexpr bool contains(Dimension one) const { return (bits_ & bit(one)) != 0; }
  constexpr auto operator<=>(const Dimensions&) const = default;

 private:
  static constexpr unsigned bit(Dimension one) { return 1U << static_cast<unsigned>(one); }
  unsigned bits_ = 0;
};
std::string to_string(Dimensions some);  // "data x expert"; "nothing" for none

// Along these dimensions, ranks have different samples or different tokens of the same samples. A
// parameter that all of these ranks share gets the sum of their gradients.
inline constexpr Dimensions batch_dimensions = {Dimension::data, Dimension::context,
                                                Dimension::expert};

}  // namespace echelon
