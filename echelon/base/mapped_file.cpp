#include "echelon/base/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "echelon/base/error.h"

namespace echelon {

MappedFile::MappedFile(std::filesystem::path path) : file_(std::move(path)), stamp_(file_.stamp()) {
  if (stamp_.size == 0) return;  // nothing to map, and mmap refuses it
  void* const at =
      ::mmap(nullptr, stamp_.size, PROT_READ, MAP_PRIVATE, file_.descriptor(), /*offset=*/0);
  if (at == MAP_FAILED)
    throw Error(with_errno(fmt::format("cannot map {}", file_.path().string())));
  bytes_ = {static_cast<const std::byte*>(at), stamp_.size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::require_unchanged() const {
  const FileStamp now = file_.stamp();
  if (now == stamp_) return;
  throw Error(fmt::format(
      "{} was changed while it was being read{}; leave it as it is until the job has ended",
      path().string(),
      now.size == stamp_.size
          ? std::string()
          : fmt::format(": it had {} bytes and has {} now", stamp_.size, now.size)));
}

}  // namespace echelon
