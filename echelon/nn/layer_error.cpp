#include "echelon/nn/layer_error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

namespace echelon {

void throw_of_layer(const Stack& stack, int layer, const char* doing, const at::Tensor& given,
                    const std::exception& thrown) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&thrown);
  std::string text = of_torch ? of_torch->what_without_backtrace() : thrown.what();
  text.resize(std::min(text.size(), text.find('\n')));
  std::throw_with_nested(Error(fmt::format(
      "{}, {}{}: {}", stack.name_of(layer), doing,
      given.defined() ? fmt::format(" of [{}]", fmt::join(given.sizes(), ", ")) : std::string(),
      text)));
}

}  // namespace echelon
