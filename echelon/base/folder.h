// What is in a folder, and how it goes away with all of it.
//
// std::filesystem's iterators and remove_all are used nowhere in Echelon: PyTorch's packages export
// copies of them, a defect its authors know. A program takes some of its calls from there and some
// from its own standard library, and where the two differ (seen with GCC 13) it dies.
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

// Sorted by name, without "." and "..". Where the folder cannot be read: empty, and `error` says
// why.
[[nodiscard]] std::vector<FolderEntry> list_folder(const std::filesystem::path& folder,
                                                   std::error_code& error);

// Removes a file, or a folder with everything in it; a link goes, what it leads to stays. It is no
// error when nothing is there. What cannot be removed stays, and the first reason comes back.
std::error_code remove_whole(const std::filesystem::path& path);

}  // namespace echelon
