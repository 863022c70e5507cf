// The files of tokenisers before there was tokenizer.json: BERT's vocab.txt, GPT-2's vocab.json and
// merges.txt. The files beside them (side_files.h) say the rest.
#include <fmt/format.h>

#include <array>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/bpe.h"
#include "echelon/data/tokenizer/json_node.h"
#include "echelon/data/tokenizer/parts.h"
#include "echelon/data/tokenizer/side_files.h"
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

// Whose vocab.txt is used as BERT's: classes that `transformers` builds from BertTokenizer without
// a change.
constexpr std::array<std::string_view, 8> bert_classes = {
    "BertTokenizer",     "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
    "LayoutLMTokenizer", "LxmertTokenizer",   "MobileBertTokenizer", "SqueezeBertTokenizer"};
constexpr std::array<std::string_view, 1> gpt2_classes = {"GPT2Tokenizer"};

std::int32_t require_role(const SideConfig& beside, const char* key, std::string_view otherwise,
                          const std::string& where, Parts& parts) {
  const auto id = beside.add_role(key, otherwise, where, parts);
  if (id < 0)
    throw Corrupt(fmt::format("{} lacks the token '{}'", where, beside.name(key, otherwise)));
  return id;
}

void read_vocabulary_lines(const NamedText& file, Vocabulary& out) {
  for_each_line(file.text, file.where, [&](std::string_view line, std::size_t number) {
    if (line.empty()) throw Corrupt(fmt::format("{}: line {} is empty", file.where, number));
    if (number > std::size_t(Vocabulary::most))
      throw Corrupt(fmt::format("{} has more than {} lines", file.where, Vocabulary::most));
    out.insert(line, std::int32_t(number) - 1);
  });
}

void read_vocabulary_json(const NamedText& file, Vocabulary& out) {
  const nlohmann::json json = parse_json(file.text, file.where);
  const JsonNode root(json, file.where);
  for (const auto& [text, value] : root.object().items()) {
    const JsonNode member = root.member(value, text);
    const auto id = member.id();
    if (out.has(id)) member.refuse(fmt::format("an id of its own: '{}' has it", out.text(id)));
    out.insert(text, id);
  }
}

std::vector<std::pair<std::string, std::string>> read_merge_lines(const NamedText& file) {
  std::vector<std::pair<std::string, std::string>> merges;
  for_each_line(file.text, file.where, [&](std::string_view line, std::size_t number) {
    if (line.empty() || line.starts_with("#version")) return;
    const auto space_at = line.find(' ');
    if (space_at == line.npos || line.find(' ', space_at + 1) != line.npos)
      throw Corrupt(fmt::format("{}: line {} is not two tokens with one space between them",
                                file.where, number));
    merges.emplace_back(line.substr(0, space_at), line.substr(space_at + 1));
  });
  return merges;
}

}  // namespace

void read_bert_vocabulary(const NamedText& vocabulary, const SideFiles& files, Parts& parts) {
  const SideConfig beside(files);
  beside.require_class(bert_classes, "vocab.txt");
  const JsonNode& config = beside.config();
  const std::string& where = vocabulary.where;
  read_vocabulary_lines(vocabulary, parts.model_tokens);
  const bool lower = config.boolean("do_lower_case", true);
  parts.normalizer.push_back(
      bert_normalizer({.clean = true,
                       .split_chinese = config.boolean("tokenize_chinese_chars", true),
                       .strip_accents = config.boolean("strip_accents", lower),
                       .lower_case = lower}));
  parts.splitter.steps.push_back(bert_splitter());
  const std::string unknown = beside.name("unk_token", "[UNK]");
  parts.model =
      std::make_unique<WordPiece>(parts.model_tokens, WordPieceSettings{.unknown = unknown}, where);
  parts.decoder.push_back(word_piece_decoder("##", true));
  beside.add_tokens(parts);
  const auto begin = require_role(beside, "cls_token", "[CLS]", where, parts);
  const auto end = require_role(beside, "sep_token", "[SEP]", where, parts);
  beside.add_role("unk_token", "[UNK]", where, parts);
  beside.add_role("pad_token", "[PAD]", where, parts);
  beside.add_role("mask_token", "[MASK]", where, parts);
  using Kind = TemplatePiece::Kind;
  parts.post_processor.single = {
      {Kind::special, {begin}, 0}, {Kind::first, {}, 0}, {Kind::special, {end}, 0}};
  parts.post_processor.pair = parts.post_processor.single;
  parts.post_processor.pair.push_back({Kind::second, {}, 1});
  parts.post_processor.pair.push_back({Kind::special, {end}, 1});
  parts.special.unknown = parts.model_tokens.find(unknown);
  finish_parts(where, parts);
}

void read_gpt2_files(const NamedText& vocabulary, const NamedText& merges, const SideFiles& files,
                     Parts& parts) {
  const SideConfig beside(files);
  beside.require_class(gpt2_classes, "vocab.json");
  read_vocabulary_json(vocabulary, parts.model_tokens);
  parts.splitter.byte_level = true;
  parts.splitter.prefix_space = beside.config().boolean("add_prefix_space", false);
  auto splitting = pattern_splitter(known_pattern(gpt2_expression), Delimiter::isolated, false);
  if (parts.splitter.prefix_space)
    parts.splitter.after_prefix = std::move(splitting);
  else
    parts.splitter.steps.push_back(std::move(splitting));
  BpeSettings settings;
  settings.byte_level = true;
  parts.model =
      std::make_unique<Bpe>(parts.model_tokens, read_merge_lines(merges), settings, merges.where);
  parts.decoder.push_back(byte_level_decoder());
  beside.add_tokens(parts);
  for (const char* key : {"bos_token", "eos_token", "unk_token"})
    beside.add_role(key, "<|endoftext|>", vocabulary.where, parts);
  finish_parts(vocabulary.where, parts);
}

void find_special_tokens(const SideFiles& files, Parts& parts) {
  const SideConfig beside(files);
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
    if (const auto named = beside.find(role.key)) {
      if (const auto id = find(token_text(*named)); id >= 0) role.id = id;
      continue;
    }
    for (const char* name : role.usual)
      if (const auto id = find(name); id >= 0 && *name && !role.id) role.id = id;
  }
}

}  // namespace echelon::tok
