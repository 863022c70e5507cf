#include "echelon/models/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"
#include "echelon/base/options_section.h"

namespace echelon {

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->name);
  return names;
}

const Family* find_family(std::string_view name) {
  for (const Family* family : families())
    if (name == family->name) return family;
  return nullptr;
}

const Family& family_of(const ModelOptions& options) {
  if (const Family* family = find_family(options.family)) return *family;
  throw InvalidArgument(fmt::format("model.family = {}; there are {}", options.family,
                                    fmt::join(family_names(), ", ")));
}

void check(const ModelOptions& options) {
  check_section("model", options);
  family_of(options).check(options);
}

}  // namespace echelon
