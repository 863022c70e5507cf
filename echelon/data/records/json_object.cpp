#include "echelon/data/records/json_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "echelon/base/utf8.h"

namespace echelon {
namespace {

constexpr int most_nested = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Four hexadecimal digits; -1 if they are none.
int code_unit(std::string_view text, std::size_t at) {
  int value = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const int digit = i < text.size() ? hex_value(text[i]) : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

bool is_high_surrogate(int unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low_surrogate(int unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Every function reads from `at_` and returns false once something is wrong.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Malformed object(const std::function<void(const JsonMember&)>& member) {
    blanks();
    if (next() != '{') {
      fail(at_ == text_.size() ? "there is no object" : "an object must begin with {");
      return wrong_;
    }
    if (!members(member)) return wrong_;
    blanks();
    if (at_ != text_.size()) fail("something follows the object");
    return wrong_;
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool fail(std::string what) {
    wrong_ = {at_, std::move(what)};
    return false;
  }
  void blanks() {
    while (next() == ' ' || next() == '\t' || next() == '\n' || next() == '\r') ++at_;
  }

  // From the opening to behind the closing bracket; one(kind of item) reads an item.
  template <class One>
  bool items(char closing, One one) {
    if (++nested_ > most_nested)
      return fail(fmt::format("values are nested over {} deep", most_nested));
    ++at_;
    blanks();
    if (next() != closing) {
      for (;;) {
        blanks();
        if (!one()) return false;
        blanks();
        if (next() == closing) break;
        if (next() != ',') return fail(fmt::format("a comma or {} is missing", closing));
        ++at_;
      }
    }
    ++at_;
    --nested_;
    return true;
  }

  bool members(const std::function<void(const JsonMember&)>& member) {
    return items('}', [&] {
      const std::size_t begin = at_;
      if (next() != '"') return fail("a key must be a string in quotes");
      if (!string()) return false;
      const std::string_view raw_key = text_.substr(begin, at_ - begin);
      blanks();
      if (next() != ':') return fail("a colon is missing after a key");
      ++at_;
      blanks();
      const std::size_t value_begin = at_;
      JsonKind kind = JsonKind::null;
      if (!value(kind)) return false;
      if (!member) return true;
      const bool plain = raw_key.find('\\') == raw_key.npos;
      const std::string decoded = plain ? std::string() : json_string(raw_key);
      member({plain ? raw_key.substr(1, raw_key.size() - 2) : std::string_view(decoded), kind,
              text_.substr(value_begin, at_ - value_begin)});
      return true;
    });
  }

  bool value(JsonKind& kind) {
    switch (next()) {
      case '"':
        kind = JsonKind::string;
        return string();
      case '{':
        kind = JsonKind::object;
        return members({});
      case '[':
        kind = JsonKind::array;
        return items(']', [this] {
          JsonKind any{};
          return value(any);
        });
      case 't':
        kind = JsonKind::boolean;
        return word("true");
      case 'f':
        kind = JsonKind::boolean;
        return word("false");
      case 'n':
        kind = JsonKind::null;
        return word("null");
      default:
        kind = JsonKind::number;
        return number();
    }
  }

  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return fail("a value is missing");
    at_ += expected.size();
    return true;
  }

  bool digits() {
    if (!is_digit(next())) return fail("a value is missing");
    while (is_digit(next())) ++at_;
    return true;
  }

  bool number() {
    if (next() == '-') ++at_;
    if (next() == '0' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))
      return fail("a number begins with 0");
    if (!digits()) return false;
    if (next() == '.') {
      ++at_;
      if (!digits()) return false;
    }
    if (next() == 'e' || next() == 'E') {
      ++at_;
      if (next() == '+' || next() == '-') ++at_;
      if (!digits()) return false;
    }
    return true;
  }

  bool string() {
    ++at_;
    for (;;) {
      if (at_ == text_.size()) return fail("a string is not closed");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character is in a string");
      if (c == '\\' && !escape()) return false;
      if (c == '\\') continue;
      ++at_;
      if (c == '"') return true;
    }
  }

  bool escape() {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (c != 'u') {
      if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos || c == '\0')
        return fail("a backslash begins no escape of JSON");
      at_ += 2;
      return true;
    }
    const int unit = code_unit(text_, at_ + 2);
    if (unit < 0) return fail("\\u must be followed by four hexadecimal digits");
    if (is_low_surrogate(unit)) return fail("an escape is half of a surrogate pair");
    if (is_high_surrogate(unit)) {
      const bool escaped = text_.substr(std::min(at_ + 6, text_.size()), 2) == "\\u";
      if (!escaped || !is_low_surrogate(code_unit(text_, at_ + 8)))
        return fail("an escape is half of a surrogate pair");
      at_ += 6;
    }
    at_ += 6;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int nested_ = 0;
  Malformed wrong_;
};

}  // namespace

Malformed read_json_object(std::string_view text,
                           const std::function<void(const JsonMember& member)>& member) {
  return Reader(text).object(member);
}

std::string json_string(std::string_view raw) {
  raw = raw.substr(1, raw.size() - 2);
  std::string text;
  text.reserve(raw.size());
  for (std::size_t at = 0; at < raw.size();) {
    const auto end = std::min(raw.find('\\', at), raw.size());
    text.append(raw, at, end - at);
    if (end == raw.size()) break;
    const char c = raw[end + 1];
    at = end + 2;
    if (c == 'u') {
      std::uint32_t point = std::uint32_t(code_unit(raw, at));
      at += 4;
      if (is_high_surrogate(int(point))) {
        point =
            0x10000 + ((point - 0xD800) << 10) + (std::uint32_t(code_unit(raw, at + 2)) - 0xDC00);
        at += 6;
      }
      append_utf8(text, point);
    } else {
      text.push_back(c == 'b'   ? '\b'
                     : c == 'f' ? '\f'
                     : c == 'n' ? '\n'
                     : c == 'r' ? '\r'
                     : c == 't' ? '\t'
                                : c);
    }
  }
  return text;
}

}  // namespace echelon
