#include "echelon/comm/dimension.h"

namespace echelon {

const char* to_string(Dimension dimension) {
  switch (dimension) {
    case Dimension::pipeline:
      return "pipeline";
    case Dimension::data:
      return "data";
    case Dimension::context:
      return "context";
    case Dimension::expert:
      return "expert";
    case Dimension::tensor:
      return "tensor";
  }
  return "";
}

std::string to_string(Dimensions some) {
  std::string text;
  for (const Dimension one : all_dimensions) {
    if (!some.contains(one)) continue;
    if (!text.empty()) text += " x ";
    text += to_string(one);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace echelon
