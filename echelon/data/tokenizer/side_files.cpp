#include "echelon/data/tokenizer/side_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "echelon/base/error.h"

namespace echelon::tok {
namespace {

// An empty object if there is no file.
nlohmann::json parse(const NamedText& file) {
  return file.text.empty() ? nlohmann::json::object() : parse_json(file.text, file.where);
}

std::string place_of(const JsonNode& node) {
  return fmt::format("{}: {}", node.file(), node.place());
}

// With the flags that an object has.
AddedToken token_of(const JsonNode& node, bool special) {
  AddedToken token{.text = token_text(node), .special = special, .normalized = !special};
  if (!node.value().is_object()) return token;
  token.normalized = node.boolean("normalized", !special);
  token.single_word = node.boolean("single_word", false);
  token.strip_left = node.boolean("lstrip", false);
  token.strip_right = node.boolean("rstrip", false);
  return token;
}

// A token with an id of its own, and its place for errors.
struct Listed {
  AddedToken token;
  std::string where;
};

// `transformers` adds tokens in the order of their ids, and gives ids itself.
void add_listed(std::vector<Listed> listed, Parts& parts) {
  std::ranges::stable_sort(listed, {}, [](const Listed& one) { return one.token.id; });
  for (const auto& [token, where] : listed) {
    const bool is_new = !token.text.empty() && parts.model_tokens.find(token.text) < 0 &&
                        parts.added.find(token.text) < 0 && !parts.added.has(token.id);
    if (const auto next = next_added_id(parts); is_new && token.id != next)
      throw Corrupt(fmt::format("{} has '{}' with id {}, not {}, the first that is free", where,
                                token.text, token.id, next));
    add_token(token, where, parts);
  }
}

// {"50256": {"content": "<|endoftext|>", …}}
std::vector<Listed> read_decoder(const JsonNode& tokens) {
  std::vector<Listed> listed;
  for (const auto& [key, value] : tokens.object().items()) {
    const JsonNode node = tokens.member(value, key);
    AddedToken token = token_of(node, node.boolean("special", false));
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || token.id < 0 ||
        token.id >= Vocabulary::most)
      node.refuse("named by an id");
    listed.push_back({std::move(token), place_of(node)});
  }
  return listed;
}

}  // namespace

std::string token_text(const JsonNode& node) {
  return node.value().is_object() ? node.at("content").text() : node.text();
}

SideConfig::SideConfig(const SideFiles& files)
    : config_json_(parse(files.config)),
      map_json_(parse(files.special_map)),
      added_json_(parse(files.added)),
      config_(config_json_, files.config.where),
      map_(map_json_, files.special_map.where),
      added_(added_json_, files.added.where) {}

std::optional<JsonNode> SideConfig::find(const char* key) const {
  for (const JsonNode* file : {&config_, &map_})
    if (file->has(key)) return file->at(key);
  return std::nullopt;
}

std::string SideConfig::name(const char* key, std::string_view otherwise) const {
  const auto found = find(key);
  return found ? token_text(*found) : std::string(otherwise);
}

void SideConfig::require_class(std::span<const std::string_view> classes,
                               std::string_view read) const {
  constexpr std::string_view instead =
      "load the folder with AutoTokenizer of `transformers` and save it, which writes "
      "tokenizer.json";
  if (config_.has("tokenizer_class")) {
    const JsonNode node = config_.at("tokenizer_class");
    std::string_view name = node.text();
    if (name.ends_with("Fast")) name.remove_suffix(4);
    if (std::ranges::count(classes, name) == 0)
      node.unsupported(node.text(), fmt::format("{} is read as that of {}; {}", read,
                                                fmt::join(classes, ", "), instead));
  }
  for (const char* key : {"add_bos_token", "add_eos_token"})
    if (config_.boolean(key, false))
      config_.at(key).unsupported("true", fmt::format("beside {}; {}", read, instead));
}

// Lists of additional_special_tokens, and extra_special_tokens (since version 5), which may also be
// an object with names: {"image_token": "<image>"}.
template <class F>
void SideConfig::for_each_additional(F&& do_with) const {
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto tokens = find(key);
    if (!tokens) continue;
    if (tokens->value().is_object()) {
      for (const auto& [name, value] : tokens->value().items())
        do_with(tokens->member(value, name));
      continue;
    }
    for (std::size_t i = 0; i < tokens->list().size(); ++i) do_with(tokens->item(i));
  }
}

bool SideConfig::has_role(std::string_view token) const {
  bool has = std::ranges::any_of(role_keys, [&](const char* key) {
    const auto found = find(key);
    return found && token_text(*found) == token;
  });
  for_each_additional([&](const JsonNode& node) { has = has || token_text(node) == token; });
  return has;
}

void SideConfig::add_additional(const JsonNode& node, Parts& parts) const {
  AddedToken token = token_of(node, /*special=*/true);
  if (token.text.empty() || parts.added.find(token.text) >= 0) return;
  token.id = parts.model_tokens.find(token.text);
  if (token.id < 0)
    throw InvalidArgument(fmt::format(
        "{} is '{}', which neither the vocabulary nor added_tokens.json has: add it to that file "
        "with the id that the model has for it",
        place_of(node), token.text));
  add_token(token, place_of(node), parts);
}

void SideConfig::add_tokens(Parts& parts) const {
  // It has all tokens that were added, and `transformers` then reads no other file for them.
  const bool complete = config_.has("added_tokens_decoder");
  std::vector<Listed> listed;
  if (complete) listed = read_decoder(config_.at("added_tokens_decoder"));
  if (!complete) {
    for (const auto& [text, value] : added_.object().items()) {
      const JsonNode node = added_.member(value, text);
      const bool special = has_role(text);
      listed.push_back({{.text = text, .id = node.id(), .special = special, .normalized = !special},
                        added_.file()});
    }
  }
  add_listed(std::move(listed), parts);
  for_each_additional([&](const JsonNode& node) { add_additional(node, parts); });
  for (const char* key : role_keys)
    if (find(key)) add_role(key, {}, {}, parts);
}

std::int32_t SideConfig::add_role(const char* key, std::string_view otherwise,
                                  const std::string& where, Parts& parts) const {
  const auto named = find(key);
  const AddedToken usual{.text = std::string(otherwise), .special = true, .normalized = false};
  AddedToken token = named ? token_of(*named, /*special=*/true) : usual;
  if (const auto id = parts.added.find(token.text); id >= 0) return id;
  token.id = parts.model_tokens.find(token.text);
  if (token.id >= 0) add_token(token, named ? place_of(*named) : where, parts);
  return token.id;
}

}  // namespace echelon::tok
