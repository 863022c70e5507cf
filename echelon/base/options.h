// Configuration from one definition. A struct with defaults lists its fields once:
//
//   enum class Optimizer { adamw, sgd };
//   constexpr auto names_of(Optimizer) { return names("adamw", "sgd"); }
//
//   struct OptimOptions {
//     double rate = 3e-4;
//     Optimizer name = Optimizer::adamw;
//
//     void fields(Fields& f) {
//       f.add("rate", rate, "peak learning rate", {.minimum = 0, .known_as = {"lr"}});
//       f.add("name", name, "the optimiser");
//     }
//   };
//   struct JobOptions {
//     OptimOptions optim;
//     void fields(Fields& f) { f.section("optim", optim); }
//   };
//
// and from that come reading TOML, `--set optim.rate=1e-3`, `--print-config` and the reference
// page. Unknown keys, wrong types and values out of bounds throw InvalidArgument with one sentence
// that names the key, the nearest known key or what is allowed, and where the value came from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "echelon/base/named_enum.h"

namespace echelon {

// What a value may be, beside its type.
struct Allowed {
  double minimum = -std::numeric_limits<double>::infinity();  // numbers
  double maximum = std::numeric_limits<double>::infinity();   // numbers
  bool above_minimum = false;                                 // the minimum itself is not allowed
  // Strings: empty allows any. Enums: empty allows every value.
  std::vector<std::string> choices = {};
  std::string unit = {};  // shown in the documentation
  // What the option is called elsewhere: "lr". These names are not accepted; the error for one of
  // them names this option.
  std::vector<std::string> known_as = {};
};

// An option whose type is a NamedEnum, by the positions of its values.
struct EnumOption {
  void* value;
  std::size_t (*get)(const void* value);
  void (*set)(void* value, std::size_t position);
  std::span<const std::string_view> names;
};

class Fields {
 public:
  using Value = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                             EnumOption>;

  struct Field {
    std::string key;  // "optim.rate"
    Value value;
    std::string meaning;
    Allowed allowed;
  };

  // `meaning` is one line for a person: no full stop, no default (it is shown beside it).
  void add(std::string_view key, Value value, std::string_view meaning, Allowed allowed = {});
  template <class T>
  void add(std::string_view key, T& value, std::string_view meaning, Allowed allowed = {}) {
    add(key, Value(&value), meaning, std::move(allowed));
  }
  template <NamedEnum Enum>
  void add(std::string_view key, Enum& value, std::string_view meaning, Allowed allowed = {}) {
    if (allowed.choices.empty())
      allowed.choices.assign(all_names<Enum>.begin(), all_names<Enum>.end());
    const auto get = [](const void* from) { return std::size_t(*static_cast<const Enum*>(from)); };
    const auto set = [](void* to, std::size_t position) {
      *static_cast<Enum*>(to) = Enum(position);
    };
    add(key, EnumOption{&value, get, set, all_names<Enum>}, meaning, std::move(allowed));
  }

  template <class Section>
  void section(std::string_view name, Section& section) {
    const std::string outer = prefix_;
    prefix_ += std::string(name) + ".";
    section.fields(*this);
    prefix_ = outer;
  }

  const std::vector<Field>& all() const { return all_; }

 private:
  std::string prefix_;
  std::vector<Field> all_;
};

// The fields of an options struct; they point into it.
template <class Options>
Fields fields_of(Options& options) {
  Fields fields;
  options.fields(fields);
  return fields;
}

// Each of these returns the keys that were given, in order, so that a caller can tell a choice from
// a default.
std::vector<std::string> read_toml(const Fields& fields, std::string_view text,
                                   std::string_view where);
std::vector<std::string> read_toml_file(const Fields& fields, const std::filesystem::path& path);
std::string set_option(const Fields& fields, std::string_view assignment);  // "optim.rate=1e-3"

// Throws InvalidArgument for the first value that is not allowed: for structs that were filled in
// code.
void check_options(const Fields& fields);

// TOML that read_toml takes back to the same values (doubles to the last bit). With comments, each
// key has its meaning, unit and what is allowed above or beside it.
enum class Comments { no, yes };
std::string to_toml(const Fields& fields, Comments comments);

// A field's value as --set takes it.
std::string text_of(const Fields::Field& field);

// A Markdown table of every key: default, allowed, meaning.
std::string to_markdown(const Fields& fields);

// The nearest of `known` to a mistyped `name` by edit distance, or "" when none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace echelon
