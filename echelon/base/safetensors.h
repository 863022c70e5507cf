// The safetensors container (no torch): an 8-byte little-endian header length, a JSON header, then
// the bytes of the tensors without holes. docs/formats.md describes the layout.
//
// The reader follows the format's rules to the letter and rejects anything else with Corrupt,
// naming the file and what is wrong: header of at most 100 MB that begins with '{', no duplicate
// keys, known types, shapes whose product does not overflow and agrees with the byte range, ranges
// that cover the data exactly (no hole, no overlap), and a file that ends where the data ends.
// `__metadata__` maps strings to strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/input_file.h"

namespace echelon::safetensors {

struct Entry {
  std::string name;
  std::string dtype;  // "F32", "BF16", ... as the format writes it
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // byte range within the data part
  std::uint64_t end = 0;
};

using Metadata = std::map<std::string, std::string>;

// Bytes of one element; 0 for an unknown type.
std::size_t element_size(std::string_view dtype);

struct Header {
  std::vector<Entry> entries;  // by offset
  Metadata metadata;
  std::uint64_t data_offset = 0;  // where the data part begins in the file
};

// Parses and checks the header without reading the data. `file` holds the beginning of a file of
// `file_bytes`, at least to the end of its header. `where` names the source in errors.
Header parse_header(std::span<const std::byte> file, std::uint64_t file_bytes,
                    std::string_view where);

// A file that is open for reading. Its header is in memory; tensors are read when they are asked
// for.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);

  const Header& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  const Entry* find(std::string_view name) const;  // nullptr when absent
  // Fills `out` with the first bytes of the entry. Throws Error if the file has become too short.
  void read(const Entry& entry, std::span<std::byte> out) const;

 private:
  InputFile file_;
  Header header_;
  std::vector<std::size_t> by_name_;  // positions in header_.entries
};

// Writes a file whole (see write_file). `entries` need name, dtype and shape; byte ranges are laid
// out in the given order; ordering by alignment is up to the caller. `bytes(i)` returns the
// contents of entry i and is called once for each entry in order, so that only one tensor needs to
// be in memory at a time.
void write(const std::filesystem::path& path, std::vector<Entry> entries, const Metadata& metadata,
           const std::function<std::span<const std::byte>(std::size_t)>& bytes);

}  // namespace echelon::safetensors
