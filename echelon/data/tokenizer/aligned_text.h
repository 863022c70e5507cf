// A text on its way to the model: its bytes now, and if spans are wanted, which bytes of the
// original each came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {

struct AlignedText {
  std::string bytes;
  std::vector<TokenSpan> spans;  // of each byte; empty without `aligned`
  std::uint32_t base = 0;        // where the text begins in the original
  bool aligned = false;
  std::size_t original_size = 0;  // bytes, before it was changed

  void assign(std::string_view original, std::uint32_t begin, bool with_spans) {
    bytes = original;
    spans.clear();
    base = begin;
    aligned = with_spans;
    original_size = original.size();
    if (!aligned) return;
    for (std::size_t at = 0; at < original.size();) {
      const std::uint32_t size = decode_utf8(original.data() + at).size;
      const auto first = base + std::uint32_t(at);
      spans.insert(spans.end(), size, TokenSpan{first, first + size});
      at += size;
    }
  }
};

// Writes a text anew, one code point after the other. Each says what it does to the old text, which
// decides its span: it replaces the next code point (0), replaces that and removes n behind it
// (-n), or is inserted (above 0), which gives it the span of what is before it in the old text.
class TextWriter {
 public:
  TextWriter(AlignedText& text, AlignedText& spare) : from_(text), to_(spare) {
    to_.bytes.clear();
    to_.spans.clear();
    to_.base = from_.base;
    to_.aligned = from_.aligned;
    to_.original_size = from_.original_size;
  }

  // Leaves out code points of the old text.
  void skip(std::size_t count) {
    if (!from_.aligned) return;
    for (; count > 0 && at_ < from_.bytes.size(); --count) at_ += step();
  }

  void put(std::uint32_t code_point, int change) {
    append_utf8(to_.bytes, code_point);
    if (!from_.aligned) return;
    TokenSpan span{from_.base, from_.base};
    if (change > 0 || at_ >= from_.spans.size()) {
      if (at_ > 0) span = from_.spans[at_ - 1];
    } else {
      span = from_.spans[at_];
    }
    if (change <= 0) skip(std::size_t(1 - change));
    to_.spans.insert(to_.spans.end(), utf8_size(code_point), span);
  }

  // The new text is complete.
  void finish() { std::swap(from_, to_); }

 private:
  std::size_t step() const { return decode_utf8(from_.bytes.data() + at_).size; }

  AlignedText& from_;
  AlignedText& to_;
  std::size_t at_ = 0;
};

// Calls do_with(code_point) for each.
template <typename F>
void for_each_code_point(std::string_view text, F&& do_with) {
  for (std::size_t at = 0; at < text.size();) {
    const Decoded point = decode_utf8(text.data() + at);
    do_with(point.code_point);
    at += point.size;
  }
}

}  // namespace echelon::tok
