#include "echelon/data/fingerprint.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace echelon {

using nlohmann::ordered_json;

std::string to_json(const DataFingerprint& data) {
  ordered_json json;
  if (!data.source.empty()) json["source"] = data.source;
  json["tokeniser"] = data.tokeniser;
  json["files"] = data.files;
  json["training_bytes"] = data.training;
  json["validation_bytes"] = data.validation;
  json["sample"] = data.sample;
  json["digest"] = data.digest;
  // A path need not be UTF-8.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

DataFingerprint fingerprint_of(const std::string& text) {
  const auto json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  DataFingerprint data;
  const auto word = [&](const char* key, std::string& value) {
    if (const auto it = json.find(key); it != json.end() && it->is_string()) value = *it;
  };
  const auto number = [&](const char* key, std::int64_t& value) {
    if (const auto it = json.find(key); it != json.end() && it->is_number_integer()) value = *it;
  };
  word("source", data.source);
  word("tokeniser", data.tokeniser);
  number("files", data.files);
  number("training_bytes", data.training);
  number("validation_bytes", data.validation);
  word("sample", data.sample);
  word("digest", data.digest);
  return data;
}

std::string difference(const DataFingerprint& a, std::string_view name_of_a,
                       const DataFingerprint& b, std::string_view name_of_b) {
  if (a.tokeniser.empty() || b.tokeniser.empty()) return {};
  const auto kind = [](const DataFingerprint& data) {
    return data.tokeniser == "random" ? std::string("random tokens") : "text as " + data.tokeniser;
  };
  const auto have = [&](const auto& one, const auto& other, std::string_view of_what) {
    return fmt::format("{} has {}{} and {} has {}", name_of_a, one, of_what, name_of_b, other);
  };
  if (a.tokeniser != b.tokeniser) return have(kind(a), kind(b), "");
  if (a.training != b.training) return have(a.training, b.training, " bytes to train on");
  if (a.validation != b.validation)
    return have(a.validation, b.validation, " bytes to validate on");
  if (a.files != b.files) return have(a.files, b.files, " files");
  if (a.sample == b.sample && (a.digest.empty() || b.digest.empty() || a.digest == b.digest))
    return {};
  return a.tokeniser == "random"
             ? fmt::format("{} and {} have random tokens of different seeds", name_of_a, name_of_b)
             : fmt::format("{} and {} have {} bytes each, and not the same ones", name_of_a,
                           name_of_b, a.training + a.validation);
}

std::string hexadecimal(std::initializer_list<std::uint64_t> numbers) {
  std::string text;
  for (const auto number : numbers) text += fmt::format("{:016x}", number);
  return text;
}

}  // namespace echelon
