#include "echelon/comm/dimension.h"

namespace echelon {

std::string to_string(Dimensions some) {
  std::string text;
  for (const Dimension one : all_dimensions) {
    if (!some.contains(one)) continue;
    if (!text.empty()) text += " x ";
    text += name_of(one);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace echelon
