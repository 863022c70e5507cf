// The files of a text, and the detection of changes to them.
//
// Once a block of a file (1 MiB) was read for the digest, its checksum is kept (8 bytes). A file
// whose stamp is the same is read directly. After a change, the requested blocks are compared with
// their checksums: at most two per sample, so that no step waits for a whole file to be read again.
// Each block is compared once per change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/base/input_file.h"
#include "echelon/data/text.h"

namespace echelon {

class Text::Files {
 public:
  explicit Files(const std::vector<std::filesystem::path>& paths);

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  void read(std::int64_t offset, std::span<std::byte> out);
  bool read_for_digest(const Deadline& until);
  std::uint64_t digest();
  std::uint64_t stamp();
  std::vector<std::uint64_t> sums();
  void take_sums(std::span<const std::uint64_t> sums);

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t size;                    // at the start; a file may grow
    FileStamp stamp;                       // as last seen
    std::vector<std::uint64_t> sums = {};  // checksums of blocks read for the digest
    // By block: whether it must still be compared since the last change. Empty: no change.
    std::vector<bool> changed = {};

    std::size_t blocks() const;
    bool changed_in(std::uint64_t begin, std::uint64_t end) const;
  };
  using Open = std::list<std::pair<std::size_t, InputFile>>;

  const InputFile& opened(std::size_t file);
  // Valid until the next call.
  std::span<const std::byte> read_block(const File& file, const InputFile& source,
                                        std::size_t block);
  // `now` is a stamp taken before.
  void read_compared(File& file, const InputFile& source, const FileStamp& now, std::uint64_t begin,
                     std::span<std::byte> out);

  std::mutex mutex_;  // guards all below
  std::vector<File> files_;
  std::vector<std::int64_t> ends_;      // of each file in the sequence
  Open open_;                           // most recently used last
  std::vector<Open::iterator> places_;  // of each file in `open_`; end(): not open
  std::size_t digested_ = 0;            // files that were read for the digest
  std::vector<std::byte> block_;
};

}  // namespace echelon
