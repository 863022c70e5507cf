#include "echelon/base/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/folder.h"

namespace echelon {
namespace {

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs space = {};
  if (::statvfs(folder.c_str(), &space) != 0) return 0;
  return std::uint64_t(space.f_bavail) * space.f_frsize;
}

}  // namespace

std::string why_no_room(const std::filesystem::path& folder, std::uint64_t bytes,
                        std::string_view ending) {
  struct stat about = {};
  if (::stat(folder.c_str(), &about) != 0 || !S_ISDIR(about.st_mode))
    return fmt::format("{} is no folder; make it, or give another", folder.string());
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return fmt::format("{} cannot be written: {}; give a folder that can", folder.string(),
                       std::strerror(errno));
  std::uint64_t free = free_bytes(folder);
  std::error_code unread;
  for (const auto& entry : list_folder(folder, unread))
    if (entry.is_file && entry.name.ends_with(ending) &&
        ::stat((folder / entry.name).c_str(), &about) == 0)
      free += std::uint64_t(about.st_blocks) * 512;
  if (free < bytes)
    return fmt::format("{}: needs {} on disk and {} are free there; give a folder with more room",
                       folder.string(), human_bytes(bytes), human_bytes(free));
  return {};
}

BlockFile::BlockFile(std::filesystem::path path, std::uint64_t bytes,
                     std::unique_ptr<BlockEngine> engine)
    : path_(std::move(path)), bytes_(aligned(bytes)), engine_(std::move(engine)) {
  open_locked();
  // Only the holder may remove the file, and only if it created it.
  const auto refuse = [&](const std::string& why) {
    if (made_) ::unlink(path_.c_str());
    ::close(descriptor_);
    throw InvalidArgument(fmt::format("{}: {}", path_.string(), why));
  };
  struct stat now = {};
  if (::fstat(descriptor_, &now) != 0) refuse(std::strerror(errno));
  const std::uint64_t has = std::uint64_t(now.st_blocks) * 512;
  if (const auto free = free_bytes(path_.parent_path()); has < bytes_ && free < bytes_ - has)
    refuse(fmt::format("needs {} on disk and {} are free there; give a folder with more room",
                       human_bytes(bytes_), human_bytes(free + has)));
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0) refuse(std::strerror(errno));
  try {
    reserve();
  } catch (const Error&) {
    if (made_) ::unlink(path_.c_str());
    ::close(descriptor_);
    throw;
  }
  if (!engine_) engine_ = uring_engine();
  if (!engine_) engine_ = thread_engine();
}

// Another process may create, lock or remove the file at any time. What matters is that the locked
// file still has the name; only its holder may remove it.
void BlockFile::open_locked() {
  const auto refuse = [&](const std::string& why) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw InvalidArgument(fmt::format("{}: {}", path_.string(), why));
  };
  while (true) {
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC;
    descriptor_ = ::open(path_.c_str(), flags | O_EXCL, 0600);
    made_ = descriptor_ >= 0;
    if (!made_ && errno == EEXIST) descriptor_ = ::open(path_.c_str(), flags, 0600);
    if (descriptor_ < 0)
      refuse(fmt::format("cannot be written: {}; give a folder that can", std::strerror(errno)));
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0)
      refuse("another process is using it; give each job a folder of its own");
    struct stat locked = {}, named = {};
    if (::fstat(descriptor_, &locked) == 0 && ::stat(path_.c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino)
      break;
    ::close(descriptor_);
  }
  // Not every file system supports direct I/O.
  ::fcntl(descriptor_, F_SETFL, O_DIRECT);
}

void BlockFile::reserve() {
  const auto size = static_cast<off_t>(bytes_);
  if (::fallocate(descriptor_, 0, 0, size) == 0) return;
  // Some file systems allocate space only when it is written.
  if (errno == EOPNOTSUPP && ::ftruncate(descriptor_, size) == 0) return;
  throw InvalidArgument(fmt::format("{}: needs {} on disk: {}; give a folder with more room",
                                    path_.string(), human_bytes(bytes_), std::strerror(errno)));
}

void BlockFile::clear() {
  if (::ftruncate(descriptor_, 0) != 0)
    throw Error(fmt::format("{}: clearing it failed: {}", path_.string(), std::strerror(errno)));
  reserve();
}

BlockFile::~BlockFile() {
  // Memory that the kernel still writes to must not be freed before it is done, however long a bad
  // disk takes.
  for (auto& [ticket, request] : under_way_)
    while (!engine_->wait(*request, Deadline::in(std::chrono::minutes(1)))) {
    }
  engine_.reset();
  ::close(descriptor_);
}

BlockFile::Ticket BlockFile::begin(std::uint64_t offset, void* memory, std::size_t bytes,
                                   bool write) {
  if (offset % alignment != 0 || bytes % alignment != 0 ||
      reinterpret_cast<std::uintptr_t>(memory) % alignment != 0 || offset + bytes > bytes_)
    throw InvalidArgument(fmt::format("{}: {} bytes at {} are no whole blocks of the file's {}",
                                      path_.string(), bytes, offset, bytes_));
  auto request = std::make_unique<BlockRequest>(BlockRequest{.descriptor = descriptor_,
                                                             .write = write,
                                                             .offset = offset,
                                                             .memory = memory,
                                                             .bytes = bytes});
  BlockRequest& here = *request;
  under_way_.emplace(next_, std::move(request));
  engine_->begin(here);
  return next_++;
}

BlockFile::Ticket BlockFile::read(std::uint64_t offset, std::span<std::byte> into) {
  return begin(offset, into.data(), into.size(), false);
}

BlockFile::Ticket BlockFile::write(std::uint64_t offset, std::span<const std::byte> from) {
  return begin(offset, const_cast<std::byte*>(from.data()), from.size(), true);
}

void BlockFile::check(const BlockRequest& request) const {
  if (request.error != 0)
    throw Error(fmt::format("{}: {} {} bytes at {} failed: {}", path_.string(),
                            request.write ? "writing" : "reading", request.bytes, request.offset,
                            std::strerror(request.error)));
}

bool BlockFile::done(Ticket ticket) {
  const auto it = under_way_.find(ticket);
  return it == under_way_.end() || engine_->wait(*it->second, Deadline::in({}));
}

void BlockFile::wait(Ticket ticket) {
  const auto it = under_way_.find(ticket);
  if (it == under_way_.end()) return;
  if (!engine_->wait(*it->second, Deadline::in(std::chrono::minutes(1))))
    throw Timeout(fmt::format("{}: {} {} bytes at {} has taken a minute", path_.string(),
                              it->second->write ? "writing" : "reading", it->second->bytes,
                              it->second->offset));
  const auto request = std::move(it->second);
  under_way_.erase(it);
  check(*request);
}

void BlockFile::remove() { ::unlink(path_.c_str()); }

}  // namespace echelon
