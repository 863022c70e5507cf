// What a tokeniser consists of, once its files are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "echelon/data/tokenizer/added_tokens.h"
#include "echelon/data/tokenizer/decoder.h"
#include "echelon/data/tokenizer/normalizer.h"
#include "echelon/data/tokenizer/splitter.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/data/tokenizer/vocabulary.h"
#include "echelon/data/tokenizer/word_cache.h"
#include "echelon/data/tokenizer/word_model.h"

namespace echelon::tok {

// A place in the result: the tokens of a text, or special tokens.
struct TemplatePiece {
  enum class Kind { first, second, special } kind = Kind::first;
  std::vector<std::int32_t> ids;  // of special tokens
  std::int32_t type = 0;
};

// What is done with the tokens of one text or two.
struct PostProcessor {
  std::vector<TemplatePiece> single = {{TemplatePiece::Kind::first, {}, 0}};
  std::vector<TemplatePiece> pair = {{TemplatePiece::Kind::first, {}, 0},
                                     {TemplatePiece::Kind::second, {}, 1}};
  // ByteLevel's: spans leave out the white space at both ends of a token, except a first space that
  // the pre-tokeniser may have put there.
  bool trim_spans = false, prefix_space = false;
};

enum class Side { left, right };
enum class Truncation { longest_first, only_first, only_second };

// Memory of one call at a time.
struct Scratch {
  AlignedText text, spare, prefixed;
  std::vector<AddedTokenFinder::Found> raw_found, found;
  std::vector<ByteRange> words, parts, matches, prefixed_words;
  WordScratch word;
  WordCache cache;
};

// Scratches that no call uses now.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take();
  void put_back(std::unique_ptr<Scratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;  // guarded by mutex_
};

struct Parts {
  Vocabulary model_tokens;
  Vocabulary added;  // also those that the model has too
  std::vector<AddedToken> added_tokens;
  std::unordered_set<std::int32_t> special_ids;           // of added tokens
  std::unordered_map<std::int32_t, std::string> decoded;  // as they are found, if not as written
  AddedTokenFinder raw_finder, normalized_finder;
  Normalizer normalizer;
  Splitter splitter;
  std::unique_ptr<WordModel> model;
  PostProcessor post_processor;
  Decoder decoder;

  Side truncated_side = Side::right, padded_side = Side::right;
  Truncation truncation = Truncation::longest_first;
  std::int32_t padding_type = 0;

  SpecialTokens special;
  std::string digest;
  std::vector<std::filesystem::path> files;
  std::filesystem::path json;  // the one of them that is a tokenizer.json, by whatever name
  mutable ScratchPool scratches;

  // `continues`: the text is the rest of one, and nothing is put before it.
  void encode(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids,
              std::vector<TokenSpan>* spans, bool continues = false) const;
};

// Fills `parts` from a file's text; `where` is its name in errors.
void read_tokenizer_json(const std::string& text, const std::string& where, Parts& parts);
// A file's text and its name in errors. The text is empty if there is no such file.
struct NamedText {
  std::string text, where;
};
// tokenizer_config.json, special_tokens_map.json and added_tokens.json.
struct SideFiles {
  NamedText config = {}, special_map = {}, added = {};
};
// BERT's vocab.txt.
void read_bert_vocabulary(const NamedText& vocabulary, const SideFiles& beside, Parts& parts);
// GPT-2's vocab.json and merges.txt.
void read_gpt2_files(const NamedText& vocabulary, const NamedText& merges, const SideFiles& beside,
                     Parts& parts);
// Which tokens have which role: by the files beside, and by the usual names.
void find_special_tokens(const SideFiles& beside, Parts& parts);

// Common ends of the readers.
void add_token(const AddedToken& token, const std::string& where, Parts& parts);
// The id that `tokenizers` gives to the next token that the vocabulary lacks.
std::int32_t next_added_id(const Parts& parts);
void finish_parts(const std::string& where, Parts& parts);

}  // namespace echelon::tok
