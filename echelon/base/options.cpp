// Reading: a value from TOML or from --set becomes a Given of the field's type and is checked
// against the field's limits. The options change only after every value of the source has passed.
#include "echelon/base/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/option_text.h"
#include "echelon/base/toml_text.h"

namespace echelon {

namespace {

// Like Fields::Value; for an enum, the name.
using Given = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

struct Assignment {
  const Fields::Field* field;
  Given value;
  std::string where;  // "job.toml, line 3"
};

std::string clipped(std::string_view text) {
  constexpr std::size_t longest = 60;
  return fmt::format("{}{}", text.substr(0, longest), text.size() > longest ? "..." : "");
}

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", clipped(text)); }

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : fmt::format("; did you mean {}?", name);
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

// ---- keys

const Fields::Field* find(const Fields& fields, std::string_view key) {
  const auto found = std::ranges::find(fields.all(), key, &Fields::Field::key);
  return found == fields.all().end() ? nullptr : &*found;
}

std::vector<std::string> sections_of(const Fields& fields) {
  std::vector<std::string> sections;
  for (const auto& field : fields.all()) {
    for (auto dot = field.key.find('.'); dot != std::string::npos;
         dot = field.key.find('.', dot + 1)) {
      const auto section = field.key.substr(0, dot);
      if (std::ranges::find(sections, section) == sections.end()) sections.push_back(section);
    }
  }
  return sections;
}

bool is_section(const Fields& fields, std::string_view name) {
  return std::ranges::any_of(fields.all(), [&](const Fields::Field& field) {
    return field.key.size() > name.size() && field.key.starts_with(name) &&
           field.key[name.size()] == '.';
  });
}

// A correct key in the wrong section, or without a section, is nearer than a key with a similar
// spelling.
std::string nearest_key(const Fields& fields, std::string_view key) {
  std::vector<std::string> known;
  std::vector<std::string> same_last;
  for (const auto& field : fields.all()) {
    known.push_back(field.key);
    if (last_part(field.key) == last_part(key)) same_last.push_back(field.key);
  }
  for (const auto& field : fields.all())
    if (std::ranges::find(field.allowed.known_as, last_part(key)) != field.allowed.known_as.end())
      return field.key;
  if (same_last.size() == 1) return same_last.front();
  const auto near = nearest(key, same_last);
  return near.empty() ? nearest(key, known) : near;
}

[[noreturn]] void unknown_key(const Fields& fields, std::string_view key, std::string_view where) {
  throw InvalidArgument(fmt::format("{} is not a known key ({}){}", key, where,
                                    did_you_mean(nearest_key(fields, key))));
}

// ---- values

std::string_view type_name(const Fields::Value& value) {
  constexpr std::string_view texts[] = {"true or false", "an integer",        "a number",
                                        "a string",      "a list of strings", "a string"};
  return texts[value.index()];
}

[[noreturn]] void wrong_type(const Fields::Field& field, std::string_view given,
                             std::string_view where) {
  throw InvalidArgument(fmt::format("{} must be {}, but {} was given ({})", field.key,
                                    type_name(field.value), given, where));
}

template <class Number>
void check_bounds(const Assignment& assignment, Number number) {
  const auto& allowed = assignment.field->allowed;
  const auto exact = static_cast<long double>(number);  // holds every int64
  const bool high_enough =
      allowed.above_minimum ? exact > allowed.minimum : exact >= allowed.minimum;
  if (high_enough && exact <= allowed.maximum) return;
  throw InvalidArgument(fmt::format("{} must be {}, but {} was given ({})", assignment.field->key,
                                    bounds_text(allowed), number, assignment.where));
}

void check_choice(const Assignment& assignment, const std::string& choice) {
  const auto& choices = assignment.field->allowed.choices;
  if (choices.empty() || std::ranges::find(choices, choice) != choices.end()) return;
  const auto near = nearest(choice, choices);
  throw InvalidArgument(fmt::format("{} is {} ({}); allowed: {}{}", assignment.field->key,
                                    in_quotes(choice), assignment.where, fmt::join(choices, ", "),
                                    near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

void check(const Assignment& assignment) {
  struct Visitor {
    const Assignment& assignment;
    void operator()(bool) const {}
    void operator()(std::int64_t value) const { check_bounds(assignment, value); }
    void operator()(double value) const {
      if (!std::isfinite(value)) {
        throw InvalidArgument(fmt::format("{} must be a finite number, but {} was given ({})",
                                          assignment.field->key, value, assignment.where));
      }
      check_bounds(assignment, value);
    }
    void operator()(const std::string& value) const { check_choice(assignment, value); }
    void operator()(const std::vector<std::string>& values) const {
      for (const auto& value : values) check_choice(assignment, value);
    }
  };
  std::visit(Visitor{assignment}, assignment.value);
}

void store(Assignment& assignment) {
  if (const auto* option = std::get_if<EnumOption>(&assignment.field->value))
    return option->set(option->value,
                       position_of_name(std::get<std::string>(assignment.value), option->names));
  std::visit(
      [&](const auto& target) {
        using Target = std::remove_cvref_t<decltype(target)>;
        if constexpr (std::is_pointer_v<Target>)
          *target = std::move(std::get<std::remove_pointer_t<Target>>(assignment.value));
      },
      assignment.field->value);
}

// ---- TOML

std::string location(std::string_view where, const toml::source_region& source) {
  return fmt::format("{}, line {}", where, source.begin.line);
}

toml::table parse(std::string_view text, std::string_view where) {
  try {
    return toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(fmt::format("this is not TOML: {} ({})", error.description(),
                                      location(where, error.source())));
  }
}

std::string describe(const toml::node& node) {
  if (const auto* value = node.as_string()) return in_quotes(value->get());
  if (const auto* value = node.as_integer()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_floating_point()) return toml_double(value->get());
  if (const auto* value = node.as_boolean()) return fmt::format("{}", value->get());
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a section";
  return "a date or time";
}

std::optional<std::vector<std::string>> strings_of(const toml::node& node) {
  const auto* array = node.as_array();
  if (!array) return std::nullopt;
  std::vector<std::string> strings;
  for (const auto& item : *array) {
    const auto* text = item.as_string();
    if (!text) return std::nullopt;
    strings.push_back(text->get());
  }
  return strings;
}

Given value_of(const Fields::Field& field, const toml::node& node, std::string_view where) {
  struct Visitor {
    const toml::node& node;
    std::optional<Given> operator()(bool*) const {
      if (const auto* value = node.as_boolean()) return value->get();
      return std::nullopt;
    }
    std::optional<Given> operator()(std::int64_t*) const {
      if (const auto* value = node.as_integer()) return value->get();
      return std::nullopt;
    }
    std::optional<Given> operator()(double*) const {
      if (const auto* value = node.as_floating_point()) return value->get();
      if (const auto* value = node.as_integer()) return static_cast<double>(value->get());
      return std::nullopt;
    }
    std::optional<Given> operator()(std::string*) const {
      if (const auto* value = node.as_string()) return value->get();
      return std::nullopt;
    }
    std::optional<Given> operator()(std::vector<std::string>*) const {
      if (auto strings = strings_of(node)) return std::move(*strings);
      return std::nullopt;
    }
    std::optional<Given> operator()(const EnumOption&) const {
      return (*this)(static_cast<std::string*>(nullptr));
    }
  };
  auto value = std::visit(Visitor{node}, field.value);
  if (!value) wrong_type(field, describe(node), where);
  return std::move(*value);
}

using Position = std::pair<toml::source_index, toml::source_index>;  // line, column

void collect(const Fields& fields, const toml::table& table, const std::string& prefix,
             std::string_view file, std::vector<std::pair<Position, Assignment>>& into) {
  for (const auto& [name, node] : table) {
    auto key = prefix + std::string(name.str());
    const auto& begin = name.source().begin;
    const auto where = location(file, name.source());
    // A dot within a quoted name does not separate section and key.
    const bool dotted = name.str().find('.') != std::string_view::npos;
    const auto* field = dotted ? nullptr : find(fields, key);
    if (field) {
      into.push_back({{begin.line, begin.column}, {field, value_of(*field, node, where), where}});
    } else if (!dotted && is_section(fields, key)) {
      if (!node.is_table()) {
        throw InvalidArgument(
            fmt::format("{} is a section with keys of its own, but {} was given ({})", key,
                        describe(node), where));
      }
      collect(fields, *node.as_table(), key + ".", file, into);
    } else if (node.is_table()) {
      throw InvalidArgument(fmt::format("{} is not a known section ({}){}", key, where,
                                        did_you_mean(nearest(key, sections_of(fields)))));
    } else {
      if (dotted) key = prefix + in_quotes(name.str());
      unknown_key(fields, key, where);
    }
  }
}

// ---- --set

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view white = " \t\r\n";
  const auto first = text.find_first_not_of(white);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white) - first + 1);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes what TOML accepts in a number and from_chars does not: a plus sign, the underscore in
// 1_000.
std::string plain_number(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool separator = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                           is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (!separator) plain += text[i];
  }
  if (plain.starts_with('+') && plain.size() > 1 && plain[1] != '-') plain.erase(0, 1);
  return plain;
}

std::optional<double> parse_double(std::string_view text) {
  const auto plain = plain_number(text);
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc() || end != plain.data() + plain.size()) return std::nullopt;
  return value;
}

// Parses 12, 1e3, 2.5e3: decimal digits are shifted by the exponent, never rounded.
std::optional<std::int64_t> parse_integer(std::string_view text) {
  const auto nearest_double = parse_double(text);
  if (!nearest_double || !std::isfinite(*nearest_double)) return std::nullopt;
  auto digits = plain_number(text);
  std::int64_t exponent = 0;
  if (const auto e = digits.find_first_of("eE"); e != std::string::npos) {
    const auto first = digits.data() + e + (digits[e + 1] == '+' ? 2 : 1);
    if (std::from_chars(first, digits.data() + digits.size(), exponent).ec != std::errc())
      return std::nullopt;
    digits.resize(e);
  }
  if (const auto point = digits.find('.'); point != std::string::npos) {
    exponent -= static_cast<std::int64_t>(digits.size() - point - 1);
    digits.erase(point, 1);
  }
  for (; exponent < 0 && digits.ends_with('0'); ++exponent) digits.pop_back();
  if (digits.find_first_of("123456789") == std::string::npos) return 0;
  if (exponent < 0 || exponent > 18) return std::nullopt;
  digits.append(static_cast<std::size_t>(exponent), '0');
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// The text parsed as TOML, if it is exactly one TOML value.
std::optional<toml::table> parse_value(std::string_view text) {
  try {
    toml::table table = toml::parse(fmt::format("value = {}", text));
    if (table.size() == 1) return table;
  } catch (const toml::parse_error&) {
  }
  return std::nullopt;
}

// Text that is not valid UTF-8 cannot be written to a TOML file.
bool fits_toml(const std::string& text) {
  const auto table = parse_value(toml_string(text));
  const auto* value = table ? table->get("value")->as_string() : nullptr;
  return value && value->get() == text;
}

// Quotes are needed only for text that cannot be written without them.
std::string parse_string(std::string_view text) {
  const auto quoted = trimmed(text);
  if (quoted.starts_with('"') || quoted.starts_with('\'')) {
    if (const auto table = parse_value(quoted)) {
      if (const auto* value = table->get("value")->as_string()) return value->get();
    }
  }
  return std::string(text);
}

std::optional<std::vector<std::string>> parse_strings(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('[')) {
    const auto table = parse_value(text);
    return table ? strings_of(*table->get("value")) : std::nullopt;
  }
  std::vector<std::string> strings;
  while (!text.empty()) {
    const auto comma = text.find(',');
    strings.emplace_back(trimmed(text.substr(0, comma)));
    if (strings.back().empty()) return std::nullopt;
    if (comma == std::string_view::npos) break;
    text = text.substr(comma + 1);
    if (trimmed(text).empty()) return std::nullopt;
  }
  return strings;
}

Given value_of(const Fields::Field& field, std::string_view text, std::string_view where) {
  struct Visitor {
    std::string_view text;
    std::optional<Given> operator()(bool*) const {
      const auto word = trimmed(text);
      if (word != "true" && word != "false") return std::nullopt;
      return word == "true";
    }
    std::optional<Given> operator()(std::int64_t*) const {
      if (const auto value = parse_integer(trimmed(text))) return *value;
      return std::nullopt;
    }
    std::optional<Given> operator()(double*) const {
      if (const auto value = parse_double(trimmed(text))) return *value;
      return std::nullopt;
    }
    std::optional<Given> operator()(std::string*) const { return parse_string(text); }
    std::optional<Given> operator()(std::vector<std::string>*) const {
      if (auto strings = parse_strings(text)) return std::move(*strings);
      return std::nullopt;
    }
    std::optional<Given> operator()(const EnumOption&) const { return parse_string(text); }
  };
  auto value = std::visit(Visitor{text}, field.value);
  if (!value) wrong_type(field, in_quotes(text), where);
  const auto require_utf8 = [&](const std::string& given) {
    if (!fits_toml(given)) {
      throw InvalidArgument(
          fmt::format("{} must be UTF-8 text, but other bytes were given", field.key));
    }
  };
  if (const auto* given = std::get_if<std::string>(&*value)) require_utf8(*given);
  if (const auto* given = std::get_if<std::vector<std::string>>(&*value)) {
    std::ranges::for_each(*given, require_utf8);
  }
  return std::move(*value);
}

}  // namespace

