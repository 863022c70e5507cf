// A folder of a test's own, removed with everything in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "echelon/base/folder.h"

namespace echelon {

class ScratchFolder {
 public:
  ScratchFolder() {
    auto name = (std::filesystem::temp_directory_path() / "echelon_test.XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { remove_whole(path_); }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  // The names in it: a test says with this that nothing was left behind.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    std::error_code error;
    for (auto& entry : list_folder(path_, error)) names.push_back(std::move(entry.name));
    if (error) throw std::system_error(error, path_.string());
    return names;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace echelon
