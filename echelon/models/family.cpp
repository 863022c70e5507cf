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

void add_family_fields(ModelOptions& options, Fields& fields) {
  for (const Family* family : families())
    if (family->fields) family->fields(options, fields);
}

namespace {

struct OwnFields {
  const Family& family;
  ModelOptions options;
  void fields(Fields& f) { family.fields(options, f); }
};

void check_others(const ModelOptions& options) {
  for (const Family* other : families()) {
    if (!other->fields || options.family == other->name) continue;
    OwnFields ours{*other, options}, usual{*other, {}};
    const Fields given = fields_in("model", ours), plain = fields_in("model", usual);
    for (std::size_t i = 0; i < given.all().size(); ++i) {
      const std::string mine = text_of(given.all()[i]);
      if (mine != text_of(plain.all()[i]))
        throw InvalidArgument(
            fmt::format("{} = {} is an option of model.family={}: leave it out, or set that",
                        given.all()[i].key, mine, other->name));
    }
  }
}

}  // namespace

void check(const ModelOptions& options) {
  check_section("model", options);
  check_others(options);
  family_of(options).check(options);
}

}  // namespace echelon
