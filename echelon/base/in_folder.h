// The working folder of the process, as long as this lives. Throws
// std::filesystem::filesystem_error if it cannot be entered.
#pragma once

#include <filesystem>
#include <system_error>

namespace echelon {

class InFolder {
 public:
  explicit InFolder(const std::filesystem::path& folder)
      : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder);
  }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  ~InFolder() {
    std::error_code gone;
    std::filesystem::current_path(before_, gone);
  }

 private:
  std::filesystem::path before_;
};

}  // namespace echelon
