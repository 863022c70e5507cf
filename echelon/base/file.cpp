#include "echelon/base/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

namespace {

constexpr std::size_t buffer_bytes = 1 << 20;

[[noreturn]] void fail(std::string_view doing, const std::filesystem::path& path) {
  throw Error(with_errno(fmt::format("cannot {} {}", doing, path.string())));
}

// Repeats a system call that a signal has interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  // What close() says matters where data was written: network file systems report a full disk here.
  // After EINTR Linux has closed the descriptor all the same.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0 || errno == EINTR; }

 private:
  int fd_;
};

// ".name.XXXXXX" beside `path`, with six random characters.
std::filesystem::path name_aside(const std::filesystem::path& path, std::random_device& random) {
  constexpr std::string_view letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  constexpr std::size_t added = 8;  // two dots and six characters
  std::string name = "." + path.filename().string().substr(0, NAME_MAX - added) + ".";
  for (int i = 0; i < 6; ++i) name += letters[random() % letters.size()];
  return path.parent_path() / name;
}

// A file that is being written aside; it is removed unless it was committed.
class AsideFile final : public FileWriter {
 public:
  // Not mkstemp: its files are 0600, and umask, which the final file should respect, cannot be read
  // without changing it for every thread.
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

  explicit AsideFile(const std::filesystem::path& path)
      : path_(path), file_(create(path, aside_)) {}
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

  // The rename is durable only when the folder is. Some file systems cannot fsync a folder (EINVAL)
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

  // The size is a hint only: files of /proc say 0, and others may grow.
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

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: the open of a pipe must not wait for its other end.
  const Descriptor fd(
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (fd.get() < 0) fail("open", path);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) fail("open", path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("cannot map {}: this is no regular file", path.string()));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses a length of zero
  void* const start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (start == MAP_FAILED) fail("map", path);
  bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  // `other` takes what this held, and unmaps it when it goes.
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void require_place_for(const std::filesystem::path& file, const char* option) {
  const auto folder = file.parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    throw InvalidArgument(fmt::format("{}: there is no folder {}", option, folder.string()));
  if (std::filesystem::is_directory(file))
    throw InvalidArgument(fmt::format("{}: {} is a folder; give a file", option, file.string()));
}

}  // namespace echelon
