// What stands beside a tokeniser's files: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json, as `transformers` writes them.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "echelon/data/tokenizer/json_node.h"
#include "echelon/data/tokenizer/parts.h"

namespace echelon::tok {

inline constexpr std::array role_keys = {"pad_token", "unk_token", "bos_token", "eos_token",
                                         "cls_token", "sep_token", "mask_token"};

class SideConfig {
 public:
  explicit SideConfig(const SideFiles& files);
  SideConfig(const SideConfig&) = delete;
  SideConfig& operator=(const SideConfig&) = delete;

  const JsonNode& config() const { return config_; }  // an empty object without a file

  // A member of tokenizer_config.json; of special_tokens_map.json for what the first one lacks.
  std::optional<JsonNode> find(const char* key) const;
  // The text of the token that has this role.
  std::string name(const char* key, std::string_view otherwise) const;

  // A vocabulary's file does not say how it is used. Throws InvalidArgument if tokenizer_class is
  // none of `classes` (which also mean their fast forms), or if tokens are to be put around texts.
  void require_class(std::span<const std::string_view> classes, std::string_view read) const;

  // The tokens of added_tokens_decoder, or else of added_tokens.json, and those of
  // additional_special_tokens. Throws Corrupt for an id that `transformers` would not give.
  void add_tokens(Parts& parts) const;
  // Adds the token of a role if the vocabulary has it. Its id; -1: there is no such token.
  std::int32_t add_role(const char* key, std::string_view otherwise, const std::string& where,
                        Parts& parts) const;

 private:
  bool has_role(std::string_view token) const;
  void add_additional(const JsonNode& token, Parts& parts) const;
  template <class F>
  void for_each_additional(F&& do_with) const;

  nlohmann::json config_json_, map_json_, added_json_;
  JsonNode config_, map_, added_;
};

// The text of a token, which is written as it is or as an object with it.
std::string token_text(const JsonNode& node);

}  // namespace echelon::tok
