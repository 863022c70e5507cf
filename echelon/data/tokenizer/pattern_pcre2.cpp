// Regular expressions by PCRE2. They were written for Oniguruma, in Ruby's syntax: what that reads
// differently is translated, and what cannot be is refused by name. PCRE2's tables of Unicode may
// be older than Oniguruma's: newer code points are replaced by older ones of the same category and
// size.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/pattern.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {
namespace {

// Oniguruma's \w, with its fractions and raised digits of Latin-1. PCRE2's own lacks marks and
// connectors before 10.43.
constexpr std::string_view word_class =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

bool compiles(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, FreeCode> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF,
                    &error, &offset, nullptr));
  return code != nullptr;
}

class Translator {
 public:
  Translator(const std::string& expression, const std::string& where)
      : from_(expression), where_(where) {}

  std::string translate() {
    while (at_ < from_.size()) {
      const char c = from_[at_];
      const std::size_t begin = to_.size();
      if (c == '*' || c == '+' || c == '?') {
        copy(1);
      } else if (c == '{' && is_interval()) {
        interval();
      } else if (c == '(') {
        if (group()) groups_.push_back(begin);
      } else if (c == ')' && !groups_.empty()) {
        copy(1);
        atom_ = groups_.back();
        groups_.pop_back();
      } else {
        atom();
        atom_ = begin;
      }
    }
    return std::move(to_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    throw InvalidArgument(
        fmt::format("{}: {} is not supported in the pattern {}", where_, what, from_));
  }

  void copy(std::size_t count) {
    to_ += from_.substr(at_, count);
    at_ += count;
  }

  void replace(std::size_t count, std::string_view by) {
    to_ += by;
    at_ += count;
  }

  // What a repetition behind it repeats.
  void atom() {
    const char c = from_[at_];
    if (c == '\\')
      escape();
    else if (c == '[')
      bracket();
    else if (c == '{')
      replace(1, R"(\{)");
    else
      copy(decode_utf8(from_.data() + at_).size);
  }

  // Whether it opens a group. Options for the rest of a group: i and x mean the same, m is PCRE2's
  // s.
  bool group() {
    const std::string_view rest = from_.substr(at_);
    if (rest.starts_with("(*")) unsupported("(*");
    std::size_t end = at_ + 2;
    while (end < from_.size() && (std::isalpha(std::uint8_t(from_[end])) || from_[end] == '-'))
      ++end;
    const bool options = rest.starts_with("(?") && end > at_ + 2 && end < from_.size() &&
                         (from_[end] == ':' || from_[end] == ')');
    if (!options) {
      copy(rest.starts_with("(?") ? 2 : 1);
      return true;
    }
    const bool opens = from_[end] == ':';
    for (std::size_t i = at_ + 2; i < end; ++i) {
      if (from_[i] != 'i' && from_[i] != 'x' && from_[i] != '-')
        unsupported(from_.substr(at_, end + 1 - at_));
      extended_ = extended_ || from_[i] == 'x';
    }
    copy(end + 1 - at_);
    return opens;
  }

  std::size_t digits_end(std::size_t at) const {
    while (at < from_.size() && std::isdigit(std::uint8_t(from_[at]))) ++at;
    return at;
  }

  // {n}, {n,}, {n,m} or {,m}. Other braces are text.
  bool is_interval() const {
    const std::size_t low_end = digits_end(at_ + 1);
    const bool comma = low_end < from_.size() && from_[low_end] == ',';
    const std::size_t end = comma ? digits_end(low_end + 1) : low_end;
    const bool number = low_end > at_ + 1 || end > low_end + 1;
    return number && end < from_.size() && from_[end] == '}';
  }

  // PCRE2 takes {,m} for text before 10.43, and a + behind an interval or a ? behind {n} for a part
  // of it. Oniguruma repeats the repetition: (?:X{n,m})+.
  void interval() {
    const std::size_t end = from_.find('}', at_);
    const bool range = from_.substr(at_, end - at_).find(',') != from_.npos;
    if (from_[at_ + 1] == ',') replace(1, "{0");
    copy(end + 1 - at_);
    const char next = at_ < from_.size() ? from_[at_] : '\0';
    if (next != '+' && (next != '?' || range)) return;
    if (extended_) unsupported("a repeated interval behind the option x");
    to_.insert(atom_, "(?:");
    to_ += ')';
  }

  // \p{Han} is the script for Oniguruma. PCRE2 takes it for the script's extensions since 10.40,
  // and has \p{sc:Han} since then.
  void property() {
    const std::size_t end = from_.find('}', at_);
    if (at_ + 2 >= from_.size() || from_[at_ + 2] != '{' || end == from_.npos)
      unsupported(fmt::format("{} without {{}}", from_.substr(at_, 2)));
    const bool negated = from_[at_ + 3] == '^';
    const auto name = from_.substr(at_ + 3 + negated, end - at_ - 3 - negated);
    const std::string script = fmt::format("\\p{{sc:{}}}", name);
    if (!compiles(script)) return copy(end + 1 - at_);
    replace(end + 1 - at_,
            fmt::format("{}{{{}sc:{}}}", from_.substr(at_, 2), negated ? "^" : "", name));
  }

  void bracket() {
    copy(1);
    if (at_ < from_.size() && from_[at_] == '^') copy(1);
    for (bool first = true;; first = false) {
      if (at_ >= from_.size()) unsupported("a class without an end");
      const char c = from_[at_];
      if (c == ']' && !first) return copy(1);
      if (c == ']') unsupported("an empty class, or ] as the first of a class");
      if (c == '&' && from_.substr(at_, 2) == "&&") unsupported("&&");
      if (c == '[') {
        if (from_.substr(at_, 9) != "[:space:]" && from_.substr(at_, 9) != "[:digit:]")
          unsupported("a class in a class");
        replace(9, from_[at_ + 2] == 's' ? R"(\s)" : R"(\d)");
        continue;
      }
      if (c == '\\')
        escape_in_class();
      else
        copy(1);
    }
  }

  char escaped() const {
    if (at_ + 1 >= from_.size()) unsupported("\\ at the end");
    return from_[at_ + 1];
  }

  void escape_in_class() {
    const char c = escaped();
    if (c == 'w') return replace(2, word_class);
    if (c == 'h') return replace(2, "0-9A-Fa-f");
    if (c == 'W' || c == 'H' || c == 'R' || c == 'X' || c == 'b') unsupported(from_.substr(at_, 2));
    common_escape(c);
  }

  void escape() {
    const char c = escaped();
    const std::string w(word_class);
    if (c == 'w') return replace(2, fmt::format("[{}]", w));
    if (c == 'W') return replace(2, fmt::format("[^{}]", w));
    if (c == 'b') return replace(2, fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", w));
    if (c == 'B') return replace(2, fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", w));
    if (c == 'h') return replace(2, "[0-9A-Fa-f]");
    if (c == 'H') return replace(2, "[^0-9A-Fa-f]");
    common_escape(c);
  }

  void common_escape(char c) {
    constexpr std::string_view same = "AzZdDsStnrfvaexkug0123456789";
    if (c == 'p' || c == 'P') return property();
    // \v is a vertical tab for Oniguruma, and any vertical space for PCRE2.
    if (c == 'v') return replace(2, R"(\x0b)");
    if (c == 'u') {  // \u00e9
      if (at_ + 6 > from_.size()) unsupported("\\u without four digits");
      const std::string digits(from_.substr(at_ + 2, 4));
      return replace(6, fmt::format("\\x{{{}}}", digits));
    }
    if (std::isalnum(std::uint8_t(c)) && same.find(c) == same.npos)
      unsupported(from_.substr(at_, 2));
    if (c == 'g' || c == 'k') unsupported(from_.substr(at_, 2));
    if (c == 'x') return code_point();
    copy(std::isdigit(std::uint8_t(c)) ? digits_end(at_ + 1) - at_ : 2);
  }

  // \x41 or \x{41}
  void code_point() {
    std::size_t end = at_ + 2;
    if (end < from_.size() && from_[end] == '{') {
      end = from_.find('}', end);
      if (end == from_.npos) unsupported("\\x{ without }");
      return copy(end + 1 - at_);
    }
    while (end < from_.size() && end < at_ + 4 && std::isxdigit(std::uint8_t(from_[end]))) ++end;
    copy(end - at_);
  }

  std::string_view from_;
  const std::string& where_;
  std::string to_;
  std::size_t at_ = 0, atom_ = 0;    // in from_, and where the last atom begins in to_
  std::vector<std::size_t> groups_;  // where those that are open begin in to_
  bool extended_ = false;            // the option x is used somewhere
};

// The code point that stands for this one; itself, for most.
std::uint32_t stand_in(std::uint32_t point) {
  const auto found = std::ranges::upper_bound(unicode_stand_in_table, point, {}, &StandIn::first);
  if (found == unicode_stand_in_table.begin()) return point;
  const StandIn& run = found[-1];
  return point <= run.last ? run.instead : point;
}

// The text with stand-ins; nothing if it needs none.
std::optional<std::string> with_stand_ins(std::string_view text) {
  if (is_ascii(text)) return std::nullopt;
  const UnicodeClasses& classes = UnicodeClasses::get();
  std::optional<std::string> result;
  for (std::size_t at = 0; at < text.size();) {
    const Decoded point = decode_utf8(text.data() + at);
    if (classes.has(point.code_point, recent) || point.code_point == 0x180E) {
      if (!result) result = text;
      std::string older;
      append_utf8(older, stand_in(point.code_point));
      result->replace(at, point.size, older);  // of the same size
    }
    at += point.size;
  }
  return result;
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

class Pcre2 : public Pattern {
 public:
  Pcre2(const std::string& expression, const std::string& where) : where_(where) {
    const std::string translated = Translator(expression, where).translate();
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
        PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
        &error, &offset, nullptr));
    if (!code_)
      throw InvalidArgument(
          fmt::format("{} is not a pattern: {}: {}", where, message_of(error), expression));
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without it, matching is slower
    few_ = context_with(few_steps);
    many_ = context_with(many_steps);
  }

  void matches(std::string_view text, std::vector<ByteRange>& out) const override {
    const auto older = with_stand_ins(text);
    const std::string_view subject = older ? *older : text;
    const std::unique_ptr<pcre2_match_data, FreeMatch> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (!data) throw std::bad_alloc();
    std::size_t at = 0;
    std::size_t last_end = subject.size() + 1;  // of the match before; none yet
    int costly = 0;                             // places that took many steps
    while (at <= subject.size()) {
      const int result = match(subject, at, data.get(), costly);
      if (result == PCRE2_ERROR_NOMATCH) return;
      if (result < 0) refuse(text, message_of(result));
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
      const std::size_t begin = range[0], end = range[1];
      if (begin > end || end > subject.size()) return;  // \K in a look-around
      // An empty match right behind another one does not count.
      if (begin != end || end != last_end)
        out.push_back({std::uint32_t(begin), std::uint32_t(end)});
      last_end = end;
      at = end;
      if (begin == end) {
        if (at == subject.size()) return;
        at += decode_utf8(subject.data() + at).size;
      }
    }
  }

 private:
  using Context = std::unique_ptr<pcre2_match_context, FreeContext>;

  static Context context_with(std::uint32_t steps) {
    Context context(pcre2_match_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), steps);
    pcre2_set_heap_limit(context.get(), most_kib);
    return context;
  }

  [[noreturn]] void refuse(std::string_view text, std::string_view why) const {
    throw InvalidArgument(fmt::format("{}: the pattern cannot be matched in a text of {} bytes: {}",
                                      where_, text.size(), why));
  }

  int run(std::string_view subject, std::size_t at, std::uint32_t options, pcre2_match_data* data,
          const Context& context) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                       at, PCRE2_NO_UTF_CHECK | options, data, context.get());
  }

  // PCRE2 counts steps anew for each place where a match may begin, so its limit alone does not
  // bound the time of a text. All places get few steps, which most patterns never need; only some
  // places get many.
  int match(std::string_view subject, std::size_t at, pcre2_match_data* data, int& costly) const {
    const int result = run(subject, at, 0, data, few_);
    // Compiled patterns have a small stack; the interpreter has the heap.
    if (result != PCRE2_ERROR_MATCHLIMIT && result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    return match_place_by_place(subject, at, data, costly);
  }

  int match_place_by_place(std::string_view subject, std::size_t at, pcre2_match_data* data,
                           int& costly) const {
    constexpr std::uint32_t here = PCRE2_ANCHORED | PCRE2_NO_JIT;
    for (;; at += decode_utf8(subject.data() + at).size) {
      int result = run(subject, at, here, data, few_);
      if (result == PCRE2_ERROR_MATCHLIMIT) {
        result = run(subject, at, here, data, many_);
        // A long match may take many steps: they are few for each of its bytes.
        const bool is_long = result > 0 && end_of_match(data) >= at + many_steps / few_steps;
        if (!is_long && ++costly > most_costly) refuse(subject, too_costly());
      }
      if (result != PCRE2_ERROR_NOMATCH || at == subject.size()) return result;
    }
  }

  static std::size_t end_of_match(pcre2_match_data* data) {
    return pcre2_get_ovector_pointer(data)[1];
  }

  static std::string too_costly() {
    return fmt::format("it takes more than {} steps at more than {} places", few_steps,
                       most_costly);
  }

  static constexpr std::uint32_t few_steps = 10'000, many_steps = 10'000'000, most_kib = 1 << 16;
  static constexpr int most_costly = 64;

  std::string where_;
  std::unique_ptr<pcre2_code, FreeCode> code_;
  Context few_, many_;
};

}  // namespace

std::unique_ptr<Pattern> pcre2_pattern(const std::string& expression, const std::string& where) {
  return std::make_unique<Pcre2>(expression, where);
}

}  // namespace echelon::tok
