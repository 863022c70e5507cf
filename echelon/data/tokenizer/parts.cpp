#include "echelon/data/tokenizer/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/normal_forms.h"

namespace echelon::tok {
namespace {

// A stretch of text for the model. Without `spans`, it is unchanged and begins at `base` of the
// original.
struct Stretch {
  std::string_view bytes;
  const TokenSpan* spans;
  std::uint32_t base;

  Stretch part(std::size_t begin, std::size_t end) const {
    return {bytes.substr(begin, end - begin), spans ? spans + begin : nullptr,
            base + (spans ? 0 : std::uint32_t(begin))};
  }

  // Where bytes [begin, end) came from; whole characters.
  TokenSpan span(std::size_t begin, std::size_t end) const {
    if (begin >= end) return {base + std::uint32_t(begin), base + std::uint32_t(end)};
    if (spans) return {spans[begin].begin, spans[end - 1].end};
    const auto inside = [&](std::size_t at) {
      return at < bytes.size() && (std::uint8_t(bytes[at]) & 0xC0) == 0x80;
    };
    while (begin > 0 && inside(begin)) --begin;
    while (inside(end)) ++end;
    return {base + std::uint32_t(begin), base + std::uint32_t(end)};
  }
};

// One text on its way to ids.
class Encoder {
 public:
  Encoder(const Parts& parts, Scratch& scratch, std::vector<std::int32_t>& ids,
          std::vector<TokenSpan>* spans)
      : parts_(parts), scratch_(scratch), ids_(ids), spans_(spans) {}

  void encode(std::string_view text, bool continues) {
    const Stretch all{text, nullptr, 0};
    continues_ = continues;
    scratch_.raw_found.clear();
    parts_.raw_finder.find(text, scratch_.raw_found);
    std::size_t at = 0;
    for (const auto& found : scratch_.raw_found) {
      normalize(all.part(at, found.begin));
      push(found.id, all.span(found.begin, found.end));
      at = found.end;
    }
    normalize(all.part(at, text.size()));
  }

 private:
  void push(std::int32_t id, TokenSpan span) {
    ids_.push_back(id);
    if (spans_) spans_->push_back(span);
  }

  // What follows the first token that is found in the raw text is a beginning of its own.
  void normalize(Stretch stretch) {
    const bool continues = std::exchange(continues_, false);
    if (stretch.bytes.empty()) return;
    if (!parts_.normalizer.empty()) {
      AlignedText& text = scratch_.text;
      text.assign(stretch.bytes, stretch.base, spans_ != nullptr);
      tok::normalize(parts_.normalizer, text, scratch_.spare, continues);
      if (text.bytes.size() >= std::numeric_limits<std::uint32_t>::max())
        throw InvalidArgument("a text becomes longer than 4 GiB when it is normalised");
      stretch = {text.bytes, spans_ ? text.spans.data() : nullptr, stretch.base};
    }
    scratch_.found.clear();
    parts_.normalized_finder.find(stretch.bytes, scratch_.found);
    std::size_t at = 0;
    for (const auto& found : scratch_.found) {
      split(stretch.part(at, found.begin), continues && at == 0);
      push(found.id, stretch.span(found.begin, found.end));
      at = found.end;
    }
    split(stretch.part(at, stretch.bytes.size()), continues && at == 0);
  }

  void split(const Stretch& stretch, bool continues) {
    if (stretch.bytes.empty()) return;
    const Splitter& splitter = parts_.splitter;
    splitter.split(stretch.bytes, scratch_.words, scratch_.parts, scratch_.matches);
    if (splitter.prefix_space) {
      // Each word of a step before ByteLevel is a beginning, also where a text is continued.
      for (const ByteRange& word : scratch_.words)
        split_with_prefix(stretch.part(word.begin, word.end), continues && splitter.steps.empty());
    } else {
      words(stretch, scratch_.words);
    }
  }

  // Puts a space before a word that has none, unless it continues one; it has the span of the first
  // character.
  void split_with_prefix(Stretch word, bool continues) {
    AlignedText& prefixed = scratch_.prefixed;
    if (!continues && word.bytes[0] != ' ') {
      prefixed.bytes.assign(1, ' ');
      prefixed.bytes += word.bytes;
      if (spans_) {
        prefixed.spans.clear();
        for (std::size_t i = 0; i < word.bytes.size(); ++i) {
          const TokenSpan span = word.span(i, i + 1);
          prefixed.spans.insert(prefixed.spans.end(), i == 0 ? 2 : 1, span);
        }
      }
      word = {prefixed.bytes, spans_ ? prefixed.spans.data() : nullptr, word.base};
    }
    auto& ranges = scratch_.prefixed_words;
    ranges.clear();
    if (parts_.splitter.after_prefix)
      parts_.splitter.after_prefix->split(word.bytes, ranges, scratch_.matches);
    else
      ranges.push_back({0, std::uint32_t(word.bytes.size())});
    words(word, ranges);
  }

