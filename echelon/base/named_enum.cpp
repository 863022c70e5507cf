#include "echelon/base/named_enum.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"
#include "echelon/base/options.h"

namespace echelon {

std::size_t position_of_name(std::string_view name, std::span<const std::string_view> names) {
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return std::size_t(found - names.begin());
  const auto near = nearest(name, {names.begin(), names.end()});
  throw InvalidArgument(fmt::format("\"{}\" is not one of {}{}", name, fmt::join(names, ", "),
                                    near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

}  // namespace echelon
