// A WordPiece vocabulary of whole words, for the lab's encoder: BERT's special tokens, the visible
// ASCII characters (and their "##" forms, so that every ASCII word has pieces), and the most
// frequent lower-case words of some texts.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace echelon {

// The tokens by id, at most `size`. Words of an earlier text come before those of a later one; of
// equally frequent words, the smaller one comes first. Throws InvalidArgument if `size` has no room
// for special tokens and characters.
std::vector<std::string> word_vocabulary(std::span<const std::string_view> texts, std::size_t size);

// vocab.txt and tokenizer_config.json, as transformers' DistilBertTokenizer reads them.
void write_word_vocabulary(const std::filesystem::path& folder,
                           std::span<const std::string> tokens);

}  // namespace echelon
