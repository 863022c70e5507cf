// Trains a byte-level BPE (Sennrich et al., "Neural machine translation of rare words with subword
// units", 2016; Radford et al., GPT-2, 2019): the vocabulary begins with the special tokens and all
// 256 bytes, and then the most frequent pair of neighbouring tokens becomes a token, again and
// again.
//
//   WordCounts words;                      // of the text, split by GPT-2's pattern
//   const BpeVocabulary bpe = train_bpe(words, {.vocab = 8192});
//   write_tokenizer("tokenizer/", bpe);    // tokenizer.json: opens here and in Hugging Face's
//
// The merges are those of Hugging Face's tokenizers.trainers.BpeTrainer. Of equally frequent pairs
// the one with the smaller ids wins, first token first. Two details of it show in rare cases and
// are kept: the count of a pair stays as it is when the pair is merged, so a pair that arises again
// counts its former places too; and two pairs may spell the same token, which they then share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "echelon/data/tokenizer/word_counts.h"

namespace echelon {

struct BpeTrainerOptions {
  std::int64_t vocab = 8192;       // tokens at most, special ones and bytes included
  std::int64_t min_frequency = 0;  // of a pair that is merged
  std::vector<std::string> special = {"<|endoftext|>"};  // they get the first ids
};

struct BpeVocabulary {
  using Id = std::uint32_t;
  // By id. Bytes are written in GPT-2's alphabet (byte_alphabet.h).
  std::vector<std::string> tokens;
  std::vector<std::pair<Id, Id>> merges;  // the first is applied first
  std::size_t special = 0;                // so many of the first tokens
  std::int64_t text_tokens = 0;           // that the text becomes
};

// Throws InvalidArgument if the vocabulary has no room for all bytes and special tokens, or a
// special token is empty or given twice.
void check_bpe_options(const BpeTrainerOptions& options);

// Checks the options, and throws InvalidArgument if there is no word. With little text there may be
// fewer tokens than `vocab`.
BpeVocabulary train_bpe(const WordCounts& words, const BpeTrainerOptions& options);

// Writes tokenizer.json, and tokenizer_config.json for transformers, into a folder, which is made.
void write_tokenizer(const std::filesystem::path& folder, const BpeVocabulary& bpe);

}  // namespace echelon
