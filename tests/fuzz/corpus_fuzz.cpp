// Corpora. The first byte of an input chooses whether the rest is a shard or a description of a
// corpus. Whatever is accepted is read to its end; what is written must be read back.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/descriptor.h"
#include "echelon/base/error.h"
#include "echelon/data/corpus/corpus.h"
#include "echelon/data/corpus/token_shard.h"

namespace {

[[noreturn]] void complain(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// A file in memory, with a path.
class MemoryFile : public echelon::FileWriter {
 public:
  using FileWriter::write;
  void write(std::span<const std::byte> bytes) override {
    if (::write(file_.get(), bytes.data(), bytes.size()) != ssize_t(bytes.size()))
      complain("no memory");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  echelon::Descriptor file_{::memfd_create("shard", MFD_CLOEXEC)};
};

void read_all(const std::string& path, std::int64_t vocab) {
  const echelon::TokenShard shard(path);
  std::int64_t sum = 0;
  bool whole = true;
  for (std::int64_t i = 0; i < shard.totals().documents; ++i) {
    try {
      std::vector<std::int64_t> tokens(std::size_t(shard.length(i)));
      shard.read(i, 0, vocab, tokens);
      sum += std::int64_t(tokens.size());
      for (const auto token : tokens)
        if (token < 0 || token >= vocab) complain("a token beyond the vocabulary");
    } catch (const echelon::Corrupt&) {
      whole = false;
    }
  }
  if (whole && sum != shard.totals().tokens) complain("documents that are not all tokens");
  echelon::BlockChecksum checksum;
  for (std::int64_t block = 0; shard.add_block(block, checksum); ++block) {
  }
  shard.verify(checksum);
}

void read_shard(std::string_view bytes, std::int64_t vocab) {
  MemoryFile file;
  file.write(bytes);
  try {
    read_all(file.path(), vocab);
  } catch (const echelon::Corrupt&) {
  }
}

// The bytes are the lengths of documents.
void write_shard(std::string_view lengths, int token_bytes) {
  MemoryFile file;
  echelon::TokenShardWriter writer(file, token_bytes);
  for (const char length : lengths) {
    writer.add(std::vector<std::int32_t>(std::size_t(std::uint8_t(length)), 7));
    writer.end_document();
  }
  writer.finish();
  read_all(file.path(), 8);
}

void describe(std::string_view json) {
  echelon::CorpusDescription description;
  try {
    description = echelon::CorpusDescription::parse(json, "input");
  } catch (const echelon::Corrupt&) {
    return;
  }
  const std::string written = description.to_json();
  if (echelon::CorpusDescription::parse(written, "again").to_json() != written)
    complain("a description is not read as it is written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  switch (bytes[0] % 4) {
    case 0:
      read_shard(rest, 100);
      break;
    case 1:
      read_shard(rest, std::int64_t{1} << 31);
      break;
    case 2:
      write_shard(rest, bytes[0] & 64 ? 4 : 2);
      break;
    default:
      describe(rest);
  }
  return 0;
}
