// Text to token ids and back, with the tokeniser of a Hugging Face folder:
//
//   const Tokenizer tokenizer = Tokenizer::open("distilbert-base-uncased/");
//   const Encoding e = tokenizer.encode("a gorgeous film");  // ids 101 1037 9882 2143 102
//   tokenizer.decode(e.ids);                                 // "a gorgeous film"
//
// A folder has tokenizer.json; or vocab.txt (BERT's WordPiece); or vocab.json and merges.txt
// (GPT-2's byte-level BPE). Ids and spans are those of Hugging Face's `tokenizers`. A part of a
// tokenizer.json that is not supported is refused with its name: Unigram models, for example.
//
// A Tokenizer is a value that is cheap to copy; all its functions may be called by several threads
// at once. What it learns about words (a cache of up to a few MiB for each thread at work) is
// shared between copies. So are the buffers of each thread, which stay as large as the longest text
// needed until the last copy is destroyed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace echelon {

namespace tok {
struct Parts;
}

// Bytes of the text. Both are 0 for tokens that are not in the text, such as [CLS].
struct TokenSpan {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const TokenSpan&) const = default;
};

struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> types;  // 1 for the second text of BERT's pairs, otherwise 0
  std::vector<TokenSpan> spans;     // only with EncodeOptions::spans
};

// Lengths in the file's sections "truncation" and "padding" do not count: they are given here.
// Which end is cut or padded, and with what, is in those sections.
struct EncodeOptions {
  bool special = true;          // add the special tokens of the template, such as [CLS] and [SEP]
  std::int64_t max_length = 0;  // cut to this many tokens, special ones included; 0: never
  std::int64_t pad_to = 0;      // fill up to this many with the padding token; 0: never
  bool spans = false;
};

// Ids; nothing where the tokeniser has no such token.
struct SpecialTokens {
  std::optional<std::int32_t> padding, unknown, begin, end, classifier, separator, mask;
};

class Tokenizer {
 public:
  // A folder, or a tokenizer.json. Throws InvalidArgument if there is none or it needs a part that
  // is not supported, Corrupt if a file is damaged; both name file and place.
  static Tokenizer open(const std::filesystem::path& folder_or_json);

  // Throw InvalidArgument, with the offset, for text that is not UTF-8, and for a max_length
  // without room for the special tokens.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_pair(std::string_view first, std::string_view second,
                       const EncodeOptions& options = {}) const;
  // The same as encode() for each text, on so many threads; 0: one for each core.
  std::vector<Encoding> encode_all(std::span<const std::string_view> texts,
                                   const EncodeOptions& options = {}, int threads = 0) const;
  // Appends the ids of a text without special tokens around it: what a corpus consists of. A text
  // that `continues` another one does not get what is put before a text: the normalizer Prepend and
  // add_prefix_space.
  void append(std::string_view text, std::vector<std::int32_t>& ids, bool continues = false) const;

  // The special tokens that encode() puts before and behind a text.
  struct Ends {
    std::vector<std::int32_t> before, behind;
  };
  Ends ends() const;

  // Ids that no token has are left out. Always UTF-8: bytes that are none become U+FFFD.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  std::int64_t size() const;  // 1 + the largest id
  std::optional<std::int32_t> id(std::string_view token) const;
  std::string_view token(std::int32_t id) const;  // empty: no token has this id
  const SpecialTokens& special() const;
  // A checksum of its files, for fingerprints.
  const std::string& digest() const;
  // What belongs beside weights so that open() of their folder gives the same tokeniser; each under
  // the name that name_in_folder() gives.
  const std::vector<std::filesystem::path>& files() const;
  // tokenizer.json for a file that was opened by another name; otherwise the file's own name.
  std::filesystem::path name_in_folder(const std::filesystem::path& file) const;

 private:
  explicit Tokenizer(std::shared_ptr<const tok::Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const tok::Parts> parts_;
};

// Whether open() would find files there; they may still be refused.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace echelon
