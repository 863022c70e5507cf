#include "echelon/data/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr std::size_t most_open = 32;           // a process may commonly have 1,024
constexpr std::uint64_t piece = std::uint64_t{1} << 20;  // read at a time for a digest

std::uint64_t combined(std::uint64_t a, std::uint64_t b) {
  const std::array<std::uint64_t, 2> both = {a, b};
  return checksum(std::as_bytes(std::span(both)));
}

}  // namespace

Text::Files::Files(const std::vector<std::filesystem::path>& paths) {
  std::int64_t end = 0;
  for (const auto& path : paths) {
    const FileStamp stamp = InputFile(path).stamp();
    files_.push_back({.path = path, .size = stamp.size, .stamp = stamp, .digest = {}});
    ends_.push_back(end += static_cast<std::int64_t>(stamp.size));
  }
}

const InputFile& Text::Files::opened(std::size_t file) {
  for (const auto& [index, open] : open_)
    if (index == file) return open;
  if (open_.size() == most_open) open_.pop_front();
  return open_.emplace_back(file, files_[file].path).second;
}

bool Text::Files::digest_on(const InputFile& file, std::uint64_t size, Progress& progress,
                            const Deadline& until) {
  std::vector<std::byte> bytes(std::min(piece, size));
  while (progress.offset < size) {
    if (until.expired()) return false;
    const auto n = std::min(piece, size - progress.offset);
    const auto part = std::span(bytes).first(n);
    file.read(progress.offset, part);
    progress.sum = combined(progress.sum, checksum(part));
    progress.offset += n;
  }
  return true;
}

// After bytes were read: are they those that the text began with?
void Text::Files::check(std::size_t file, const InputFile& opened) {
  File& known = files_[file];
  const FileStamp now = opened.stamp();
  if (now == known.stamp || !known.unchecked.expired()) return;
  const auto began = Deadline::Clock::now();
  Progress again;
  // Without a digest nothing can be said for it.
  const bool same = known.digest && now.size >= known.size &&
                    digest_on(opened, known.size, again, Deadline::never()) &&
                    again.sum == *known.digest;
  if (!same)
    throw Error(fmt::format(
        "{} was changed while the job was reading it: it has {}; leave it as it is until the job "
        "has ended, and put the former text back to go on",
        known.path.string(),
        now.size == known.size ? "other text now"
                               : fmt::format("{} bytes now, and had {}", now.size, known.size)));
  known.stamp = now;
  known.unchecked = Deadline::in(100 * (Deadline::Clock::now() - began));
}

void Text::Files::read(std::int64_t offset, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) -
                                       ends_.begin());
  for (; !out.empty(); ++file) {
    const auto size = files_[file].size;
    const auto begin =
        static_cast<std::uint64_t>(offset - (ends_[file] - static_cast<std::int64_t>(size)));
    const auto n = std::min<std::uint64_t>(out.size(), size - begin);
    if (n == 0) continue;
    const InputFile& source = opened(file);
    source.read(begin, out.first(n));
    check(file, source);
    out = out.subspan(n);
    offset += static_cast<std::int64_t>(n);
  }
}

bool Text::Files::read_for_digest(const Deadline& until) {
  const std::lock_guard lock(mutex_);
  for (auto& at = progress_; at.file < files_.size(); at = {.file = at.file + 1}) {
    const InputFile& source = opened(at.file);
    if (!digest_on(source, files_[at.file].size, at, until)) return false;
    check(at.file, source);
    files_[at.file].digest = at.sum;
  }
  return true;
}

std::uint64_t Text::Files::digest() {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = files_.size();
  for (const auto& file : files_) {
    if (!file.digest) throw Error("a digest was asked for before the text was read for it");
    sum = combined(sum, combined(file.size, *file.digest));
  }
  return sum;
}

}  // namespace echelon
