// The files of tokenisers before there was tokenizer.json: BERT's vocab.txt, GPT-2's vocab.json and
// merges.txt. tokenizer_config.json beside them says the rest.
#include <fmt/format.h>

#include <array>
#include <charconv>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/bpe.h"
#include "echelon/data/tokenizer/json_node.h"
#include "echelon/data/tokenizer/parts.h"
#include "echelon/data/tokenizer/word_piece.h"

namespace echelon::tok {
namespace {

// Calls do_with(line, number) for each line, without its end.
template <typename F>
void for_each_line(std::string_view text, const std::string& where, F&& do_with) {
  std::size_t number = 1;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (utf8_prefix(line) != line.size())
      throw Corrupt(fmt::format("{}: line {} is not UTF-8", where, number));
    do_with(line, number++);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// An empty object if the text is empty.
nlohmann::json parse_config(const std::string& text, const std::string& where) {
  return text.empty() ? nlohmann::json::object() : parse_json(text, where);
}

// A token is written as its text, or as an object with it.
std::string token_text(const JsonNode& node) {
  return node.value().is_object() ? node.at("content").text() : node.text();
}

// "added_tokens_decoder": {"50256": {"content": "<|endoftext|>", …}}
void read_added_tokens_decoder(const JsonNode& config, Parts& parts) {
  if (!config.has("added_tokens_decoder")) return;
  const JsonNode tokens = config.at("added_tokens_decoder");
  for (const auto& [key, value] : tokens.object().items()) {
    const JsonNode token = tokens.member(value, key);
    std::int32_t id = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 ||
        id >= Vocabulary::most)
      token.refuse("named by an id");
    const bool special = token.boolean("special", false);
    add_token({.text = token.at("content").text(),
               .id = id,
               .special = special,
               .normalized = token.boolean("normalized", !special),
               .single_word = token.boolean("single_word", false),
               .strip_left = token.boolean("lstrip", false),
               .strip_right = token.boolean("rstrip", false)},
              fmt::format("{}: {}", token.file(), token.place()), parts);
  }
}

// Adds a special token of the vocabulary, unless the configuration has added it. -1: not there.
std::int32_t add_special(const std::string& text, const std::string& where, Parts& parts) {
  const auto id = parts.model_tokens.find(text);
  if (id >= 0 && parts.added.find(text) < 0)
    add_token({.text = text, .id = id, .special = true, .normalized = false}, where, parts);
  return id;
}

std::int32_t require_special(const std::string& text, const std::string& where, Parts& parts) {
  const auto id = add_special(text, where, parts);
  if (id < 0) throw Corrupt(fmt::format("{} lacks the token '{}'", where, text));
  return id;
}

std::string name_in(const JsonNode& config, const char* key, std::string_view otherwise) {
  return config.has(key) ? token_text(config.at(key)) : std::string(otherwise);
}

}  // namespace

void read_bert_vocabulary(const std::string& text, const std::string& where,
                          const std::string& config_text, const std::string& config_where,
                          Parts& parts) {
  const nlohmann::json json = parse_config(config_text, config_where);
  const JsonNode config(json, config_where);
  for_each_line(text, where, [&](std::string_view line, std::size_t number) {
    if (line.empty()) throw Corrupt(fmt::format("{}: line {} is empty", where, number));
    if (number > std::size_t(Vocabulary::most))
      throw Corrupt(fmt::format("{} has more than {} lines", where, Vocabulary::most));
    parts.model_tokens.insert(line, std::int32_t(number) - 1);
  });
  const bool lower = config.boolean("do_lower_case", true);
  parts.normalizer.push_back(
      bert_normalizer({.clean = true,
                       .split_chinese = config.boolean("tokenize_chinese_chars", true),
                       .strip_accents = config.boolean("strip_accents", lower),
                       .lower_case = lower}));
  parts.splitter.steps.push_back(bert_splitter());
  const std::string unknown = name_in(config, "unk_token", "[UNK]");
  parts.model =
      std::make_unique<WordPiece>(parts.model_tokens, WordPieceSettings{.unknown = unknown}, where);
  parts.decoder.push_back(word_piece_decoder("##", true));
  read_added_tokens_decoder(config, parts);
  const auto begin = require_special(name_in(config, "cls_token", "[CLS]"), where, parts);
  const auto end = require_special(name_in(config, "sep_token", "[SEP]"), where, parts);
  add_special(unknown, where, parts);
  add_special(name_in(config, "pad_token", "[PAD]"), where, parts);
  add_special(name_in(config, "mask_token", "[MASK]"), where, parts);
  using Kind = TemplatePiece::Kind;
  parts.post_processor.single = {
      {Kind::special, {begin}, 0}, {Kind::first, {}, 0}, {Kind::special, {end}, 0}};
  parts.post_processor.pair = parts.post_processor.single;
  parts.post_processor.pair.push_back({Kind::second, {}, 1});
  parts.post_processor.pair.push_back({Kind::special, {end}, 1});
  parts.special.unknown = parts.model_tokens.find(unknown);
  finish_parts(where, parts);
}

void read_gpt2_files(const Gpt2Files& files, Parts& parts) {
  const nlohmann::json vocabulary = parse_json(files.vocabulary, files.vocabulary_where),
                       config_json = parse_config(files.config, files.config_where);
  const JsonNode root(vocabulary, files.vocabulary_where), config(config_json, files.config_where);
  for (const auto& [text, value] : root.object().items()) {
    const JsonNode member = root.member(value, text);
    const auto id = member.id();
    if (parts.model_tokens.has(id))
      member.refuse(fmt::format("an id of its own: '{}' has it", parts.model_tokens.text(id)));
    parts.model_tokens.insert(text, id);
  }

  std::vector<std::pair<std::string, std::string>> merges;
  for_each_line(files.merges, files.merges_where, [&](std::string_view line, std::size_t number) {
    if (line.empty() || line.starts_with("#version")) return;
    const auto space_at = line.find(' ');
    if (space_at == line.npos || line.find(' ', space_at + 1) != line.npos)
      throw Corrupt(fmt::format("{}: line {} is not two tokens with one space between them",
                                files.merges_where, number));
    merges.emplace_back(line.substr(0, space_at), line.substr(space_at + 1));
  });

  parts.splitter.byte_level = true;
  parts.splitter.prefix_space = config.boolean("add_prefix_space", false);
  auto splitting = pattern_splitter(known_pattern(gpt2_expression), Delimiter::isolated, false);
  if (parts.splitter.prefix_space)
    parts.splitter.after_prefix = std::move(splitting);
  else
    parts.splitter.steps.push_back(std::move(splitting));
  BpeSettings settings;
  settings.byte_level = true;
  parts.model = std::make_unique<Bpe>(parts.model_tokens, merges, settings, files.merges_where);
  parts.decoder.push_back(byte_level_decoder());
  read_added_tokens_decoder(config, parts);
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
    add_special(name_in(config, key, "<|endoftext|>"), files.vocabulary_where, parts);
  finish_parts(files.vocabulary_where, parts);
}

void find_special_tokens(const std::string& text, const std::string& where, Parts& parts) {
  const nlohmann::json json = parse_config(text, where);
  const JsonNode config(json, where);
  struct Role {
    std::optional<std::int32_t>& id;
    const char* key;
    std::array<const char*, 4> usual;
  };
  SpecialTokens& special = parts.special;
  const std::array roles = {
      Role{special.padding, "pad_token", {"[PAD]", "<pad>", "<|pad|>", ""}},
      Role{special.unknown, "unk_token", {"[UNK]", "<unk>", "", ""}},
      Role{special.begin, "bos_token", {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"}},
      Role{special.end, "eos_token", {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"}},
      Role{special.classifier, "cls_token", {"[CLS]", "<cls>", "", ""}},
      Role{special.separator, "sep_token", {"[SEP]", "<sep>", "", ""}},
      Role{special.mask, "mask_token", {"[MASK]", "<mask>", "", ""}}};
  const auto find = [&](std::string_view token) {
    const auto id = parts.added.find(token);
    return id >= 0 ? id : parts.model_tokens.find(token);
  };
  for (const Role& role : roles) {
    if (config.has(role.key)) {
      if (const auto id = find(token_text(config.at(role.key))); id >= 0) role.id = id;
      continue;
    }
    for (const char* name : role.usual)
      if (const auto id = find(name); id >= 0 && *name && !role.id) role.id = id;
  }
}

}  // namespace echelon::tok
