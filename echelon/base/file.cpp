#include "echelon/base/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "echelon/base/descriptor.h"
#include "echelon/base/error.h"
#include "echelon/base/folder.h"

namespace echelon {

namespace {

constexpr std::size_t buffer_bytes = 1 << 20;

[[noreturn]] void fail(std::string_view doing, const std::filesystem::path& path) {
  throw Error(with_errno(fmt::format("cannot {} {}", doing, path.string())));
}

constexpr std::string_view letters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
constexpr std::size_t random_letters = 6;

// The prefix of the names of temporary files beside `path`; random letters follow.
std::string beginning_aside(const std::filesystem::path& path) {
  constexpr std::size_t added = 2 + random_letters;  // and two dots
  return "." + path.filename().string().substr(0, NAME_MAX - added) + ".";
}

std::filesystem::path name_aside(const std::filesystem::path& path, std::random_device& random) {
  std::string name = beginning_aside(path);
  for (std::size_t i = 0; i < random_letters; ++i) name += letters[random() % letters.size()];
  return path.parent_path() / name;
}

bool is_aside(const std::string& name, const std::string& beginning) {
  return name.size() == beginning.size() + random_letters && name.starts_with(beginning) &&
         name.find_first_not_of(letters, beginning.size()) == std::string::npos;
}

// A temporary file beside the final one. It is removed unless it was committed.
class AsideFile final : public FileWriter {
 public:
  // Not mkstemp: it creates files with mode 0600. The final file should respect the umask, which
  // cannot be read without changing it for every thread.
  static int create(const std::filesystem::path& path, std::filesystem::path& aside) {
    std::random_device random;
    for (int attempt = 0; attempt < 100; ++attempt) {
      aside = name_aside(path, random);
      const int fd = uninterrupted(
          [&] { return ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); });
      if (fd >= 0) return fd;
      if (errno != EEXIST) break;
    }
    fail("write", path);
  }

  // The lock shows that the file's writer is alive (remove_abandoned). On file systems without
  // locks, the file is never removed as abandoned.
  explicit AsideFile(const std::filesystem::path& path) : path_(path), file_(create(path, aside_)) {
    ::flock(file_.get(), LOCK_EX | LOCK_NB);
  }
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;
  ~AsideFile() {
    if (!committed_) ::unlink(aside_.c_str());
  }

  using FileWriter::write;
  void write(std::span<const std::byte> bytes) override {
    if (bytes.size() >= buffer_bytes) {
      flush();
      write_through(bytes);
      return;
    }
    if (buffer_.size() + bytes.size() > buffer_bytes) flush();
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  void commit() {
    flush();
    if (uninterrupted([&] { return ::fsync(file_.get()); }) != 0) fail("write", path_);
    if (!file_.close()) fail("write", path_);
    if (::rename(aside_.c_str(), path_.c_str()) != 0) fail("write", path_);
    committed_ = true;
    sync_folder();
  }

 private:
  void flush() {
    write_through(buffer_);
    buffer_.clear();
  }

  void write_through(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto wrote =
          uninterrupted([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
      if (wrote == 0) errno = ENOSPC;
      if (wrote <= 0) fail("write", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    }
  }

  // The rename is durable only once the folder is. Some file systems cannot fsync a folder (EINVAL)
  // and need not.
  void sync_folder() const {
    const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
    const Descriptor fd(
        uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (fd.get() < 0) fail("open the folder", folder);
    if (uninterrupted([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL)
      fail("write the folder", folder);
  }

  std::filesystem::path path_;
  std::filesystem::path aside_;
  Descriptor file_;
  std::vector<std::byte> buffer_;
  bool committed_ = false;
};

}  // namespace

void write_file(const std::filesystem::path& path, const std::function<void(FileWriter&)>& fill) {
  if (!path.has_filename()) {
    throw Error(fmt::format("cannot write {}: this is a folder, not a file name", path.string()));
  }
  AsideFile file(path);
  fill(file);
  file.commit();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, [&](FileWriter& file) { file.write(text); });
}

std::string read_file(const std::filesystem::path& path) {
  const Descriptor fd(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (fd.get() < 0) fail("read", path);

  // The size is only a hint: files in /proc report 0, and others may grow.
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) fail("read", path);
  std::string text(static_cast<std::size_t>(std::max<off_t>(status.st_size, 0)) + 4096, '\0');
  std::size_t size = 0;
  while (true) {
    if (size == text.size()) text.resize(2 * size);
    const auto got =
        uninterrupted([&] { return ::read(fd.get(), text.data() + size, text.size() - size); });
    if (got < 0) fail("read", path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

std::uint64_t remove_abandoned(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const std::string beginning = beginning_aside(path);
  std::uint64_t bytes = 0;
  std::error_code unread;
  for (const auto& entry : list_folder(folder, unread)) {
    if (!is_aside(entry.name, beginning)) continue;
    const auto aside = folder / entry.name;
    const Descriptor file(
        uninterrupted([&] { return ::open(aside.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW); }));
    struct stat status = {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        ::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
      continue;
    if (::unlink(aside.c_str()) == 0) bytes += static_cast<std::uint64_t>(status.st_size);
  }
  return bytes;
}

void require_place_for(const std::filesystem::path& file, const char* option) {
  const auto folder = file.parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    throw InvalidArgument(fmt::format("{}: there is no folder {}", option, folder.string()));
  if (std::filesystem::is_directory(file))
    throw InvalidArgument(fmt::format("{}: {} is a folder; give a file", option, file.string()));
}

}  // namespace echelon
