#include "echelon/data/corpus/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"

namespace echelon {
namespace {

constexpr std::string_view format = "echelon corpus";
constexpr std::int64_t version = 1, most = std::int64_t{1} << 48;
constexpr const char* description_name = "corpus.json";

std::optional<std::int32_t> mark_of(const JsonReader& json, const char* key, std::int64_t vocab) {
  if (!json.has(key)) return {};
  return std::int32_t(json.at(key).integer(0, vocab - 1));
}

std::uint64_t checksum_of(const JsonReader& json) {
  const std::string text = json.text();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    throw Corrupt(
        fmt::format("{}: the checksum {} has not 16 hexadecimal digits", json.file(), text));
  return value;
}

const std::filesystem::path& existing(const std::filesystem::path& folder) {
  if (!is_corpus(folder))
    throw InvalidArgument(fmt::format(
        "there is no corpus in {}: it has no corpus.json; make one with echelon tokenize corpus",
        folder.string()));
  return folder;
}

}  // namespace

std::int64_t CorpusDescription::documents() const {
  std::int64_t sum = 0;
  for (const auto& shard : shards) sum += shard.documents;
  return sum;
}

std::int64_t CorpusDescription::tokens() const {
  std::int64_t sum = 0;
  for (const auto& shard : shards) sum += shard.tokens;
  return sum;
}

std::string CorpusDescription::to_json() const {
  nlohmann::ordered_json json = {
      {"format", format},   {"version", version},           {"documents", documents()},
      {"tokens", tokens()}, {"token_bytes", token_bytes()}, {"vocab", vocab}};
  if (marks.begin) json["begin"] = *marks.begin;
  if (marks.end) json["end"] = *marks.end;
  json["tokenizer"] = tokenizer;
  json["files"] = files;
  json["text_bytes"] = text_bytes;
  for (const auto& shard : shards)
    json["shards"].push_back({{"documents", shard.documents},
                              {"tokens", shard.tokens},
                              {"checksum", fmt::format("{:016x}", shard.checksum)}});
  return json.dump(2) + "\n";
}

CorpusDescription CorpusDescription::parse(std::string_view text, const std::string& where) {
  const auto json = JsonReader::parse(text, where);
  if (json.at("format").text() != format)
    throw Corrupt(
        fmt::format("{} does not describe a corpus: its format is not \"{}\"", where, format));
  if (const auto found = json.at("version").integer(); found != version)
    throw Corrupt(
        fmt::format("{} has version {}, and this program reads {}", where, found, version));
  CorpusDescription description;
  description.vocab = json.at("vocab").integer(1, std::numeric_limits<std::int32_t>::max());
  description.marks = {mark_of(json, "begin", description.vocab),
                       mark_of(json, "end", description.vocab)};
  description.tokenizer = json.at("tokenizer").text();
  description.files = json.at("files").integer(0);
  description.text_bytes = json.at("text_bytes").integer(0);
  std::int64_t documents = 0, tokens = 0;
  for (const auto& shard : json.at("shards").items()) {
    const auto& totals = description.shards.emplace_back(ShardTotals{
        shard.at("tokens").integer(0, most - tokens),
        shard.at("documents").integer(0, most - documents), checksum_of(shard.at("checksum"))});
    documents += totals.documents;
    tokens += totals.tokens;
  }
  const auto require = [&](const char* key, std::int64_t expected) {
    if (const auto found = json.at(key).integer(); found != expected)
      throw Corrupt(fmt::format("{}: {} is {}, and the rest says {}", where, key, found, expected));
  };
  require("documents", documents);
  require("tokens", tokens);
  require("token_bytes", description.token_bytes());
  return description;
}

std::filesystem::path shard_path(const std::filesystem::path& corpus, std::size_t shard) {
  return corpus / fmt::format("shard-{:05}.tokens", shard);
}

bool is_corpus(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::is_regular_file(folder / description_name, error);
}

bool is_corpus_file(std::string_view name) {
  constexpr std::string_view before = "shard-", behind = ".tokens";
  constexpr std::array names = {std::string_view(description_name),
                                std::string_view("tokenizer.json"),
                                std::string_view("tokenizer_config.json"),
                                std::string_view("special_tokens_map.json"),
                                std::string_view("vocab.txt"),
                                std::string_view("vocab.json"),
                                std::string_view("merges.txt"),
                                std::string_view("added_tokens.json")};
  if (std::ranges::count(names, name) > 0) return true;
  if (!name.starts_with(before) || !name.ends_with(behind)) return false;
  name.remove_prefix(before.size());
  name.remove_suffix(behind.size());
  return name.size() >= 5 && name.find_first_not_of("0123456789") == name.npos;
}

Corpus::Corpus(const std::filesystem::path& folder) : folder_(existing(folder)) {
  const auto file = folder / description_name;
  description_ = CorpusDescription::parse(read_file(file), file.string());
  before_.push_back(0);
  for (const auto& totals : description_.shards) {
    const auto path = shard_path(folder, shards_.size());
    std::error_code error;
    if (!std::filesystem::exists(path, error))
      throw Corrupt(fmt::format("{} is missing: {} lists {} shards", path.string(), file.string(),
                                description_.shards.size()));
    const auto& shard = *shards_.emplace_back(std::make_unique<const TokenShard>(path));
    if (shard.totals() != totals || shard.token_bytes() != description_.token_bytes())
      throw Corrupt(
          fmt::format("{} is not the shard that {} describes: its counts or its checksum differ",
                      path.string(), file.string()));
    before_.push_back(before_.back() + totals.documents);
  }
}

std::string Corpus::digest() const {
  const std::string json = description_.to_json();
  return fmt::format("{:016x}", checksum(std::as_bytes(std::span(json.data(), json.size()))));
}

Corpus::Place Corpus::place_of(std::int64_t document) const {
  if (document < 0 || document >= size())
    throw InvalidArgument(
        fmt::format("document {} was asked for of a corpus of {}", document, size()));
  const auto shard =
      std::size_t(std::upper_bound(before_.begin(), before_.end(), document) - before_.begin() - 1);
  return {*shards_[shard], document - before_[shard]};
}

std::int64_t Corpus::length(std::int64_t document) const {
  const auto [shard, number] = place_of(document);
  return shard.length(number);
}

void Corpus::read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const {
  const auto [shard, number] = place_of(document);
  shard.read(number, first, description_.vocab, out);
}

bool CorpusCheck::run(const Deadline& until) {
  while (shard_ < corpus_->shards_.size()) {
    if (until.expired()) return false;
    const TokenShard& shard = *corpus_->shards_[shard_];
    if (shard.add_block(block_, sum_)) {
      ++block_;
      continue;
    }
    shard.verify(sum_);
    ++shard_;
    block_ = 0;
    sum_ = {};
  }
  return true;
}

}  // namespace echelon
