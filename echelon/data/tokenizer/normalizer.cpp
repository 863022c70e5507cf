#include "echelon/data/tokenizer/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/normal_forms.h"

namespace echelon::tok {
namespace {

// Whatever a text is normalised to. A character of NFKD can become 33 bytes.
std::size_t most_bytes(std::size_t before) { return std::max<std::size_t>(16 << 20, 64 * before); }

void require_reason(std::size_t before, std::size_t after) {
  if (after > most_bytes(before))
    throw InvalidArgument(fmt::format(
        "the tokeniser's normalizer makes {} bytes or more of a text of {}", after, before));
}

const UnicodeClasses& classes() { return UnicodeClasses::get(); }

// Keeps the code points for which keep() is true.
template <typename Keep>
void filter(AlignedText& text, AlignedText& spare, Keep&& keep) {
  bool all = true;
  for_each_code_point(text.bytes, [&](std::uint32_t point) { all = all && keep(point); });
  if (all) return;
  TextWriter writer(text, spare);
  // What is removed behind a code point is known when the next one comes.
  bool any = false;
  std::uint32_t last = 0;
  int removed = 0;
  for_each_code_point(text.bytes, [&](std::uint32_t point) {
    if (!keep(point)) {
      ++removed;
      return;
    }
    if (any)
      writer.put(last, -removed);
    else
      writer.skip(std::size_t(removed));
    any = true;
    last = point;
    removed = 0;
  });
  if (any) writer.put(last, -removed);
  writer.finish();
}

template <typename Map>
void map(AlignedText& text, AlignedText& spare, Map&& mapped) {
  TextWriter writer(text, spare);
  for_each_code_point(text.bytes, [&](std::uint32_t point) { writer.put(mapped(point), 0); });
  writer.finish();
}

void to_lower(AlignedText& text, AlignedText& spare) {
  if (is_ascii(text.bytes)) {
    for (char& c : text.bytes)
      if (c >= 'A' && c <= 'Z') c = char(c + 32);
    return;
  }
  TextWriter writer(text, spare);
  for_each_code_point(text.bytes, [&](std::uint32_t point) {
    if (point == 0x130) {  // the one letter with two in lower case
      writer.put('i', 0);
      writer.put(0x307, 1);
    } else if (point < 0x80) {
      writer.put(point >= 'A' && point <= 'Z' ? point + 32 : point, 0);
    } else {
      writer.put(lower_case(point), 0);
    }
  });
  writer.finish();
}

// A code point on its way through a normal form, with what it does to the old text.
struct Form {
  std::uint32_t point;
  int combining;
  int change;
};

// Canonical order: marks between two starters by their class.
void decompose_text(std::string_view text, bool compatible, std::vector<Form>& forms) {
  std::size_t marks = 0;  // where the marks at the end begin
  const auto by_class = [](const Form& a, const Form& b) { return a.combining < b.combining; };
  for_each_code_point(text, [&](std::uint32_t point) {
    const Decomposition parts = decompose(point, compatible);
    for (int i = 0; i < parts.size; ++i) {
      const Form form{parts.points[std::size_t(i)], combining_class(parts.points[std::size_t(i)]),
                      i > 0};
      if (form.combining == 0)
        std::stable_sort(forms.begin() + std::ptrdiff_t(marks), forms.end(), by_class);
      forms.push_back(form);
      if (form.combining == 0) marks = forms.size();
    }
  });
  std::stable_sort(forms.begin() + std::ptrdiff_t(marks), forms.end(), by_class);
}

// Composes each starter with the marks behind it that no other mark blocks.
void compose_text(std::vector<Form>& forms) {
  std::vector<Form> out, waiting;
  out.reserve(forms.size());
  bool any = false;
  Form starter{};
  int last_class = -1;  // of the marks that wait
  const auto flush = [&] {
    if (any) out.push_back(starter);
    out.insert(out.end(), waiting.begin(), waiting.end());
    waiting.clear();
    last_class = -1;
  };
  for (const Form& form : forms) {
    if (!any) {
      if (form.combining != 0) {
        out.push_back(form);
      } else {
        starter = form;
        any = true;
      }
      continue;
    }
    if (last_class < form.combining) {
      if (const auto both = compose(starter.point, form.point)) {
        starter = {both, 0, starter.change + form.change - 1};
        continue;
      }
    }
    if (form.combining == 0) {
      flush();
      starter = form;
    } else {
      waiting.push_back(form);
      last_class = form.combining;
    }
  }
  flush();
  forms = std::move(out);
}

// Whether a text is in this form for sure.
bool in_form(std::string_view text, bool compatible, bool composed) {
  if (is_ascii(text)) return true;
  if (compatible && composed) return false;
  bool fine = true;
  for_each_code_point(text, [&](std::uint32_t point) {
    // Nothing below U+0300 composes with what is before it, and none of these is ever changed.
    fine = fine && (composed ? point < 0x300 || (point >= 0x3400 && point < 0xA000)
                             : !classes().has(point, has_forms));
  });
  return fine;
}

void to_form(AlignedText& text, AlignedText& spare, bool compatible, bool composed) {
  if (in_form(text.bytes, compatible, composed)) return;
  std::vector<Form> forms;
  forms.reserve(text.bytes.size());
  decompose_text(text.bytes, compatible, forms);
  if (composed) compose_text(forms);
  TextWriter writer(text, spare);
  for (const Form& form : forms) writer.put(form.point, form.change);
  writer.finish();
}

// "CJK Unified Ideographs" and their extensions, as BERT has them.
bool is_chinese(std::uint32_t point) {
  constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 8> blocks = {{{0x4E00, 0x9FFF},
                                                                              {0x3400, 0x4DBF},
                                                                              {0x20000, 0x2A6DF},
                                                                              {0x2A700, 0x2B73F},
                                                                              {0x2B740, 0x2B81F},
                                                                              {0x2B920, 0x2CEAF},
                                                                              {0xF900, 0xFAFF},
                                                                              {0x2F800, 0x2FA1F}}};
  return std::ranges::any_of(
      blocks, [&](const auto& block) { return point >= block.first && point <= block.second; });
}

class Bert : public NormalizerStep {
 public:
  explicit Bert(const BertNormalizerSettings& settings) : settings_(settings) {
    for (int c = 0; c < 0x80; ++c) {
      const int kind = classes().of(std::uint32_t(c));
      const bool white = kind & space;
      const bool gone = settings.clean && (kind & control);
      const bool upper = settings.lower_case && c >= 'A' && c <= 'Z';
      ascii_[std::size_t(c)] = std::int8_t(gone                      ? -1
                                           : settings.clean && white ? ' '
                                           : upper                   ? c + 32
                                                                     : c);
    }
  }

