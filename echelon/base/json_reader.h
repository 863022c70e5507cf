// Reads untrusted JSON. Anything unexpected throws Corrupt, which names the file and the place in
// it:
//
//   plan.json is not JSON: it cannot be read on from line 3, column 7
//   plan.json: shape.ranks is -1, not an integer of at least 1
//
//   const auto plan = JsonReader::parse(read_file(path), path.string());
//   const auto ranks = plan.at("shape").at("ranks").integer(1);
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace echelon {

class JsonReader {
 public:
  // `where` names the text in errors, for example a file name.
  static JsonReader parse(std::string_view text, std::string where);

  bool has(std::string_view key) const;  // false if this is not an object
  JsonReader at(std::string_view key) const;
  std::vector<JsonReader> items() const;  // of an array

  std::int64_t integer(std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  std::uint64_t count() const;  // a non-negative integer
  double number(double least, double most) const;
  bool boolean() const;
  std::string text() const;

  const std::string& file() const { return where_; }

 private:
  JsonReader(std::shared_ptr<const nlohmann::json> root, const nlohmann::json& value,
             std::string where, std::string place);
  [[noreturn]] void refuse(const std::string& wanted) const;
  std::string place_of(std::string_view key) const;

  std::shared_ptr<const nlohmann::json> root_;  // keeps value_
  const nlohmann::json* value_;
  std::string where_, place_;
};

}  // namespace echelon
