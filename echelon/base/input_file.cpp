#include "echelon/base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "echelon/base/error.h"

namespace echelon {
namespace {

struct stat status_of(const Descriptor& descriptor, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0)
    throw Error(with_errno(fmt::format("cannot read {}", path.string())));
  return status;
}

}  // namespace

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)),
      // O_NONBLOCK: opening a pipe must not wait for its other end.
      descriptor_(uninterrupted(
          [this] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })) {
  if (!descriptor_) throw Error(with_errno(fmt::format("cannot open {}", path_.string())));
  const auto status = status_of(descriptor_, path_);
  if (!S_ISREG(status.st_mode))
    throw Error(fmt::format("cannot read {}: this is no regular file", path_.string()));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileStamp InputFile::stamp() const {
  const auto status = status_of(descriptor_, path_);
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          std::int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto got = uninterrupted([&] {
      return ::pread(descriptor_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    });
    if (got < 0) throw Error(with_errno(fmt::format("cannot read {}", path_.string())));
    if (got == 0)
      throw Error(
          fmt::format("{} has become shorter while it was being read: it had {} bytes, and there "
                      "are none at {} any more; leave it as it is until the job has ended",
                      path_.string(), size_, offset));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace echelon
