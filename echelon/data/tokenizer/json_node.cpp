#include "echelon/data/tokenizer/json_node.h"

#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/vocabulary.h"

namespace echelon::tok {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  constexpr std::size_t longest = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > longest ? text.substr(0, longest) + "..." : text;
}

}  // namespace

std::string JsonNode::place() const {
  if (!parent_) return {};
  const std::string before = parent_->place();
  if (key_.empty()) return fmt::format("{}[{}]", before, index_);
  return fmt::format("{}{}{}", before, before.empty() ? "" : ".", key_);
}

void JsonNode::refuse(std::string_view wanted) const {
  const std::string at = place();
  throw Corrupt(at.empty()
                    ? fmt::format("{} holds {}, not {}", *file_, shown(*value_), wanted)
                    : fmt::format("{}: {} is {}, not {}", *file_, at, shown(*value_), wanted));
}

void JsonNode::unsupported(std::string_view what, std::string_view instead) const {
  throw InvalidArgument(
      fmt::format("{}: {} {} is not supported: {}", *file_, place(), what, instead));
}

bool JsonNode::has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonNode JsonNode::at(const char* key) const {
  const auto found = object().find(key);
  if (found == value_->end()) {
    const std::string before = place();
    throw Corrupt(
        fmt::format("{}: {}{}{} is missing", *file_, before, before.empty() ? "" : ".", key));
  }
  return {*found, this, key, 0};
}

const json& JsonNode::object() const {
  if (!value_->is_object()) refuse("an object");
  return *value_;
}

const json& JsonNode::list() const {
  if (!value_->is_array()) refuse("a list");
  return *value_;
}

const std::string& JsonNode::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::int64_t JsonNode::integer(std::int64_t least, std::int64_t most) const {
  const bool fits =
      value_->is_number_integer() &&
      (!value_->is_number_unsigned() ||
       value_->get<std::uint64_t>() <= std::uint64_t(std::max<std::int64_t>(most, 0)));
  if (!fits || value_->get<std::int64_t>() < least || value_->get<std::int64_t>() > most)
    refuse(fmt::format("an integer from {} to {}", least, most));
  return value_->get<std::int64_t>();
}

std::int32_t JsonNode::id() const { return std::int32_t(integer(0, Vocabulary::most - 1)); }

bool JsonNode::boolean(const char* key, bool otherwise) const {
  return has(key) ? at(key).boolean() : otherwise;
}

std::string JsonNode::text(const char* key, std::string_view otherwise) const {
  return has(key) ? at(key).text() : std::string(otherwise);
}

json parse_json(const std::string& text, const std::string& file) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    const auto before = std::string_view(text).substr(0, std::max<std::size_t>(error.byte, 1) - 1);
    const auto line_begin = before.rfind('\n') + 1;  // 0 if there is none
    throw Corrupt(fmt::format("{} is not JSON: it cannot be read on from line {}, column {}", file,
                              1 + std::ranges::count(before, '\n'),
                              before.size() - line_begin + 1));
  } catch (const json::out_of_range&) {
    throw Corrupt(fmt::format("{} is not JSON: it has a number that is too large", file));
  }
}

}  // namespace echelon::tok
