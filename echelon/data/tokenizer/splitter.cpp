#include "echelon/data/tokenizer/splitter.h"

#include <utility>

#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {
namespace {

// Makes words of stretches of text that are matches, or not, from left to right.
class Joiner {
 public:
  Joiner(Delimiter behaviour, std::vector<ByteRange>& out)
      : behaviour_(behaviour), out_(out), first_(out.size()) {}

  void add(ByteRange range, bool match) {
    if (range.begin == range.end) {
      last_was_match_ = match;
      return;
    }
    const bool any = out_.size() > first_;
    switch (behaviour_) {
      case Delimiter::removed:
        if (!match) out_.push_back(range);
        break;
      case Delimiter::isolated:
        out_.push_back(range);
        break;
      case Delimiter::contiguous:
        if (match == last_was_match_ && any)
          out_.back().end = range.end;
        else
          out_.push_back(range);
        break;
      case Delimiter::merged_with_previous:
        if (match && !last_was_match_ && any)
          out_.back().end = range.end;
        else
          out_.push_back(range);
        break;
      case Delimiter::merged_with_next:
        // A match waits for what comes; of several, the last is merged.
        if (!match && last_was_match_ && any)
          out_.back().end = range.end;
        else
          out_.push_back(range);
        break;
    }
    last_was_match_ = match;
  }

 private:
  Delimiter behaviour_;
  std::vector<ByteRange>& out_;
  std::size_t first_;
  bool last_was_match_ = false;
};

// Splits at code points of a class.
class ClassSplitter : public SplitterStep {
 public:
  ClassSplitter(int classes, Delimiter behaviour) : classes_(classes), behaviour_(behaviour) {}

  void split(std::string_view text, std::vector<ByteRange>& out,
             std::vector<ByteRange>& /*spare*/) const override {
    const UnicodeClasses& classes = UnicodeClasses::get();
    Joiner joiner(behaviour_, out);
    std::uint32_t begin = 0, at = 0;
    while (at < text.size()) {
      const Decoded point = decode_utf8(text.data() + at);
      if (classes.has(point.code_point, classes_)) {
        if (begin < at) joiner.add({begin, at}, false);
        joiner.add({at, at + point.size}, true);
        begin = at + point.size;
      }
      at += point.size;
    }
    if (begin < at) joiner.add({begin, at}, false);
  }

 private:
  int classes_;
  Delimiter behaviour_;
};

// Splits between code points of different kinds; white space is in no word.
class KindSplitter : public SplitterStep {
 public:
  // `runs`: a class whose code points stay together, as all others do. `single`: one whose code
  // points are words of their own.
  KindSplitter(int runs, int single) : runs_(runs), single_(single) {}

  void split(std::string_view text, std::vector<ByteRange>& out,
             std::vector<ByteRange>& /*spare*/) const override {
    const UnicodeClasses& classes = UnicodeClasses::get();
    const int wanted = space | runs_ | single_;
    std::uint32_t begin = 0, at = 0;
    int kind_of_run = 0;
    const auto finish = [&] {
      if (begin < at) out.push_back({begin, at});
    };
    while (at < text.size()) {
      const Decoded point = decode_utf8(text.data() + at);
      // A word character is one even where it is white space too; nothing is.
      int kind = classes.of(point.code_point) & wanted;
      if (kind & space) kind = space;
      if (kind & (space | single_)) {
        finish();
        if (kind != space) out.push_back({at, at + point.size});
        begin = at + point.size;
      } else if (kind != kind_of_run) {
        finish();
        begin = at;
      }
      kind_of_run = kind;
      at += point.size;
    }
    finish();
  }

 private:
  int runs_, single_;
};

class PatternSplitter : public SplitterStep {
 public:
  PatternSplitter(std::shared_ptr<const Pattern> pattern, Delimiter behaviour, bool invert)
      : pattern_(std::move(pattern)), behaviour_(behaviour), invert_(invert) {}

  void split(std::string_view text, std::vector<ByteRange>& out,
             std::vector<ByteRange>& spare) const override {
    spare.clear();
    pattern_->matches(text, spare);
    Joiner joiner(behaviour_, out);
    std::uint32_t at = 0;
    for (const ByteRange& match : spare) {
      if (at < match.begin) joiner.add({at, match.begin}, invert_);
      joiner.add(match, !invert_);
      at = match.end;
    }
    if (at < text.size()) joiner.add({at, std::uint32_t(text.size())}, invert_);
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  Delimiter behaviour_;
  bool invert_;
};

}  // namespace

std::unique_ptr<SplitterStep> bert_splitter() {
  return std::make_unique<KindSplitter>(0, punctuation);
}
std::unique_ptr<SplitterStep> white_space_splitter() {
  return std::make_unique<KindSplitter>(0, 0);
}
std::unique_ptr<SplitterStep> word_splitter() { return std::make_unique<KindSplitter>(word, 0); }
std::unique_ptr<SplitterStep> punctuation_splitter(Delimiter behaviour) {
  return std::make_unique<ClassSplitter>(punctuation, behaviour);
}
std::unique_ptr<SplitterStep> digit_splitter(bool each) {
  return std::make_unique<ClassSplitter>(numeric,
                                         each ? Delimiter::isolated : Delimiter::contiguous);
}
std::unique_ptr<SplitterStep> pattern_splitter(std::shared_ptr<const Pattern> pattern,
                                               Delimiter behaviour, bool invert) {
  return std::make_unique<PatternSplitter>(std::move(pattern), behaviour, invert);
}

void Splitter::split(std::string_view text, std::vector<ByteRange>& out,
                     std::vector<ByteRange>& parts, std::vector<ByteRange>& spare) const {
  out.clear();
  if (steps.empty()) {
    if (!text.empty()) out.push_back({0, std::uint32_t(text.size())});
    return;
  }
  steps[0]->split(text, out, spare);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    parts.swap(out);
    out.clear();
    for (const ByteRange& part : parts) {
      const std::size_t first = out.size();
      steps[i]->split(text.substr(part.begin, part.end - part.begin), out, spare);
      for (std::size_t word = first; word < out.size(); ++word) {
        out[word].begin += part.begin;
        out[word].end += part.begin;
      }
    }
  }
}

}  // namespace echelon::tok
