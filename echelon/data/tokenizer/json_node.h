// A value in a tokeniser's JSON with its place, which is put into words only for an error. Unlike
// JsonReader, a node costs no memory: a vocabulary has some hundred thousand.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace echelon::tok {

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  std::string place() const;  // "model.vocab", "added_tokens[3].id"; empty for the whole file

  bool has(std::string_view key) const;  // and it is not null
  JsonNode at(const char* key) const;    // throws Corrupt if it is missing
  std::size_t size() const { return value_->size(); }
  JsonNode item(std::size_t index) const { return {value_->at(index), this, {}, index}; }
  JsonNode member(const nlohmann::json& value, std::string_view key) const {
    return {value, this, key, 0};
  }

  // Throw Corrupt that says what it should be.
  const nlohmann::json& object() const;
  const nlohmann::json& list() const;
  const std::string& text() const;  // valid UTF-8
  bool boolean() const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  std::int32_t id() const;  // of a token

  // The member, or `otherwise` if it is missing or null.
  bool boolean(const char* key, bool otherwise) const;
  std::string text(const char* key, std::string_view otherwise) const;

  [[noreturn]] void refuse(std::string_view wanted) const;
  // Throws InvalidArgument: "tokenizer.json: model.type Unigram is not supported: …".
  [[noreturn]] void unsupported(std::string_view what, std::string_view instead) const;

 private:
  JsonNode(const nlohmann::json& value, const JsonNode* parent, std::string_view key,
           std::size_t index)
      : value_(&value), file_(parent->file_), parent_(parent), key_(key), index_(index) {}

  const nlohmann::json* value_;
  const std::string* file_;
  const JsonNode* parent_ = nullptr;  // must live as long as this
  std::string_view key_;
  std::size_t index_ = 0;
};

// Throws Corrupt with `file`, line and column.
nlohmann::json parse_json(const std::string& text, const std::string& file);

}  // namespace echelon::tok
