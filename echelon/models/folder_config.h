// The config.json of a weights folder, as a family reads it. Sentences name the folder and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace echelon {

class FolderConfig {
 public:
  // Throws InvalidArgument if there is no folder or no config.json, Corrupt if it is not a JSON
  // object.
  explicit FolderConfig(std::filesystem::path folder);
  ~FolderConfig();

  const std::filesystem::path& folder() const { return folder_; }
  std::string path() const { return (folder_ / "config.json").string(); }

  // A null value counts as missing. Throws Corrupt if a value has another type.
  bool has(const char* key) const;
  // A positive number of reasonable size; without a fallback it is required.
  std::int64_t integer(const char* key, std::optional<std::int64_t> fallback = {}) const;
  double number(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  // A list of texts; empty if the key is missing.
  std::vector<std::string> texts(const char* key) const;
  // The texts of a nested object with the keys "0", "1", "2", …, by these numbers; empty if the key
  // is missing.
  std::vector<std::string> numbered_texts(const char* key) const;
  // A nested object; nothing if the key is missing.
  std::optional<FolderConfig> section(const char* key) const;

  // Throws InvalidArgument if the key has another value than `wanted`, which is JSON:
  // "{folder} has {key} = …; Echelon's {title} is built for …".
  void require(const char* title, const char* key, const std::string& wanted) const;

 private:
  struct Values;
  FolderConfig(std::filesystem::path folder, std::shared_ptr<const Values> values);
  std::filesystem::path folder_;
  std::shared_ptr<const Values> values_;
};

}  // namespace echelon
