// Listing a folder, and removing it recursively.
//
// std::filesystem's iterators and remove_all are used nowhere in Echelon: PyTorch's packages export
// copies of them (a known defect). A program then binds some calls to those copies and some to its
// own standard library, and crashes where the two differ (seen with GCC 13).
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace echelon {

struct FolderEntry {
  std::string name;
  bool is_folder = false;  // or a link to one
  bool is_file = false;    // a regular one, or a link to one
  bool is_link = false;
};

// Sorted by name, without "." and "..". If the folder cannot be read, the list is empty and `error`
// is set.
[[nodiscard]] std::vector<FolderEntry> list_folder(const std::filesystem::path& folder,
                                                   std::error_code& error);

// Removes a file, or a folder recursively. Symbolic links are removed, not followed. A missing path
// is not an error. Continues after a failure and returns the first one.
std::error_code remove_whole(const std::filesystem::path& path);

}  // namespace echelon