  bool needs_normal_forms() const override {
    return settings_.strip_accents || settings_.lower_case;
  }

  void apply(AlignedText& text, AlignedText& spare) const override {
    if (text.aligned) return apply_steps(text, spare);
    // Without spans, ASCII goes through a table, and the runs between it through the steps: ASCII
    // neither combines with what is beside it nor changes what that becomes.
    AlignedText run, run_spare;
    spare.bytes.resize(text.bytes.size());
    std::size_t size = 0;
    for (std::size_t at = 0; at < text.bytes.size();) {
      const auto byte = std::uint8_t(text.bytes[at]);
      if (byte < 0x80) {
        const auto mapped = ascii_[byte];
        if (mapped >= 0) {
          if (size == spare.bytes.size()) spare.bytes.resize(2 * size + 16);
          spare.bytes[size++] = char(mapped);
        }
        ++at;
        continue;
      }
      std::size_t end = at + 1;
      while (end < text.bytes.size() && std::uint8_t(text.bytes[end]) >= 0x80) ++end;
      run.assign(std::string_view(text.bytes).substr(at, end - at), 0, false);
      apply_steps(run, run_spare);
      if (size + run.bytes.size() > spare.bytes.size())
        spare.bytes.resize(2 * (size + run.bytes.size()));
      std::ranges::copy(run.bytes, spare.bytes.begin() + std::ptrdiff_t(size));
      size += run.bytes.size();
      at = end;
    }
    spare.bytes.resize(size);
    std::swap(text.bytes, spare.bytes);
  }

 private:
  void apply_steps(AlignedText& text, AlignedText& spare) const {
    if (settings_.clean) {
      filter(text, spare, [](std::uint32_t point) { return !classes().has(point, control); });
      map(text, spare, [](std::uint32_t point) {
        return classes().has(point, space) ? std::uint32_t(' ') : point;
      });
    }
    if (settings_.split_chinese) {
      TextWriter writer(text, spare);
      for_each_code_point(text.bytes, [&](std::uint32_t point) {
        const bool chinese = is_chinese(point);
        if (chinese) writer.put(' ', 0);
        writer.put(point, chinese);
        if (chinese) writer.put(' ', 1);
      });
      writer.finish();
    }
    if (settings_.strip_accents) {
      to_form(text, spare, false, false);
      filter(text, spare, [](std::uint32_t point) { return !classes().has(point, accent); });
    }
    if (settings_.lower_case) to_lower(text, spare);
  }

  BertNormalizerSettings settings_;
  std::array<std::int8_t, 0x80> ascii_{};  // what each becomes; -1: nothing
};

// A step that is a function.
template <typename F>
class Step : public NormalizerStep {
 public:
  Step(F function, bool forms) : function_(std::move(function)), forms_(forms) {}
  void apply(AlignedText& text, AlignedText& spare) const override { function_(text, spare); }
  bool needs_normal_forms() const override { return forms_; }

