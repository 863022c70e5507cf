#include "echelon/nn/layer_error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

namespace echelon {

void throw_of_layer(const Stack& stack, int layer, const char* doing, const Tensors& given,
                    const std::exception& thrown) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&thrown);
  std::string text = of_torch ? of_torch->what_without_backtrace() : thrown.what();
  text.resize(std::min(text.size(), text.find('\n')));
  std::vector<std::string> sizes;
  for (const auto& tensor : given)
    if (tensor.defined()) sizes.push_back(fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
  std::throw_with_nested(
      Error(fmt::format("{}, {}{}{}: {}", stack.name_of(layer), doing, sizes.empty() ? "" : " of ",
                        fmt::join(sizes, " and "), text)));
}

}  // namespace echelon
