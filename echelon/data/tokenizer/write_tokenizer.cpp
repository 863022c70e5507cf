#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/data/tokenizer/bpe_trainer.h"

namespace echelon {
namespace {

using nlohmann::ordered_json;

std::string quoted(const std::string& text) { return ordered_json(text).dump(); }

// Each item on its own line, as Hugging Face's library writes it.
template <class Items, class Text>
std::string lines(const Items& items, Text text) {
  std::string all;
  for (std::size_t i = 0; i < items.size(); ++i)
    all += fmt::format("{}\n      {}", i == 0 ? "" : ",", text(i));
  return all.empty() ? all : all + "\n    ";
}

// The vocabulary is written by hand: an ordered object of JSON takes quadratic time to make.
std::string tokenizer_json(const BpeVocabulary& bpe) {
  ordered_json special = ordered_json::array();
  for (std::size_t id = 0; id < bpe.special; ++id)
    special.push_back({{"id", id},
                       {"content", bpe.tokens[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  const ordered_json bytes = {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", true}};
  ordered_json decoder = bytes;
  decoder["add_prefix_space"] = true;
  return fmt::format(
      R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": {},
  "normalizer": null,
  "pre_tokenizer": {},
  "post_processor": null,
  "decoder": {},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{}}},
    "merges": [{}]
  }}
}}
)",
      special.dump(), bytes.dump(), decoder.dump(),
      lines(bpe.tokens,
            [&](std::size_t id) { return fmt::format("{}: {}", quoted(bpe.tokens[id]), id); }),
      lines(bpe.merges, [&](std::size_t i) {
        const auto [first, second] = bpe.merges[i];
        return fmt::format("[{}, {}]", quoted(bpe.tokens[first]), quoted(bpe.tokens[second]));
      }));
}

// What transformers' AutoTokenizer reads beside tokenizer.json.
std::string config_json(const BpeVocabulary& bpe) {
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"clean_up_tokenization_spaces", false}};
  for (std::size_t id = 0; id < bpe.special; ++id) {
    if (bpe.tokens[id] != "<|endoftext|>") continue;
    for (const char* role : {"bos_token", "eos_token"}) config[role] = bpe.tokens[id];
  }
  return config.dump(2) + "\n";
}

}  // namespace

void write_tokenizer(const std::filesystem::path& folder, const BpeVocabulary& bpe) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  write_file(folder / "tokenizer_config.json", config_json(bpe));
  write_file(folder / "tokenizer.json", tokenizer_json(bpe));
}

}  // namespace echelon
