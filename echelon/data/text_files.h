// The files of a text, and whether they still are what they were.
//
// Of every block of a file (1 MiB) a checksum is kept once it was read for the digest, 8 bytes
// each. A read of a file whose stamp is still the same is a plain read. After a change the blocks
// that are asked for are compared with their checksums: at most two for a sample, so that no step
// waits for a whole file to be read again. Each is compared once for every change.
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
    std::uint64_t size;                    // at first; a file may grow
    FileStamp stamp;                       // as it was seen last
    std::vector<std::uint64_t> sums = {};  // of its blocks, as far as they were read for the digest
    // By block: not compared with its sum since the stamp is another. Empty: there was no change.
    std::vector<bool> changed = {};

    std::size_t blocks() const;
    bool changed_in(std::uint64_t begin, std::uint64_t end) const;
  };
  using Open = std::list<std::pair<std::size_t, InputFile>>;

  const InputFile& opened(std::size_t file);
  // Until the next call.
  std::span<const std::byte> read_block(const File& file, const InputFile& source,
                                        std::size_t block);
  // `now` is a stamp from before.
  void read_compared(File& file, const InputFile& source, const FileStamp& now, std::uint64_t begin,
                     std::span<std::byte> out);

  std::mutex mutex_;  // of all below
  std::vector<File> files_;
  std::vector<std::int64_t> ends_;      // of each file in the sequence
  Open open_;                           // the one used last is the last
  std::vector<Open::iterator> places_;  // of each file in `open_`; its end: not open
  std::size_t digested_ = 0;            // files that were read for the digest
  std::vector<std::byte> block_;
};

}  // namespace echelon
