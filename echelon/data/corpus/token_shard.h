// A shard of a corpus: some of its documents as tokens, in one file. docs/formats.md describes it.
//
//   bytes 0-7     "ECTOKENS"
//   8-11, 12-15   version (1) and bytes of a token (2 or 4), little-endian like all numbers
//   16-           tokens of all documents, then zeros up to a multiple of 8
//                 the end of each document, counted in tokens: 8 bytes each
//   last 32       number of tokens, number of documents, checksum, "ECTOKEND"
//
// The checksum is of all bytes before it, in blocks of 1 MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "echelon/base/file.h"
#include "echelon/base/mapped_file.h"

namespace echelon {

// The checksum of a long sequence of bytes, block by block: sum = checksum(sum, checksum(block)).
class BlockChecksum {
 public:
  static constexpr std::size_t block = std::size_t{1} << 20;
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all bytes so far

 private:
  std::uint64_t sum_ = 0;
  std::vector<std::byte> rest_;  // of a block that is not full
};

struct ShardTotals {
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t checksum = 0;
  bool operator==(const ShardTotals&) const = default;
};

// Writes a shard from its beginning to its end; 8 bytes of memory for each document.
class TokenShardWriter {
 public:
  TokenShardWriter(FileWriter& file, int token_bytes);

  void add(std::span<const std::int32_t> tokens);  // to the present document
  void end_document();
  std::uint64_t bytes() const;  // of the file, if it ended now
  ShardTotals finish();         // after the last document

 private:
  void write(std::span<const std::byte> bytes);

  FileWriter& file_;
  int token_bytes_;
  BlockChecksum sum_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint64_t> ends_;
  std::vector<std::byte> narrow_;  // tokens as they are written
};

// A shard that is mapped. The lengths are checked when it is opened, the end of a document when it
// is read, and the bytes by verify(). Throws Corrupt with file and offset.
class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  const ShardTotals& totals() const { return totals_; }
  int token_bytes() const { return token_bytes_; }
  const std::filesystem::path& path() const { return file_.path(); }

  std::int64_t length(std::int64_t document) const;
  // Throws InvalidArgument past the end of the document, Corrupt for a token that is not below
  // `vocab`, and Error if the file was written to since it was opened.
  void read(std::int64_t document, std::int64_t first, std::int64_t vocab,
            std::span<std::int64_t> out) const;

  // Reads block `block` of the file into `sum`; false: there is no such block, and `sum` has all.
  bool add_block(std::int64_t block, BlockChecksum& sum) const;
  // Compares the sum of all blocks, and the ends of all documents.
  void verify(const BlockChecksum& sum) const;

 private:
  struct Extent {
    std::uint64_t begin, end;  // in tokens
  };
  Extent extent(std::int64_t document) const;
  std::uint64_t number(std::size_t offset) const;
  [[noreturn]] void refuse(std::size_t offset, const std::string& what) const;

  MappedFile file_;
  int token_bytes_ = 0;
  ShardTotals totals_;
  std::size_t ends_ = 0;  // where the ends of documents begin
};

}  // namespace echelon
