// The files of a text, and whether they still are what they were.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
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
  std::size_t count() const { return files_.size(); }
  void read(std::int64_t offset, std::span<std::byte> out);
  bool read_for_digest(const Deadline& until);
  std::uint64_t digest();

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t size;                   // at first; a file may grow
    FileStamp stamp;                      // when its bytes were last known to be those it had
    std::optional<std::uint64_t> digest;  // of them
    // A file that changes all the time (a log that grows) is not read whole again each time.
    Deadline unchecked = Deadline::in({});
  };
  // A digest on its way through a file.
  struct Progress {
    std::size_t file = 0;
    std::uint64_t offset = 0, sum = 0;
  };

  const InputFile& opened(std::size_t file);
  void check(std::size_t file, const InputFile& opened);
  // False: the deadline came first.
  bool digest_on(const InputFile& file, std::uint64_t size, Progress& progress,
                 const Deadline& until);

  std::mutex mutex_;  // of all below
  std::vector<File> files_;
  std::vector<std::int64_t> ends_;  // of each file in the sequence
  std::deque<std::pair<std::size_t, InputFile>> open_;  // the one opened last is the last
  Progress progress_;
};

}  // namespace echelon
