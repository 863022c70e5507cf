#include "echelon/base/glob.h"

#include <algorithm>

namespace echelon {

// Only the last * may have to take more characters: an earlier one has taken as few as it could.
bool glob_matches(std::string_view pattern, std::string_view name) {
  constexpr auto none = std::string_view::npos;
  std::size_t p = 0, n = 0, star = none, taken = 0;  // `taken`: the end of what the last * took
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != none) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == none;
}

namespace {

// The length of the longest run of characters in both, without any *.
std::size_t longest_common(std::string_view a, std::string_view b) {
  std::vector<std::size_t> lengths(b.size() + 1, 0);  // of runs that end before b[j]
  std::size_t longest = 0;
  for (const char c : a)
    for (std::size_t j = b.size(); j > 0; --j) {
      lengths[j] = c != '*' && c == b[j - 1] ? lengths[j - 1] + 1 : 0;
      longest = std::max(longest, lengths[j]);
    }
  return longest;
}

}  // namespace

std::vector<std::string> near_names(std::string_view pattern, const std::vector<std::string>& names,
                                    std::size_t most) {
  constexpr std::size_t alike = 3;
  std::size_t longest = 0;
  std::vector<std::size_t> common;
  for (const auto& name : names) {
    common.push_back(longest_common(pattern, name));
    longest = std::max(longest, common.back());
  }
  std::vector<std::string> near;
  for (std::size_t i = 0; i < names.size() && longest >= alike && near.size() < most; ++i)
    if (common[i] == longest) near.push_back(names[i]);
  return near;
}

}  // namespace echelon
