#include "cli/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace echelon::cli {
namespace {

// Empty where the whole word is a number within the bounds.
template <class Number>
std::string refusal(const std::string& word, const char* kind, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool is_number = error == std::errc() && end == word.data() + word.size();
  if (is_number && value >= least && value <= most) return {};  // NaN is neither
  constexpr std::size_t longest = 40;
  return fmt::format("{}{} is not {} from {} to {}", word.substr(0, longest),
                     word.size() > longest ? "..." : "", kind, least, most);
}

}  // namespace

CLI::Validator integer_from(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [=](const std::string& word) { return refusal(word, "an integer", least, most); },
      fmt::format("from {} to {}", least, most));
}

CLI::Validator number_from(double least, double most) {
  return CLI::Validator(
      [=](const std::string& word) { return refusal(word, "a number", least, most); },
      fmt::format("from {} to {}", least, most));
}

}  // namespace echelon::cli
