// Enums whose values have names: options of such a type are read and printed by name.
//
//   enum class Offload { none, host, disk };
//   constexpr auto names_of(Offload) { return names("none", "host", "disk"); }
//
//   name_of(Offload::host)           // "host"
//   from_name<Offload>("disk")       // Offload::disk; InvalidArgument for an unknown name
//
// names_of lies in the namespace of the enum and has one name for each value, in order from 0.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <iosfwd>
#include <span>
#include <string_view>
#include <type_traits>

namespace echelon {

template <std::convertible_to<std::string_view>... Names>
constexpr auto names(Names... all) {
  return std::array<std::string_view, sizeof...(Names)>{all...};
}

template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) {
  names_of(value).size();
};

template <NamedEnum Enum>
inline constexpr auto all_names = names_of(Enum{});

template <NamedEnum Enum>
constexpr std::string_view name_of(Enum value) {
  return all_names<Enum>.at(std::size_t(value));
}

template <NamedEnum Enum>
inline constexpr auto all_values = [] {
  std::array<Enum, all_names<Enum>.size()> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = Enum(i);
  return values;
}();

// The position of `name`; throws InvalidArgument that lists the names.
std::size_t position_of_name(std::string_view name, std::span<const std::string_view> names);

template <NamedEnum Enum>
Enum from_name(std::string_view name) {
  return Enum(position_of_name(name, all_names<Enum>));
}

template <NamedEnum Enum>
std::ostream& operator<<(std::ostream& out, Enum value) {
  return out << name_of(value);
}

// For formatting in generic code: the name of a NamedEnum, any other value as it is.
template <class Value>
constexpr auto shown(const Value& value) {
  if constexpr (NamedEnum<Value>) {
    return name_of(value);
  } else {
    return value;
  }
}

// A setting that is decided automatically unless it is given.
enum class Switch { automatic, on, off };
constexpr auto names_of(Switch) { return names("auto", "on", "off"); }

}  // namespace echelon
