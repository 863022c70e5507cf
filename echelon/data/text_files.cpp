#include "echelon/data/text_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ranges>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr std::uint64_t block_size = std::uint64_t{1} << 20;

// A quarter of the process's limit: a job has two texts, and connections too.
std::size_t most_open() {
  constexpr rlim_t least = 8, most = 2048;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return least;
  return static_cast<std::size_t>(std::clamp(limit.rlim_cur / 4, least, most));
}

std::uint64_t combined(std::uint64_t a, std::uint64_t b) {
  const std::array<std::uint64_t, 2> both = {a, b};
  return checksum(std::as_bytes(std::span(both)));
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::uint64_t size, std::uint64_t now) {
  throw Error(fmt::format(
      "{} was changed while the job was reading it: it has {}; restore the former text to resume, and do "
      "not change it until the job has ended",
      path.string(),
      now == size ? "other text now" : fmt::format("{} bytes now, and had {}", now, size)));
}

}  // namespace

std::size_t Text::Files::File::blocks() const { return (size + block_size - 1) / block_size; }

bool Text::Files::File::changed_in(std::uint64_t begin, std::uint64_t end) const {
  if (changed.empty()) return false;
  for (auto block = begin / block_size; block * block_size < end; ++block)
    if (changed[block]) return true;
  return false;
}

Text::Files::Files(const std::vector<std::filesystem::path>& paths) {
  std::int64_t end = 0;
  for (const auto& path : paths) {
    const FileStamp stamp = InputFile(path).stamp();
    files_.push_back({.path = path, .size = stamp.size, .stamp = stamp});
    ends_.push_back(end += static_cast<std::int64_t>(stamp.size));
  }
  places_.assign(files_.size(), open_.end());
}

const InputFile& Text::Files::opened(std::size_t file) {
  auto& place = places_[file];
  if (place != open_.end()) {
    open_.splice(open_.end(), open_, place);
    return place->second;
  }
  for (const auto most = most_open(); open_.size() >= most; open_.pop_front())
    places_[open_.front().first] = open_.end();
  open_.emplace_back(file, files_[file].path);
  place = std::prev(open_.end());
  return place->second;
}

std::span<const std::byte> Text::Files::read_block(const File& file, const InputFile& source,
                                                   std::size_t block) {
  const auto begin = block * block_size;
  block_.resize(std::min(block_size, file.size - begin));
  source.read(begin, block_);
  return block_;
}

// Returns the bytes that were compared: the file may change again meanwhile.
void Text::Files::read_compared(File& file, const InputFile& source, const FileStamp& now,
                                std::uint64_t begin, std::span<std::byte> out) {
  const bool known = file.sums.size() == file.blocks();
  if (!known || now.size < file.size) refuse(file.path, file.size, now.size);
  if (now != file.stamp) file.changed.assign(file.blocks(), true);
  file.stamp = now;
  while (!out.empty()) {
    const auto block = begin / block_size, offset = begin % block_size;
    const auto bytes = read_block(file, source, block);
    if (checksum(bytes) != file.sums[block]) refuse(file.path, file.size, now.size);
    file.changed[block] = false;
    const auto n = std::min<std::uint64_t>(out.size(), bytes.size() - offset);
    std::memcpy(out.data(), bytes.data() + offset, n);
    out = out.subspan(n);
    begin += n;
  }
}

void Text::Files::read(std::int64_t offset, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  auto index = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) -
                                        ends_.begin());
  for (; !out.empty(); ++index) {
    File& file = files_[index];
    const auto begin =
        static_cast<std::uint64_t>(offset - (ends_[index] - static_cast<std::int64_t>(file.size)));
    const auto n = std::min<std::uint64_t>(out.size(), file.size - begin);
    if (n == 0) continue;
    const InputFile& source = opened(index);
    source.read(begin, out.first(n));
    // If the stamp is the same afterwards, it was the same during the read.
    const FileStamp now = source.stamp();
    if (now != file.stamp || file.changed_in(begin, begin + n))
      read_compared(file, source, now, begin, out.first(n));
    out = out.subspan(n);
    offset += static_cast<std::int64_t>(n);
  }
}

bool Text::Files::read_for_digest(const Deadline& until) {
  const std::lock_guard lock(mutex_);
  for (; digested_ < files_.size(); ++digested_) {
    File& file = files_[digested_];
    const InputFile& source = opened(digested_);
    while (file.sums.size() < file.blocks()) {
      if (until.expired()) return false;
      file.sums.push_back(checksum(read_block(file, source, file.sums.size())));
    }
    // Without checksums of its former bytes, a changed file cannot be checked.
    if (const FileStamp now = source.stamp(); now != file.stamp)
      refuse(file.path, file.size, now.size);
  }
  return true;
}

std::uint64_t Text::Files::digest() {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = files_.size();
  for (const auto& file : files_) {
    if (file.sums.size() < file.blocks())
      throw Error("a digest was requested before the text was read for it");
    std::uint64_t all = 0;
    for (const auto one : file.sums) all = combined(all, one);
    sum = combined(sum, combined(file.size, all));
  }
  return sum;
}

std::uint64_t Text::Files::stamp() {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = files_.size();
  for (const auto& [device, inode, size, changed] : files_ | std::views::transform(&File::stamp))
    sum = combined(combined(sum, combined(device, inode)),
                   combined(size, static_cast<std::uint64_t>(changed)));
  return sum;
}

std::vector<std::uint64_t> Text::Files::sums() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> all;
  for (const auto& file : files_) {
    all.insert(all.end(), file.sums.begin(), file.sums.end());
    all.resize(all.size() + file.blocks() - file.sums.size());
  }
  return all;
}

void Text::Files::take_sums(std::span<const std::uint64_t> sums) {
  const std::lock_guard lock(mutex_);
  for (auto& file : files_) {
    const auto mine = sums.first(file.blocks());
    file.sums.assign(mine.begin(), mine.end());
    sums = sums.subspan(mine.size());
  }
  digested_ = files_.size();
}

}  // namespace echelon
