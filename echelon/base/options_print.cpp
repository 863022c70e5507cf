// Writes options out: TOML, the reference table, and the phrases that error messages share with
// them.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"
#include "echelon/base/option_text.h"
#include "echelon/base/options.h"
#include "echelon/base/toml_text.h"

namespace echelon {

namespace {

// Also of a value that the enum does not have, which check_options refuses.
std::string name_in(const EnumOption& option) {
  const std::size_t position = option.get(option.value);
  return position < option.names.size() ? std::string(option.names[position])
                                        : fmt::format("value {}", position);
}

std::string toml_value(const Fields::Value& value) {
  struct Visitor {
    std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
    std::string operator()(const std::int64_t* value) const { return fmt::format("{}", *value); }
    std::string operator()(const double* value) const { return toml_double(*value); }
    std::string operator()(const std::string* value) const { return toml_string(*value); }
    std::string operator()(const std::vector<std::string>* values) const {
      std::vector<std::string> items;
      for (const auto& value : *values) items.push_back(toml_string(value));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    std::string operator()(const EnumOption& option) const { return toml_string(name_in(option)); }
  };
  return std::visit(Visitor{}, value);
}

std::string section_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::string allowed_text(const Allowed& allowed) {
  return allowed.choices.empty() ? bounds_text(allowed)
                                 : fmt::format("{}", fmt::join(allowed.choices, ", "));
}

std::string meaning_text(const Fields::Field& field) {
  return field.allowed.unit.empty() ? field.meaning
                                    : fmt::format("{}, in {}", field.meaning, field.allowed.unit);
}

std::string comment(const Fields::Field& field) {
  const auto allowed = allowed_text(field.allowed);
  return fmt::format("# {}{}{}\n", meaning_text(field),
                     allowed.empty()                 ? ""
                     : field.allowed.choices.empty() ? "; "
                                                     : "; one of: ",
                     allowed);
}

// In a Markdown table a bar ends the cell, even within backquotes.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

void Fields::add(std::string_view key, Value value, std::string_view meaning, Allowed allowed) {
  auto full = prefix_ + std::string(key);
  const bool plain = !key.empty() && std::ranges::all_of(key, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  if (!plain) {
    throw InvalidArgument(
        fmt::format("the option {} needs a name of letters, digits, _ and -", toml_string(full)));
  }
  if (std::ranges::find(all_, full, &Field::key) != all_.end()) {
    throw InvalidArgument(fmt::format("the option {} is defined twice", full));
  }
  all_.push_back({std::move(full), value, std::string(meaning), std::move(allowed)});
}

std::string bounds_text(const Allowed& allowed) {
  std::string text;
  if (std::isfinite(allowed.minimum)) {
    text = fmt::format("{} {}", allowed.above_minimum ? "more than" : "at least", allowed.minimum);
  }
  if (std::isfinite(allowed.maximum)) {
    text += fmt::format("{}at most {}", text.empty() ? "" : " and ", allowed.maximum);
  }
  return text;
}

std::string toml_double(double value) {
  auto text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string toml_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\r':
        quoted += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          quoted += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
        } else {
          quoted += c;
        }
    }
  }
  return quoted + '"';
}

std::string to_toml(const Fields& fields, Comments comments) {
  // Keys without a section must come first: below a [section] they would belong to it.
  std::vector<std::string> sections = {""};
  for (const auto& field : fields.all()) {
    const auto section = section_of(field.key);
    if (std::ranges::find(sections, section) == sections.end()) sections.push_back(section);
  }
  std::string text;
  for (const auto& section : sections) {
    if (!section.empty()) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    for (const auto& field : fields.all()) {
      if (section_of(field.key) != section) continue;
      if (comments == Comments::yes) text += comment(field);
      text += fmt::format("{} = {}\n", last_part(field.key), toml_value(field.value));
    }
  }
  return text;
}

std::string text_of(const Fields::Field& field) {
  if (const auto* text = std::get_if<std::string*>(&field.value)) return **text;
  if (const auto* option = std::get_if<EnumOption>(&field.value)) return name_in(*option);
  return toml_value(field.value);
}

std::string to_markdown(const Fields& fields) {
  std::string text = "| key | default | allowed | meaning |\n|---|---|---|---|\n";
  for (const auto& field : fields.all()) {
    text += fmt::format("| `{}` | `{}` | {} | {} |\n", field.key, cell(toml_value(field.value)),
                        cell(allowed_text(field.allowed)), cell(meaning_text(field)));
  }
  return text;
}

}  // namespace echelon
