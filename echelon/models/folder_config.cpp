#include "echelon/models/folder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"

namespace echelon {

namespace fs = std::filesystem;
using nlohmann::json;

struct FolderConfig::Values {
  json all;

  const json* find(const char* key) const {
    const auto it = all.find(key);
    return it == all.end() || it->is_null() ? nullptr : &*it;
  }
};

FolderConfig::FolderConfig(fs::path folder) : folder_(std::move(folder)) {
  if (!fs::is_directory(folder_))
    throw InvalidArgument(
        fmt::format("there is no folder {} to read weights from", folder_.string()));
  if (!fs::exists(path()))
    throw InvalidArgument(fmt::format("{} has no config.json", folder_.string()));
  const std::string text = read_file(path());
  JsonReader::parse(text, path());  // its error says where the text is not JSON
  json all = json::parse(text);
  if (!all.is_object()) throw Corrupt(fmt::format("{} is not a JSON object", path()));
  values_ = std::make_shared<const Values>(Values{std::move(all)});
}

FolderConfig::FolderConfig(fs::path folder, std::shared_ptr<const Values> values)
    : folder_(std::move(folder)), values_(std::move(values)) {}

FolderConfig::~FolderConfig() = default;

bool FolderConfig::has(const char* key) const { return values_->find(key) != nullptr; }

std::int64_t FolderConfig::integer(const char* key, std::optional<std::int64_t> fallback) const {
  const json* value = values_->find(key);
  if (!value) {
    if (fallback) return *fallback;
    throw Corrupt(fmt::format("{} has no {}", path(), key));
  }
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() == 0 ||
      value->get<std::uint64_t>() > (1u << 30)) {
    throw Corrupt(fmt::format("{}: {} is {}, not a positive number of reasonable size", path(), key,
                              value->dump()));
  }
  return value->get<std::int64_t>();
}

double FolderConfig::number(const char* key, double fallback) const {
  const json* value = values_->find(key);
  if (!value) return fallback;
  if (!value->is_number())
    throw Corrupt(fmt::format("{}: {} is {}, not a number", path(), key, value->dump()));
  return value->get<double>();
}

bool FolderConfig::flag(const char* key, bool fallback) const {
  const json* value = values_->find(key);
  if (!value) return fallback;
  if (!value->is_boolean())
    throw Corrupt(fmt::format("{}: {} is {}, not true or false", path(), key, value->dump()));
  return value->get<bool>();
}

std::string FolderConfig::text(const char* key, const std::string& fallback) const {
  const json* value = values_->find(key);
  if (!value) return fallback;
  if (!value->is_string())
    throw Corrupt(fmt::format("{}: {} is {}, not a text", path(), key, value->dump()));
  return value->get<std::string>();
}

std::vector<std::string> FolderConfig::texts(const char* key) const {
  const json* value = values_->find(key);
  if (!value) return {};
  const bool right = value->is_array() && std::all_of(value->begin(), value->end(),
                                                      [](auto& one) { return one.is_string(); });
  if (!right)
    throw Corrupt(fmt::format("{}: {} is {}, not a list of texts", path(), key, value->dump()));
  return value->get<std::vector<std::string>>();
}

std::vector<std::string> FolderConfig::numbered_texts(const char* key) const {
  std::vector<std::string> all;
  const auto section = this->section(key);
  if (!section) return all;
  for (const auto count = section->values_->all.size(); all.size() < count;) {
    const std::string number = std::to_string(all.size());
    if (!section->has(number.c_str()))
      throw Corrupt(fmt::format("{}: {} has {} entries and none with the key \"{}\"", path(), key,
                                count, number));
    all.push_back(section->text(number.c_str(), ""));
  }
  return all;
}

std::optional<FolderConfig> FolderConfig::section(const char* key) const {
  const json* value = values_->find(key);
  if (!value) return std::nullopt;
  if (!value->is_object())
    throw Corrupt(fmt::format("{}: {} is {}, not an object", path(), key, value->dump()));
  return FolderConfig(folder_, std::make_shared<const Values>(Values{*value}));
}

void FolderConfig::require(const char* title, const char* key, const std::string& wanted) const {
  const json* value = values_->find(key);
  const json right = json::parse(wanted);
  if (value && *value != right)
    throw InvalidArgument(fmt::format("{} has {} = {}; Echelon's {} is built for {}",
                                      folder_.string(), key, value->dump(), title, right.dump()));
}

}  // namespace echelon
