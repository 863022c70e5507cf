#include "echelon/data/text.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "echelon/base/build_config.h"
#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/folder.h"
#include "echelon/base/random.h"
#include "echelon/data/text_files.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_files = 30000;

struct Found {
  std::vector<fs::path> files;
  std::vector<std::string> names;  // relative; they determine the order and the split
};

// Adds the files of the folder `below` the root (empty: the root itself) to `names`. Skips hidden
// entries and links to folders; of the standard library it takes only its own sources.
void add_names(const fs::path& root, const std::string& below, bool stdlib,
               std::vector<std::string>& names) {
  const fs::path folder = below.empty() ? root : root / below;
  std::error_code error;
  for (const auto& [name, is_folder, is_file, is_link] : list_folder(folder, error)) {
    if (name.starts_with('.')) continue;
    const std::string place = below.empty() ? name : below + '/' + name;
    if (is_folder) {
      const bool foreign = name == "site-packages" || name == "dist-packages" ||
                           name == "__pycache__" || name == "test" || name == "tests" ||
                           name == "idle_test" || name == "lib2to3";
      if (!is_link && !(stdlib && foreign)) add_names(root, place, stdlib, names);
      continue;
    }
    if (!is_file || (stdlib && !name.ends_with(".py"))) continue;
    names.push_back(place);
    if (names.size() > most_files) {
      throw InvalidArgument(
          fmt::format("{} has more than {} files; join them into fewer and larger ones",
                      root.string(), most_files));
    }
  }
  if (error)
    throw InvalidArgument(
        fmt::format("cannot read the folder {}: {}", folder.string(), error.message()));
}

Found find_files(const fs::path& root, bool stdlib) {
  Found found;
  add_names(root, "", stdlib, found.names);
  std::sort(found.names.begin(), found.names.end());
  for (const auto& name : found.names) found.files.push_back(root / name);
  return found;
}

void require_window(const Text& text, const char* part, const std::string& source,
                    std::int64_t length) {
  if (text.size() > length) return;
  throw InvalidArgument(fmt::format(
      "the {} text of {} has {} bytes, and one sequence needs {}; give more text or a smaller model.context",
      part, source, text.size(), length + 1));
}

void split_by_file(TextSplit& split, const Found& found, double validation) {
  std::vector<fs::path> training, held_out;
  for (std::size_t i = 0; i < found.files.size(); ++i) {
    const bool held = uniform_at(derive_key(0, found.names[i]), 0) < validation;
    (held ? held_out : training).push_back(found.files[i]);
  }
  split.training = std::make_shared<const Text>(training);
  split.validation = std::make_shared<const Text>(held_out);
}

void split_at_end(TextSplit& split, const Found& found, double validation) {
  const auto whole = std::make_shared<const Text>(found.files);
  const auto cut =
      whole->size() - static_cast<std::int64_t>(static_cast<double>(whole->size()) * validation);
  split.training = std::make_shared<const Text>(whole, 0, cut);
  split.validation =
      validation > 0 ? std::make_shared<const Text>(whole, cut, whole->size()) : nullptr;
}

Found find_source(const std::string& source) {
  if (source == "stdlib") {
    if (!fs::is_directory(ECHELON_STDLIB_DIR)) {
      throw InvalidArgument(
          fmt::format("the Python standard library is no longer at {}; give text with --data",
                      ECHELON_STDLIB_DIR));
    }
    return find_files(ECHELON_STDLIB_DIR, /*stdlib=*/true);
  }
  std::error_code error;
  const auto status = fs::status(source, error);
  if (!fs::exists(status))
    throw InvalidArgument(fmt::format("there is no file or folder {} to read text from", source));
  if (fs::is_directory(status)) return find_files(source, /*stdlib=*/false);
  return {{source}, {source}};
}

}  // namespace

Text::Text(const std::vector<fs::path>& files)
    : files_(std::make_unique<Files>(files)), size_(files_->size()) {}

Text::Text(std::shared_ptr<const Text> whole, std::int64_t begin, std::int64_t end)
    : whole_(std::move(whole)), begin_(begin), size_(end - begin) {}

Text::~Text() = default;

void Text::read(std::int64_t offset, std::span<std::uint8_t> out) const {
  const auto end = offset + static_cast<std::int64_t>(out.size());
  if (offset < 0 || end > size_) {
    throw InvalidArgument(
        fmt::format("bytes {} to {} were asked for of a text of {}", offset, end, size_));
  }
  whole_ ? whole_->read(begin_ + offset, out) : files_->read(offset, std::as_writable_bytes(out));
}