 private:
  F function_;
  bool forms_;
};

template <typename F>
std::unique_ptr<NormalizerStep> step(F function, bool forms = false) {
  return std::make_unique<Step<F>>(std::move(function), forms);
}

// Leaves bytes [begin, end).
void crop(AlignedText& text, std::size_t begin, std::size_t end) {
  text.bytes.erase(end);
  text.bytes.erase(0, begin);
  if (!text.aligned) return;
  text.spans.resize(end);
  text.spans.erase(text.spans.begin(), text.spans.begin() + std::ptrdiff_t(begin));
}

void strip(AlignedText& text, bool left, bool right) {
  std::size_t begin = 0, end = text.bytes.size();
  while (left && begin < end) {
    const Decoded point = decode_utf8(text.bytes.data() + begin);
    if (!classes().has(point.code_point, space)) break;
    begin += point.size;
  }
  while (right && end > begin) {
    const Decoded point = decode_utf8_before(text.bytes.data() + end);
    if (!classes().has(point.code_point, space)) break;
    end -= point.size;
  }
  crop(text, begin, end);
}

class Prepend : public NormalizerStep {
 public:
  explicit Prepend(std::string what) : what_(std::move(what)) {}
  bool prepends() const override { return true; }
  void apply(AlignedText& text, AlignedText& /*spare*/) const override {
    if (text.bytes.empty() || what_.empty()) return;
    text.bytes.insert(0, what_);
    // All of it has the span of the first character, which it is put in front of.
    if (text.aligned) text.spans.insert(text.spans.begin(), what_.size(), TokenSpan(text.spans[0]));
  }

 private:
  std::string what_;
};

void replace(AlignedText& text, AlignedText& spare, const Pattern& pattern,
             const std::string& content) {
  std::vector<ByteRange> found;
  pattern.matches(text.bytes, found);
  if (found.empty()) return;
  require_reason(text.original_size, text.bytes.size() + found.size() * content.size());
  spare.bytes.clear();
  spare.spans.clear();
  std::size_t at = 0;
  const auto keep = [&](std::size_t end) {
    spare.bytes.append(text.bytes, at, end - at);
    if (text.aligned)
      spare.spans.insert(spare.spans.end(), text.spans.begin() + std::ptrdiff_t(at),
                         text.spans.begin() + std::ptrdiff_t(end));
  };
  for (const ByteRange& range : found) {
    keep(range.begin);
    spare.bytes += content;
    if (text.aligned)
      spare.spans.insert(
          spare.spans.end(), content.size(),
          range.end > 0 ? text.spans[range.end - 1] : TokenSpan{text.base, text.base});
    at = range.end;
  }
  keep(text.bytes.size());
  std::swap(text.bytes, spare.bytes);
  std::swap(text.spans, spare.spans);
}

// What Google's NMT pipelines remove, and what they take for white space.
bool nmt_removes(std::uint32_t point) {
  return (point >= 1 && point <= 8) || point == 0xB || (point >= 0xE && point <= 0x1F) ||
         point == 0x7F || point == 0x8F || point == 0x9F;
}

bool nmt_blanks(std::uint32_t point) {
  constexpr std::array<std::uint32_t, 10> blanks = {0x9,    0xA,    0xC,    0xD,    0x1680,
                                                    0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
  return (point >= 0x200B && point <= 0x200F) || std::ranges::count(blanks, point) > 0;
}

}  // namespace

void normalize(const Normalizer& steps, AlignedText& text, AlignedText& spare, bool continues) {
  for (const auto& step : steps) {
    if (continues && step->prepends()) continue;
    step->apply(text, spare);
    require_reason(text.original_size, text.bytes.size());
  }
}

std::unique_ptr<NormalizerStep> bert_normalizer(const BertNormalizerSettings& settings) {
  return std::make_unique<Bert>(settings);
}

std::unique_ptr<NormalizerStep> lower_case_normalizer() { return step(to_lower, true); }

std::unique_ptr<NormalizerStep> normal_form(bool compatible, bool composed) {
  return step(
      [=](AlignedText& text, AlignedText& spare) { to_form(text, spare, compatible, composed); },
      true);
}

std::unique_ptr<NormalizerStep> strip_accents_normalizer() {
  return step([](AlignedText& text, AlignedText& spare) {
    filter(text, spare, [](std::uint32_t point) { return !classes().has(point, combining); });
  });
}

std::unique_ptr<NormalizerStep> nmt_normalizer() {
  return step([](AlignedText& text, AlignedText& spare) {
    filter(text, spare, [](std::uint32_t point) { return !nmt_removes(point); });
    map(text, spare,
        [](std::uint32_t point) { return nmt_blanks(point) ? std::uint32_t(' ') : point; });
  });
}

std::unique_ptr<NormalizerStep> strip_normalizer(bool left, bool right) {
  return step([=](AlignedText& text, AlignedText& /*spare*/) { strip(text, left, right); });
}

std::unique_ptr<NormalizerStep> prepend_normalizer(std::string what) {
  return std::make_unique<Prepend>(std::move(what));
}

std::unique_ptr<NormalizerStep> replace_normalizer(std::shared_ptr<const Pattern> pattern,
                                                   std::string content) {
  return step(
      [pattern = std::move(pattern), content = std::move(content)](
          AlignedText& text, AlignedText& spare) { replace(text, spare, *pattern, content); });
}

}  // namespace echelon::tok