  void words(const Stretch& stretch, const std::vector<ByteRange>& ranges) {
    if (!parts_.model->splits_at_spaces()) {
      for (const ByteRange& range : ranges) word(stretch, range.begin, range.end);
      return;
    }
    constexpr std::string_view space_mark = "\xE2\x96\x81";
    for (const ByteRange& range : ranges) {
      std::size_t begin = range.begin;
      const std::string_view bytes = stretch.bytes.substr(0, range.end);
      for (std::size_t at = bytes.find(space_mark, begin); at != bytes.npos;
           at = bytes.find(space_mark, at + space_mark.size())) {
        if (at == begin || bytes.substr(begin, at - begin).ends_with(space_mark)) continue;
        word(stretch, begin, at);
        begin = at;
      }
      word(stretch, begin, range.end);
    }
  }

  void word(const Stretch& stretch, std::size_t begin, std::size_t end) {
    const auto tokens =
        scratch_.cache.get(stretch.bytes.substr(begin, end - begin), *parts_.model, scratch_.word);
    ids_.insert(ids_.end(), tokens.ids, tokens.ids + tokens.count);
    if (!spans_) return;
    for (std::size_t i = 0, at = begin; i < tokens.count; ++i) {
      const std::size_t next = std::min<std::size_t>(end, at + tokens.sizes[i]);
      spans_->push_back(stretch.span(at, next));
      at = next;
    }
  }

  const Parts& parts_;
  Scratch& scratch_;
  std::vector<std::int32_t>& ids_;
  std::vector<TokenSpan>* spans_;
  bool continues_ = false;  // what is normalised next continues a text
};

}  // namespace

void Parts::encode(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids,
                   std::vector<TokenSpan>* spans, bool continues) const {
  if (text.size() >= std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument("a text has 4 GiB or more: split it before it is tokenised");
  if (const auto good = utf8_prefix(text); good != text.size())
    throw InvalidArgument(fmt::format(
        "the text is not UTF-8: byte {} is 0x{:02x}; convert it first, for example with iconv",
        good, std::uint8_t(text[good])));
  Encoder(*this, scratch, ids, spans).encode(text, continues);
}

std::unique_ptr<Scratch> ScratchPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void ScratchPool::put_back(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

void add_token(const AddedToken& token, const std::string& where, Parts& parts) {
  if (token.text.empty()) return;
  if (const auto id = parts.model_tokens.find(token.text); id >= 0 && id != token.id)
    throw Corrupt(fmt::format("{} has '{}' with id {}, but the vocabulary has it with id {}", where,
                              token.text, token.id, id));
  if (parts.added.find(token.text) >= 0)
    throw Corrupt(fmt::format("{} has '{}' a second time", where, token.text));
  if (parts.added.has(token.id))
    throw Corrupt(fmt::format("{} has '{}' with id {}, which '{}' has", where, token.text, token.id,
                              parts.added.text(token.id)));
  parts.added.insert(token.text, token.id);
  parts.added_tokens.push_back(token);
}

std::int32_t next_added_id(const Parts& parts) {
  return std::max(std::int32_t(parts.model_tokens.count()), parts.added.size());
}

namespace {

// What is put around texts and behind them must be tokens, for which a model has embeddings.
void require_tokens(const std::string& where, const Parts& parts) {
  const auto require = [&](std::int32_t id, const char* section) {
    if (!parts.model_tokens.has(id) && !parts.added.has(id))
      throw Corrupt(fmt::format("{}: {} has the id {}, which no token has", where, section, id));
  };
  for (const auto* pieces : {&parts.post_processor.single, &parts.post_processor.pair})
    for (const TemplatePiece& piece : *pieces)
      for (const auto id : piece.ids) require(id, "post_processor");
  if (parts.special.padding) require(*parts.special.padding, "padding");
}

}  // namespace

void finish_parts(const std::string& where, Parts& parts) {
  require_tokens(where, parts);
  for (const auto& step : parts.normalizer)
    if (step->needs_normal_forms() && !has_normal_forms)
      throw InvalidArgument(fmt::format(
          "{}: its normalizer needs utf8proc, and this Echelon was built without it (in Debian: "
          "libutf8proc-dev)",
          where));
  for (const AddedToken& token : parts.added_tokens) {
    if (token.special) parts.special_ids.insert(token.id);
    if (!token.normalized) {
      parts.raw_finder.add(token.text, token);
      continue;
    }
    AlignedText text, spare;
    text.assign(token.text, 0, false);
    normalize(parts.normalizer, text, spare);
    parts.normalized_finder.add(text.bytes, token);
    if (text.bytes != token.text) parts.decoded[token.id] = text.bytes;
  }
}

}  // namespace echelon::tok
