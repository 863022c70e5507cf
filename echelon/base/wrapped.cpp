#include "echelon/base/wrapped.h"

#include <algorithm>

namespace echelon {
namespace {

constexpr std::size_t widest = 80;

std::size_t columns(std::string_view utf8) {
  return std::size_t(std::ranges::count_if(
      utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string wrapped(std::string_view first, std::string_view text, std::size_t indent) {
  std::string lines, line(first);
  bool blank = true;  // no word of the text is on the line yet
  const auto end_line = [&] {
    lines += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    line = std::string(indent, ' ');
    blank = true;
  };
  text = text.substr(0, text.find_last_not_of(" \n") + 1);
  for (std::size_t at = 0; at < text.size();) {
    // A word with the blanks before it.
    const auto begin = std::min(text.find_first_not_of(' ', at), text.size()),
               end = std::min(text.find_first_of(" \n", begin), text.size());
    auto word = text.substr(at, end - at);
    if (!blank && columns(line) + columns(word) > widest) {
      end_line();
      word = text.substr(begin, end - begin);
    }
    line += word;
    blank = blank && begin == end;
    at = end;
    if (at < text.size() && text[at] == '\n') {
      end_line();
      ++at;
    }
  }
  end_line();
  return lines;
}

}  // namespace echelon
