#include "echelon/lab/shared_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/job/whole_paths.h"

namespace echelon {
namespace {

// What the parts of the lab compare, or need to find their results. Some sections as a whole.
struct OwnOption {
  std::string_view key, instead;
};
constexpr std::array own_options = {OwnOption{"model.", "give --model or --shape"},
                                    OwnOption{"task.", ""},
                                    OwnOption{"data.", "give --data"},
                                    OwnOption{"train.steps", "give --steps or --pretraining"},
                                    OwnOption{"train.validate_every", ""},
                                    OwnOption{"train.save_last", ""},
                                    OwnOption{"train.patience", ""},
                                    OwnOption{"parallel.", ""},
                                    OwnOption{"pipeline.", ""},
                                    OwnOption{"server.", ""},
                                    OwnOption{"comm.algorithm", ""},
                                    OwnOption{"comm.measure", ""},
                                    OwnOption{"comm.plan", ""}};

void require_not_own(const std::string& key) {
  for (const auto& own : own_options)
    if (own.key.ends_with('.') ? key.starts_with(own.key) : key == own.key)
      throw InvalidArgument(fmt::format(
          "--set {0}: the lab sets {0} itself; {1}", key,
          own.instead.empty() ? "run one of its jobs again with echelon train to try other values"
                              : own.instead));
}

}  // namespace

SharedOptions shared_options(const std::vector<std::string>& set) {
  SharedOptions shared;
  const Fields fields = fields_of(shared.options);
  std::vector<std::string> keys;
  for (const auto& assignment : set) {
    keys.push_back(set_option(fields, assignment));
    require_not_own(keys.back());
  }
  shared.options = with_whole_paths(shared.options);
  for (const auto& field : fields.all())
    if (std::find(keys.begin(), keys.end(), field.key) != keys.end())
      shared.assignments.push_back(fmt::format("{}={}", field.key, text_of(field)));
  return shared;
}

}  // namespace echelon