std::uint64_t Text::sample() const {
  constexpr std::int64_t pages = 64, page = 4096;
  std::vector<std::uint8_t> bytes;
  const auto add = [&](std::int64_t begin, std::int64_t n) {
    const auto had = bytes.size();
    bytes.resize(had + static_cast<std::size_t>(n));
    read(begin, std::span(bytes).subspan(had));
  };
  if (size_ <= pages * page)
    add(0, size_);
  else  // evenly spread, including the first and the last page
    for (std::int64_t i = 0; i < pages; ++i) add((size_ - page) * i / (pages - 1), page);
  return checksum(std::as_bytes(std::span(bytes)));
}

bool Text::read_for_digest(const Deadline& until) const {
  return whole_ ? whole_->read_for_digest(until) : files_->read_for_digest(until);
}

std::uint64_t Text::digest() const {
  if (!whole_) return files_->digest();
  const std::array<std::uint64_t, 3> part = {whole_->digest(), static_cast<std::uint64_t>(begin_),
                                             static_cast<std::uint64_t>(size_)};
  return checksum(std::as_bytes(std::span(part)));
}

std::uint64_t Text::stamp() const { return whole_ ? whole_->stamp() : files_->stamp(); }

std::vector<std::uint64_t> Text::sums() const { return whole_ ? whole_->sums() : files_->sums(); }

void Text::take_sums(std::span<const std::uint64_t> sums) const {
  whole_ ? whole_->take_sums(sums) : files_->take_sums(sums);
}

TextWindows::TextWindows(std::shared_ptr<const Text> text, std::int64_t length)
    : text_(std::move(text)), length_(length) {}

Batch TextWindows::get(std::span<const std::int64_t> indices) const {
  const auto samples = static_cast<std::int64_t>(indices.size());
  Batch batch{at::empty({samples, length_}, at::kLong), at::empty({samples, length_}, at::kLong)};
  std::vector<std::uint8_t> window(static_cast<std::size_t>(length_) + 1);
  for (std::int64_t s = 0; s < samples; ++s) {
    text_->read(indices[static_cast<std::size_t>(s)] * length_, window);
    std::copy(window.begin(), window.end() - 1, batch.input.data_ptr<std::int64_t>() + s * length_);
    std::copy(window.begin() + 1, window.end(),
              batch.target.data_ptr<std::int64_t>() + s * length_);
  }
  return batch;
}

DataFingerprint TextSplit::fingerprint() const {
  DataFingerprint found;
  found.tokeniser = "bytes";
  found.files = static_cast<std::int64_t>(files);
  found.training = training->size();
  found.validation = validation ? validation->size() : 0;
  found.sample = hexadecimal({training->sample(), validation ? validation->sample() : 0});
  return found;
}

bool TextSplit::read_for_digest(const Deadline& until) const {
  const auto reads = [&](const auto& part) { return !part || part->read_for_digest(until); };
  return reads(training) && reads(validation);
}

std::string TextSplit::digest() const {
  return hexadecimal({training ? training->digest() : 0, validation ? validation->digest() : 0});
}

std::string TextSplit::stamp() const {
  return training ? hexadecimal({training->stamp(), validation ? validation->stamp() : 0}) : "";
}

std::vector<std::uint64_t> TextSplit::sums() const {
  std::vector<std::uint64_t> all;
  for (const auto& part : {training, validation}) {
    const auto some = part ? part->sums() : std::vector<std::uint64_t>();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void TextSplit::take_sums(std::span<const std::uint64_t> sums) const {
  for (const auto& part : {training, validation}) {
    if (!part) continue;
    const auto count = part->sums().size();
    part->take_sums(sums.first(count));
    sums = sums.subspan(count);
  }
}

std::vector<fs::path> source_files(const std::string& source) {
  Found found = find_source(source);
  if (found.files.empty())
    throw InvalidArgument(fmt::format("there is no file to read in {}", source));
  return std::move(found.files);
}

TextSplit open_text(const std::string& source, double validation, std::int64_t length) {
  const Found found = find_source(source);
  TextSplit split;
  split.files = found.files.size();
  split.description =
      source == "stdlib"
          ? fmt::format("{} files of the Python standard library", split.files)
          : fmt::format("{} ({} file{})", source, split.files, split.files == 1 ? "" : "s");
  if (found.files.empty())
    throw InvalidArgument(fmt::format("there is no file to read in {}", source));
  try {
    if (validation > 0 && split.files > 1) split_by_file(split, found, validation);
    // One file, or too few for a split by names to fill both parts.
    const auto enough = [&](const auto& text) { return text != nullptr && text->size() > length; };
    if (!enough(split.training) || !enough(split.validation))
      split_at_end(split, found, validation);
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Error& error) {
    throw InvalidArgument(error.what());
  }
  require_window(*split.training, "training", source, length);
  if (split.validation != nullptr) require_window(*split.validation, "validation", source, length);
  return split;
}

}  // namespace echelon
