#include "echelon/base/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"

namespace echelon {
namespace {

using nlohmann::json;

// "line 3, column 7" of a byte, counted from 1 as in nlohmann; the last position if past the end.
std::string line_and_column(std::string_view text, std::size_t byte) {
  const auto before = text.substr(0, std::min(text.size(), byte > 0 ? byte - 1 : 0));
  const auto line = 1 + std::ranges::count(before, '\n');
  const auto last = before.rfind('\n');
  const auto column = before.size() - (last == before.npos ? 0 : last + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

// The value at this place, short and in ASCII, so that it cannot disturb a terminal.
std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  constexpr std::size_t longest = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > longest ? text.substr(0, longest) + "..." : text;
}

std::string bounds(const auto& least, const auto& most) {
  using Number = std::remove_cvref_t<decltype(least)>;
  const bool low = least > std::numeric_limits<Number>::lowest(),
             high = most < std::numeric_limits<Number>::max();
  return low && high ? fmt::format(" from {} to {}", least, most)
         : low       ? fmt::format(" of at least {}", least)
         : high      ? fmt::format(" of at most {}", most)
                     : std::string();
}

}  // namespace

JsonReader::JsonReader(std::shared_ptr<const json> root, const json& value, std::string where,
                       std::string place)
    : root_(std::move(root)), value_(&value), where_(std::move(where)), place_(std::move(place)) {}

JsonReader JsonReader::parse(std::string_view text, std::string where) {
  try {
    auto root = std::make_shared<const json>(json::parse(text));
    const json& value = *root;
    return {std::move(root), value, std::move(where), {}};
  } catch (const json::parse_error& error) {
    throw Corrupt(text.find_first_not_of(" \t\r\n") == text.npos
                      ? fmt::format("{} is not JSON: it is empty", where)
                      : fmt::format("{} is not JSON: it cannot be read on from {}", where,
                                    line_and_column(text, error.byte)));
  } catch (const json::out_of_range&) {
    throw Corrupt(fmt::format("{} is not JSON: it has a number that is too large", where));
  }
}

std::string JsonReader::place_of(std::string_view key) const {
  return fmt::format("{}{}{}", place_, place_.empty() ? "" : ".", key);
}

void JsonReader::refuse(const std::string& wanted) const {
  throw Corrupt(place_.empty()
                    ? fmt::format("{} holds {}, not {}", where_, shown(*value_), wanted)
                    : fmt::format("{}: {} is {}, not {}", where_, place_, shown(*value_), wanted));
}

bool JsonReader::has(std::string_view key) const {
  return value_->is_object() && value_->contains(key);
}

JsonReader JsonReader::at(std::string_view key) const {
  if (!value_->is_object()) refuse(fmt::format("an object with {}", key));
  const auto found = value_->find(key);
  if (found == value_->end())
    throw Corrupt(fmt::format("{}: {} is missing", where_, place_of(key)));
  return {root_, *found, where_, place_of(key)};
}

std::vector<JsonReader> JsonReader::items() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<JsonReader> all;
  for (std::size_t i = 0; i < value_->size(); ++i)
    all.push_back({root_, (*value_)[i], where_, fmt::format("{}[{}]", place_, i)});
  return all;
}

std::int64_t JsonReader::integer(std::int64_t least, std::int64_t most) const {
  const bool fits =
      value_->is_number_integer() &&
      !(value_->is_number_unsigned() &&
        value_->get<std::uint64_t>() > std::uint64_t(std::max<std::int64_t>(0, most)));
  if (!fits || value_->get<std::int64_t>() < least || value_->get<std::int64_t>() > most)
    refuse("an integer" + bounds(least, most));
  return value_->get<std::int64_t>();
}

std::uint64_t JsonReader::count() const {
  if (!value_->is_number_unsigned()) refuse("an integer of at least 0");
  return value_->get<std::uint64_t>();
}

double JsonReader::number(double least, double most) const {
  if (!value_->is_number() || !(value_->get<double>() >= least) || !(value_->get<double>() <= most))
    refuse("a number" + bounds(least, most));
  return value_->get<double>();
}

bool JsonReader::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::string JsonReader::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

}  // namespace echelon
