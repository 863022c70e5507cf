#include "echelon/data/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/data/tokenizer/parts.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using tok::Parts;
using tok::Side;

// The largest that is known has 33 MB.
constexpr std::uintmax_t largest_file = 1 << 29;

// The texts of a tokeniser's files, which are remembered as its own.
class Files {
 public:
  explicit Files(Parts& parts) : parts_(parts) {}

  // Empty if there is no such file and it may be missing.
  std::string read(const fs::path& path, bool required) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) {
      if (!required) return {};
      throw InvalidArgument(fmt::format("{} is missing", path.string()));
    }
    if (fs::file_size(path) > largest_file)
      throw InvalidArgument(fmt::format("{} has more than {} MiB, which no tokeniser's file has",
                                        path.string(), largest_file >> 20));
    std::string text = read_file(path);
    parts_.files.push_back(path);
    sums_ += fmt::format("{:016x}", checksum(std::as_bytes(std::span(text))));
    return text;
  }

  std::string digest() const {
    return fmt::format("{:016x}", checksum(std::as_bytes(std::span(sums_))));
  }

 private:
  Parts& parts_;
  std::string sums_;
};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// A scratch for the time of a call.
class Borrowed {
 public:
  explicit Borrowed(tok::ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
  ~Borrowed() { pool_.put_back(std::move(scratch_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  tok::Scratch& operator*() { return *scratch_; }

 private:
  tok::ScratchPool& pool_;
  std::unique_ptr<tok::Scratch> scratch_;
};

// The tokens of one text, before anything is put around them.
struct Tokens {
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> spans;
};

void cut(Tokens& tokens, std::int64_t most, Side side) {
  const auto size = std::int64_t(tokens.ids.size());
  if (size <= most) return;
  const auto keep = [&](auto& values) {
    if (values.empty()) return;
    if (side == Side::left) values.erase(values.begin(), values.end() - most);
    values.resize(std::size_t(most));
  };
  keep(tokens.ids);
  keep(tokens.spans);
}

// Cuts a pair so that both have `most` tokens together. The longer is cut to the length of the
// shorter first.
void cut_longest_first(Tokens& first, Tokens& second, std::int64_t most, Side side) {
  auto a = std::int64_t(first.ids.size()), b = std::int64_t(second.ids.size());
  const bool swapped = a > b;
  if (swapped) std::swap(a, b);
  b = a > most ? a : std::max(a, most - a);
  if (a + b > most) {
    a = most / 2;
    b = a + most % 2;
  }
  if (swapped) std::swap(a, b);
  cut(first, a, side);
  cut(second, b, side);
}

void cut_to(const Parts& parts, Tokens& first, Tokens* second, std::int64_t most) {
  const auto size = std::int64_t(first.ids.size() + (second ? second->ids.size() : 0));
  const std::int64_t too_many = size - most;
  if (too_many <= 0) return;
  const Side side = parts.truncated_side;
  if (!second) return cut(first, most, side);
  if (parts.truncation == tok::Truncation::longest_first)
    return cut_longest_first(first, *second, most, side);
  Tokens& one = parts.truncation == tok::Truncation::only_first ? first : *second;
  const auto left = std::int64_t(one.ids.size()) - too_many;
  if (left <= 0)
    throw InvalidArgument(fmt::format(
        "the pair has {} tokens too many, and the tokeniser cuts only its {} text, which has {}",
        too_many, &one == &first ? "first" : "second", one.ids.size()));
  cut(one, left, side);
}

// Moves the ends of spans past white space (see PostProcessor::trim_spans).
void trim(const Parts& parts, std::string_view text, Tokens& tokens) {
  const auto& classes = tok::UnicodeClasses::get();
  for (std::size_t i = 0; i < tokens.spans.size(); ++i) {
    TokenSpan& span = tokens.spans[i];
    std::size_t before = 0, behind = 0;  // characters
    const auto count = [&](std::string_view of, bool all_kinds) {
      const auto white = [&](std::uint32_t point) {
        return all_kinds ? classes.has(point, tok::space) : point == ' ' || point == 0x120;
      };
      for (std::size_t at = 0; at < of.size(); ++before) {
        const auto point = tok::decode_utf8(of.data() + at);
        if (!white(point.code_point)) break;
        at += point.size;
      }
      for (std::size_t end = of.size(); end > 0; ++behind) {
        const auto point = tok::decode_utf8_before(of.data() + end);
        if (!white(point.code_point)) break;
        end -= point.size;
      }
    };
    if (parts.added.has(tokens.ids[i]))
      count(text.substr(span.begin, span.end - span.begin), true);
    else
      count(parts.model_tokens.text(tokens.ids[i]), false);
    if (before > 0) {
      const bool first = i == 0 || span.begin == 0;
      if (first && parts.post_processor.prefix_space && before == 1) before = 0;
      for (; before > 0 && span.begin < span.end; --before)
        span.begin += tok::decode_utf8(text.data() + span.begin).size;
    }
    for (; behind > 0 && span.end > span.begin; --behind)
      span.end -= tok::decode_utf8_before(text.data() + span.end).size;
  }
}

void fill_up(const Parts& parts, const EncodeOptions& options, Encoding& out) {
  const auto size = std::int64_t(out.ids.size());
  if (size >= options.pad_to) return;
  if (!parts.special.padding)
    throw InvalidArgument("the tokeniser has no padding token, so texts cannot be filled up");
  const auto fill = [&](auto& values, auto value) {
    const auto at = parts.padded_side == Side::left ? values.begin() : values.end();
    values.insert(at, std::size_t(options.pad_to - size), value);
  };
  fill(out.ids, *parts.special.padding);
  fill(out.types, parts.padding_type);
  if (options.spans) fill(out.spans, TokenSpan{});
}

Encoding encode_texts(const Parts& parts, std::string_view first_text,
                      const std::string_view* second_text, const EncodeOptions& options,
                      tok::Scratch& scratch) {
  using Kind = tok::TemplatePiece::Kind;
  if (options.max_length < 0 || options.pad_to < 0)
    throw InvalidArgument(fmt::format("max_length and pad_to are at least 0, not {} and {}",
                                      options.max_length, options.pad_to));
  const auto& pieces = second_text ? parts.post_processor.pair : parts.post_processor.single;
  std::int64_t around = 0;
  if (options.special)
    for (const auto& piece : pieces) around += std::int64_t(piece.ids.size());
  if (options.max_length > 0 && options.max_length < around)
    throw InvalidArgument(fmt::format("max_length is {}, but {} special tokens are put around {}",
                                      options.max_length, around,
                                      second_text ? "a pair" : "a text"));

  Tokens first, second;
  parts.encode(first_text, scratch, first.ids, options.spans ? &first.spans : nullptr);
  if (second_text)
    parts.encode(*second_text, scratch, second.ids, options.spans ? &second.spans : nullptr);
  if (options.max_length > 0)
    cut_to(parts, first, second_text ? &second : nullptr, options.max_length - around);
  if (options.spans && parts.post_processor.trim_spans) {
    trim(parts, first_text, first);
    if (second_text) trim(parts, *second_text, second);
  }

  Encoding out;
  const std::size_t total = first.ids.size() + second.ids.size() + std::size_t(around);
  out.ids.reserve(total);
  out.types.reserve(total);
  for (const auto& piece : pieces) {
    if (piece.kind == Kind::special && !options.special) continue;
    const Tokens& tokens = piece.kind == Kind::second ? second : first;
    const auto& ids = piece.kind == Kind::special ? piece.ids : tokens.ids;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.insert(out.types.end(), ids.size(), piece.type);
    if (!options.spans) continue;
    if (piece.kind == Kind::special)
      out.spans.insert(out.spans.end(), ids.size(), TokenSpan{});
    else
      out.spans.insert(out.spans.end(), tokens.spans.begin(), tokens.spans.end());
  }
  fill_up(parts, options, out);
  return out;
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return is_file(folder / "tokenizer.json") || is_file(folder / "vocab.txt") ||
         (is_file(folder / "vocab.json") && is_file(folder / "merges.txt"));
}

Tokenizer Tokenizer::open(const fs::path& path) {
  auto parts = std::make_shared<Parts>();
  Files files(*parts);
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (!folder && !is_file(path))
    throw InvalidArgument(
        fmt::format("there is no tokeniser {}: give a folder with tokenizer.json, "
                    "vocab.txt, or vocab.json and merges.txt",
                    path.string()));
  if (folder && !has_tokenizer(path))
    throw InvalidArgument(fmt::format(
        "{} has no tokeniser: neither tokenizer.json, nor vocab.txt, nor vocab.json and merges.txt",
        path.string()));
  const fs::path home = folder ? path : path.parent_path();
  const auto read = [&](const fs::path& file, bool required) {
    return tok::NamedText{files.read(file, required), file.string()};
  };
  // The digest depends on the order in which files are read.
  tok::SideFiles beside{.config = read(home / "tokenizer_config.json", false)};
  const auto read_rest = [&](bool added) {
    beside.special_map = read(home / "special_tokens_map.json", false);
    if (added) beside.added = read(home / "added_tokens.json", false);
  };
  if (const fs::path json = folder ? path / "tokenizer.json" : path; is_file(json)) {
    read_tokenizer_json(files.read(json, true), json.string(), *parts);
    parts->json = json;
    read_rest(false);
  } else if (is_file(path / "vocab.txt")) {
    const auto vocabulary = read(path / "vocab.txt", true);
    read_rest(true);
    read_bert_vocabulary(vocabulary, beside, *parts);
  } else {
    const auto vocabulary = read(path / "vocab.json", true);
    const auto merges = read(path / "merges.txt", true);
    read_rest(true);
    read_gpt2_files(vocabulary, merges, beside, *parts);
  }
  find_special_tokens(beside, *parts);
  parts->digest = files.digest();
  return Tokenizer(std::move(parts));
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  Borrowed scratch(parts_->scratches);
  return encode_texts(*parts_, text, nullptr, options, *scratch);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                const EncodeOptions& options) const {
  Borrowed scratch(parts_->scratches);
  return encode_texts(*parts_, first, &second, options, *scratch);
}

std::vector<Encoding> Tokenizer::encode_all(std::span<const std::string_view> texts,
                                            const EncodeOptions& options, int threads) const {
  constexpr std::size_t chunk = 64;
  std::vector<Encoding> all(texts.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::size_t failed_at = texts.size();  // guarded by mutex, as is what follows
  std::exception_ptr failure;
  const auto work = [&] {
    Borrowed scratch(parts_->scratches);
    for (std::size_t begin; (begin = next.fetch_add(chunk)) < texts.size();) {
      for (std::size_t i = begin; i < std::min(begin + chunk, texts.size()); ++i) {
        try {
          all[i] = encode_texts(*parts_, texts[i], nullptr, options, *scratch);
        } catch (...) {  // the first in order is reported, whichever thread was first in time
          const std::lock_guard lock(mutex);
          if (i < failed_at) {
            failed_at = i;
            failure = std::current_exception();
          }
          next = texts.size();
          break;
        }
      }
    }
  };
  if (threads <= 0) threads = int(std::max(1U, std::thread::hardware_concurrency()));
  threads = int(std::min<std::size_t>(std::size_t(threads), (texts.size() + chunk - 1) / chunk));
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
  return all;
}

void Tokenizer::append(std::string_view text, std::vector<std::int32_t>& ids,
                       bool continues) const {
  Borrowed scratch(parts_->scratches);
  parts_->encode(text, *scratch, ids, nullptr, continues);
}

Tokenizer::Ends Tokenizer::ends() const {
  Ends ends;
  bool behind = false;
  for (const auto& piece : parts_->post_processor.single) {
    behind = behind || piece.kind == tok::TemplatePiece::Kind::first;
    auto& to = behind ? ends.behind : ends.before;
    to.insert(to.end(), piece.ids.begin(), piece.ids.end());
  }
  return ends;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const auto id : ids) {
    if (skip_special && parts_->special_ids.contains(id)) continue;
    if (const auto found = parts_->decoded.find(id); found != parts_->decoded.end())
      tokens.push_back(found->second);
    else if (parts_->added.has(id))
      tokens.emplace_back(parts_->added.text(id));
    else if (parts_->model_tokens.has(id))
      tokens.emplace_back(parts_->model_tokens.text(id));
  }
  if (tokens.empty()) return {};
  for (const auto& step : parts_->decoder) step->apply(tokens);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && parts_->decoder.empty()) text += ' ';
    text += tokens[i];
  }
  return text;
}

std::int64_t Tokenizer::size() const {
  return std::max(parts_->model_tokens.size(), parts_->added.size());
}

std::optional<std::int32_t> Tokenizer::id(std::string_view token) const {
  auto id = parts_->added.find(token);
  if (id < 0) id = parts_->model_tokens.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::token(std::int32_t id) const {
  return parts_->added.has(id) ? parts_->added.text(id) : parts_->model_tokens.text(id);
}

const SpecialTokens& Tokenizer::special() const { return parts_->special; }
const std::string& Tokenizer::digest() const { return parts_->digest; }
const std::vector<fs::path>& Tokenizer::files() const { return parts_->files; }

fs::path Tokenizer::name_in_folder(const fs::path& file) const {
  return file == parts_->json ? fs::path("tokenizer.json") : file.filename();
}

}  // namespace echelon