std::vector<std::string> read_toml(const Fields& fields, std::string_view text,
                                   std::string_view where) {
  std::vector<std::pair<Position, Assignment>> given;
  collect(fields, parse(text, where), "", where, given);
  std::ranges::sort(given, {}, &std::pair<Position, Assignment>::first);
  std::vector<std::string> keys;
  for (const auto& [position, assignment] : given) {
    check(assignment);
    keys.push_back(assignment.field->key);
  }
  for (auto& [position, assignment] : given) store(assignment);
  return keys;
}

std::vector<std::string> read_toml_file(const Fields& fields, const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw InvalidArgument(error.what());
  }
  return read_toml(fields, text, path.string());
}

void check_options(const Fields& fields) {
  const auto given = [](const auto& value) -> Given {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(value)>>) {
      return *value;
    } else {
      const std::size_t position = value.get(value.value);
      return position < value.names.size() ? std::string(value.names[position])
                                           : fmt::format("value {}", position);
    }
  };
  for (const auto& field : fields.all())
    check(Assignment{&field, std::visit(given, field.value), "set in code"});
}

std::string set_option(const Fields& fields, std::string_view assignment) {
  const auto equals = assignment.find('=');
  const auto key = trimmed(assignment.substr(0, equals));
  if (equals == std::string_view::npos || key.empty()) {
    throw InvalidArgument(
        fmt::format("--set takes key=value, but {} was given", in_quotes(assignment)));
  }
  const auto where = fmt::format("--set {}", clipped(assignment));
  const auto* field = find(fields, key);
  if (!field) unknown_key(fields, key, where);
  Assignment given{field, value_of(*field, assignment.substr(equals + 1), where), where};
  check(given);
  store(given);
  return field->key;
}

}  // namespace echelon
