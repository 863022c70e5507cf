// tokenizer.json, as Hugging Face's `tokenizers` writes it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/bpe.h"
#include "echelon/data/tokenizer/json_node.h"
#include "echelon/data/tokenizer/normal_forms.h"
#include "echelon/data/tokenizer/parts.h"
#include "echelon/data/tokenizer/word_piece.h"

namespace echelon::tok {
namespace {

// Sequences in sequences, deeper than anybody writes them.
constexpr int deepest = 16;

// "type" of a part, or nothing for null.
std::optional<std::string> type_of(const JsonNode& part) {
  if (part.value().is_null()) return std::nullopt;
  return part.at("type").text();
}

void require_shallow(const JsonNode& part, int depth) {
  if (depth > deepest)
    part.unsupported("Sequence", fmt::format("it nests deeper than {}", deepest));
}

std::shared_ptr<const Pattern> read_pattern(const JsonNode& node) {
  if (node.has("String")) {
    const JsonNode text = node.at("String");
    if (text.text().empty()) text.refuse("a string that is not empty");
    return literal_pattern(text.text());
  }
  if (node.has("Regex")) {
    const JsonNode expression = node.at("Regex");
    return regular_expression(expression.text(),
                              fmt::format("{}: {}", expression.file(), expression.place()));
  }
  node.refuse("an object with String or Regex");
}

// ---- Normalizers

void read_normalizer(const JsonNode& node, Normalizer& out, int depth = 0) {
  const auto type = type_of(node);
  if (!type) return;
  require_shallow(node, depth);
  if (*type == "Sequence") {
    const JsonNode steps = node.at("normalizers");
    for (std::size_t i = 0; i < steps.list().size(); ++i)
      read_normalizer(steps.item(i), out, depth + 1);
  } else if (*type == "BertNormalizer") {
    const bool lower = node.boolean("lowercase", true);
    out.push_back(bert_normalizer({.clean = node.boolean("clean_text", true),
                                   .split_chinese = node.boolean("handle_chinese_chars", true),
                                   .strip_accents = node.boolean("strip_accents", lower),
                                   .lower_case = lower}));
  } else if (*type == "Lowercase") {
    out.push_back(lower_case_normalizer());
  } else if (*type == "NFC" || *type == "NFD" || *type == "NFKC" || *type == "NFKD") {
    out.push_back(normal_form(type->size() == 4, type->back() == 'C'));
  } else if (*type == "StripAccents") {
    out.push_back(strip_accents_normalizer());
  } else if (*type == "Nmt") {
    out.push_back(nmt_normalizer());
  } else if (*type == "Strip") {
    out.push_back(
        strip_normalizer(node.boolean("strip_left", true), node.boolean("strip_right", true)));
  } else if (*type == "Prepend") {
    out.push_back(prepend_normalizer(node.at("prepend").text()));
  } else if (*type == "Replace") {
    out.push_back(replace_normalizer(read_pattern(node.at("pattern")), node.at("content").text()));
  } else {
    node.unsupported(
        *type,
        "Echelon has BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Prepend, Replace, "
        "Sequence, Strip and StripAccents");
  }
}

// ---- Pre-tokenizers

Delimiter read_behaviour(const JsonNode& node) {
  constexpr std::array names = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                "Contiguous"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (node.text() == names[i]) return Delimiter(i);
  node.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void read_byte_level(const JsonNode& node, Splitter& out) {
  out.byte_level = true;
  out.prefix_space = node.boolean("add_prefix_space", true);
  if (!node.boolean("use_regex", true)) return;
  auto splitting = pattern_splitter(known_pattern(gpt2_expression), Delimiter::isolated, false);
  if (out.prefix_space)
    out.after_prefix = std::move(splitting);
  else
    out.steps.push_back(std::move(splitting));
}

void read_splitter(const JsonNode& node, Splitter& out, int depth = 0) {
  const auto type = type_of(node);
  if (!type) return;
  require_shallow(node, depth);
  if (*type != "Sequence" && out.byte_level)
    node.unsupported(*type, "ByteLevel must be the last pre-tokenizer");
  auto& steps = out.steps;
  if (*type == "Sequence") {
    const JsonNode list = node.at("pretokenizers");
    for (std::size_t i = 0; i < list.list().size(); ++i)
      read_splitter(list.item(i), out, depth + 1);
  } else if (*type == "ByteLevel") {
    read_byte_level(node, out);
  } else if (*type == "BertPreTokenizer") {
    steps.push_back(bert_splitter());
  } else if (*type == "WhitespaceSplit") {
    steps.push_back(white_space_splitter());
  } else if (*type == "Whitespace") {
    steps.push_back(word_splitter());
  } else if (*type == "Punctuation") {
    steps.push_back(punctuation_splitter(node.has("behavior") ? read_behaviour(node.at("behavior"))
                                                              : Delimiter::isolated));
  } else if (*type == "Digits") {
    steps.push_back(digit_splitter(node.boolean("individual_digits", false)));
  } else if (*type == "CharDelimiterSplit") {
    const JsonNode delimiter = node.at("delimiter");
    if (delimiter.text().empty()) delimiter.refuse("a character");
    steps.push_back(pattern_splitter(literal_pattern(delimiter.text()), Delimiter::removed, false));
  } else if (*type == "Split") {
    steps.push_back(pattern_splitter(read_pattern(node.at("pattern")),
                                     read_behaviour(node.at("behavior")),
                                     node.boolean("invert", false)));
  } else {
    node.unsupported(*type,
                     "Echelon has BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, "
                     "Punctuation, Sequence, Split, Whitespace and WhitespaceSplit");
  }
}

// ---- Models

void read_vocabulary(const JsonNode& node, Vocabulary& out) {
  for (const auto& [text, value] : node.object().items()) {
    const JsonNode member = node.member(value, text);
    const auto id = member.id();
    if (out.has(id)) member.refuse(fmt::format("an id of its own: '{}' has it", out.text(id)));
    out.insert(text, id);
  }
}

std::vector<std::pair<std::string, std::string>> read_merges(const JsonNode& node) {
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(node.list().size());
  for (std::size_t i = 0; i < node.size(); ++i) {
    const JsonNode merge = node.item(i);
    if (merge.value().is_array() && merge.size() == 2) {
      merges.emplace_back(merge.item(0).text(), merge.item(1).text());
      continue;
    }
    const std::string& text = merge.text();
    if (text.starts_with("#version")) continue;
    const auto space_at = text.find(' ');
    if (space_at == text.npos || text.find(' ', space_at + 1) != text.npos)
      merge.refuse("two tokens with one space between them");
    merges.emplace_back(text.substr(0, space_at), text.substr(space_at + 1));
  }
  return merges;
}

// Only a number is printed: dump() of a list calls itself for each level that it nests.
void require_no_dropout(const JsonNode& node) {
  if (!node.has("dropout")) return;
  const JsonNode dropout = node.at("dropout");
  if (!dropout.value().is_number()) dropout.refuse("a number or null");
  if (dropout.value() != 0.0)
    dropout.unsupported(dropout.value().dump(),
                        "ids would differ from call to call; set it to null");
}

void read_bpe(const JsonNode& node, Parts& parts) {
  require_no_dropout(node);
  read_vocabulary(node.at("vocab"), parts.model_tokens);
  BpeSettings settings{.byte_level = parts.splitter.byte_level,
                       .fuse_unknown = node.boolean("fuse_unk", false),
                       .byte_fallback = node.boolean("byte_fallback", false),
                       .ignore_merges = node.boolean("ignore_merges", false),
                       .prefix = node.text("continuing_subword_prefix", ""),
                       .suffix = node.text("end_of_word_suffix", ""),
                       .unknown = std::nullopt};
  if (settings.byte_fallback && settings.byte_level)
    node.unsupported("with byte_fallback",
                     "behind the pre-tokenizer ByteLevel, every byte is a token; set it to false");
  if (node.has("unk_token")) settings.unknown = node.at("unk_token").text();
  const JsonNode merges = node.at("merges");
  parts.model = std::make_unique<Bpe>(parts.model_tokens, read_merges(merges), settings,
                                      fmt::format("{}: {}", node.file(), merges.place()));
  if (settings.unknown) parts.special.unknown = parts.model_tokens.find(*settings.unknown);
}

void read_word_piece(const JsonNode& node, Parts& parts) {
  if (parts.splitter.byte_level)
    node.unsupported("WordPiece", "with the pre-tokenizer ByteLevel, the model must be BPE");
  read_vocabulary(node.at("vocab"), parts.model_tokens);
  WordPieceSettings settings{.unknown = node.text("unk_token", "[UNK]"),
                             .prefix = node.text("continuing_subword_prefix", "##")};
  if (node.has("max_input_chars_per_word"))
    settings.longest = node.at("max_input_chars_per_word").integer(0, 1'000'000);
  parts.model = std::make_unique<WordPiece>(parts.model_tokens, settings,
                                            fmt::format("{}: {}", node.file(), node.place()));
  parts.special.unknown = parts.model_tokens.find(settings.unknown);
}

// Old files have no type: the other members tell.
std::string type_of_model(const JsonNode& node) {
  if (node.has("type")) return node.at("type").text();
  return node.has("merges") ? "BPE" : node.has("max_input_chars_per_word") ? "WordPiece" : "";
}

void read_model(const JsonNode& node, Parts& parts) {
  const std::string type = type_of_model(node);
  if (type == "BPE")
    read_bpe(node, parts);
  else if (type == "WordPiece")
    read_word_piece(node, parts);
  else if (type.empty())
    node.at("type");
  else
    node.at("type").unsupported(type, "Echelon has BPE and WordPiece");
}

// ---- Post-processors

void read_template(const JsonNode& node, const JsonNode& tokens, std::vector<TemplatePiece>& out,
                   bool pair) {
  out.clear();
  for (std::size_t i = 0; i < node.list().size(); ++i) {
    const JsonNode piece = node.item(i);
    if (piece.has("Sequence")) {
      const JsonNode sequence = piece.at("Sequence"), id = sequence.at("id");
      const bool second = id.text() == "B";
      if (!second && id.text() != "A") id.refuse("A or B");
      if (second && !pair) id.refuse("A: there is one text");
      out.push_back({second ? TemplatePiece::Kind::second : TemplatePiece::Kind::first,
                     {},
                     sequence.at("type_id").id()});
      continue;
    }
    const JsonNode special = piece.at("SpecialToken"), name = special.at("id");
    if (!tokens.has(name.text())) name.refuse("one of the template's special_tokens");
    TemplatePiece result{TemplatePiece::Kind::special, {}, special.at("type_id").id()};
    const JsonNode token = tokens.at(name.text().c_str()), ids = token.at("ids");
    for (std::size_t j = 0; j < ids.list().size(); ++j) result.ids.push_back(ids.item(j).id());
    out.push_back(std::move(result));
  }
}

TemplatePiece special_piece(const JsonNode& node, const char* key, std::int32_t type) {
  const JsonNode pair = node.at(key);
  if (pair.list().size() != 2) pair.refuse("a token and its id");
  return {TemplatePiece::Kind::special, {pair.item(1).id()}, type};
}

// [CLS] a [SEP], and b [SEP] behind it; RoBERTa has <s> a </s></s> b </s> and no types.
void read_bert_template(const JsonNode& node, bool roberta, PostProcessor& out) {
  using Kind = TemplatePiece::Kind;
  const std::int32_t second = roberta ? 0 : 1;
  const auto begin = special_piece(node, "cls", 0), end = special_piece(node, "sep", 0);
  out.single = {begin, {Kind::first, {}, 0}, end};
  out.pair = out.single;
  if (roberta) out.pair.push_back(end);
  out.pair.push_back({Kind::second, {}, second});
  out.pair.push_back(special_piece(node, "sep", second));
}

void read_trimming(const JsonNode& node, PostProcessor& out) {
  if (!node.boolean("trim_offsets", true)) return;
  out.trim_spans = true;
  out.prefix_space = node.boolean("add_prefix_space", true);
}

void read_post_processor(const JsonNode& node, PostProcessor& out, bool& has_template,
                         int depth = 0) {
  const auto type = type_of(node);
  if (!type) return;
  require_shallow(node, depth);
  if (*type == "Sequence") {
    const JsonNode steps = node.at("processors");
    for (std::size_t i = 0; i < steps.list().size(); ++i)
      read_post_processor(steps.item(i), out, has_template, depth + 1);
    return;
  }
  if (*type == "ByteLevel") return read_trimming(node, out);
  if (has_template) node.unsupported(*type, "one of a sequence at most may add special tokens");
  has_template = true;
  if (*type == "TemplateProcessing") {
    const JsonNode tokens = node.at("special_tokens");
    read_template(node.at("single"), tokens, out.single, false);
    read_template(node.at("pair"), tokens, out.pair, true);
  } else if (*type == "BertProcessing") {
    read_bert_template(node, false, out);
  } else if (*type == "RobertaProcessing") {
    read_bert_template(node, true, out);
    read_trimming(node, out);
  } else {
    node.unsupported(*type,
                     "Echelon has BertProcessing, ByteLevel, RobertaProcessing, Sequence and "
                     "TemplateProcessing");
  }
}

// ---- Decoders

void read_decoder(const JsonNode& node, Decoder& out, int depth = 0) {
  const auto type = type_of(node);
  if (!type) return;
  require_shallow(node, depth);
  if (*type == "Sequence") {
    const JsonNode steps = node.at("decoders");
    for (std::size_t i = 0; i < steps.list().size(); ++i)
      read_decoder(steps.item(i), out, depth + 1);
  } else if (*type == "ByteLevel") {
    out.push_back(byte_level_decoder());
  } else if (*type == "ByteFallback") {
    out.push_back(byte_fallback_decoder());
  } else if (*type == "Fuse") {
    out.push_back(fuse_decoder());
  } else if (*type == "WordPiece") {
    out.push_back(word_piece_decoder(node.text("prefix", "##"), node.boolean("cleanup", true)));
  } else if (*type == "BPEDecoder") {
    out.push_back(bpe_decoder(node.text("suffix", "</w>")));
  } else if (*type == "Strip") {
    const JsonNode content = node.at("content");
    if (content.text().empty()) content.refuse("a character");
    out.push_back(strip_decoder(content.text(), node.at("start").integer(0, 1 << 20),
                                node.at("stop").integer(0, 1 << 20)));
  } else if (*type == "Replace") {
    out.push_back(replace_decoder(read_pattern(node.at("pattern")), node.at("content").text()));
  } else {
    node.unsupported(*type,
                     "Echelon has BPEDecoder, ByteFallback, ByteLevel, Fuse, Replace, Sequence, "
                     "Strip and WordPiece");
  }
}

// ---- The rest

void read_added_tokens(const JsonNode& node, Parts& parts) {
  for (std::size_t i = 0; i < node.list().size(); ++i) {
    const JsonNode token = node.item(i), id = token.at("id");
    const std::string& content = token.at("content").text();
    const bool special = token.boolean("special", false);
    // `tokenizers` gives these ids itself, whatever the file says.
    const auto next = next_added_id(parts);
    const bool is_new = !content.empty() && parts.model_tokens.find(content) < 0 &&
                        parts.added.find(content) < 0 && !parts.added.has(id.id());
    if (is_new && id.id() != next) id.refuse(fmt::format("{}, the first that is free", next));
    add_token({.text = content,
               .id = id.id(),
               .special = special,
               .normalized = token.boolean("normalized", !special),
               .single_word = token.boolean("single_word", false),
               .strip_left = token.boolean("lstrip", false),
               .strip_right = token.boolean("rstrip", false)},
              fmt::format("{}: {}", node.file(), token.place()), parts);
  }
}

Side read_side(const JsonNode& node) {
  if (!node.has("direction")) return Side::right;
  const JsonNode direction = node.at("direction");
  if (direction.text() == "Left") return Side::left;
  if (direction.text() != "Right") direction.refuse("Left or Right");
  return Side::right;
}

void read_truncation(const JsonNode& node, Parts& parts) {
  parts.truncated_side = read_side(node);
  if (!node.has("strategy")) return;
  const JsonNode strategy = node.at("strategy");
  if (strategy.text() == "OnlyFirst")
    parts.truncation = Truncation::only_first;
  else if (strategy.text() == "OnlySecond")
    parts.truncation = Truncation::only_second;
  else if (strategy.text() != "LongestFirst")
    strategy.refuse("LongestFirst, OnlyFirst or OnlySecond");
}

void read_padding(const JsonNode& node, Parts& parts) {
  parts.padded_side = read_side(node);
  if (node.has("pad_id")) parts.special.padding = node.at("pad_id").id();
  if (node.has("pad_type_id")) parts.padding_type = node.at("pad_type_id").id();
}

}  // namespace

void read_tokenizer_json(const std::string& text, const std::string& where, Parts& parts) {
  const nlohmann::json json = parse_json(text, where);
  const JsonNode root(json, where);
  root.object();
  if (root.has("version") && root.at("version").text() != "1.0")
    root.at("version").unsupported(root.at("version").text(), "Echelon reads version 1.0");
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), parts.normalizer);
  if (root.has("pre_tokenizer")) read_splitter(root.at("pre_tokenizer"), parts.splitter);
  read_model(root.at("model"), parts);
  bool has_template = false;
  if (root.has("post_processor"))
    read_post_processor(root.at("post_processor"), parts.post_processor, has_template);
  if (root.has("decoder")) read_decoder(root.at("decoder"), parts.decoder);
  if (root.has("truncation")) read_truncation(root.at("truncation"), parts);
  if (root.has("padding")) read_padding(root.at("padding"), parts);
  if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), parts);
  finish_parts(where, parts);
}

}  // namespace echelon::tok
