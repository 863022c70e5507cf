// Text as bytes: files read as one sequence, cut into windows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/data/dataset.h"
#include "echelon/data/fingerprint.h"

namespace echelon {

// Several files as one sequence of bytes. Files are read on demand; the most recently used ones
// stay open, as many as the process's limit allows. A file that changes meanwhile is noticed: if it
// still has the same bytes (it was touched, copied, or grew), reading continues; reading changed
// bytes is an Error. Several threads may read.
class Text {
 public:
  explicit Text(const std::vector<std::filesystem::path>& files);  // in this order
  Text(std::shared_ptr<const Text> whole, std::int64_t begin,
       std::int64_t end);  // a part of another text
  ~Text();

  std::int64_t size() const { return size_; }
  void read(std::int64_t offset,
            std::span<std::uint8_t> out) const;  // throws InvalidArgument past the end

  // A checksum of a few pages spread over the text: it tells most texts apart immediately.
  std::uint64_t sample() const;
  // Reads the text for digest() until the deadline. True: all of it was read.
  bool read_for_digest(const Deadline& until) const;
  // A checksum of all bytes, available once they were read.
  std::uint64_t digest() const;

  // Identifies the files and their modification times. Equal on one host if the files are the same,
  // so one process can read them for all.
  std::uint64_t stamp() const;
  // The results of read_for_digest(): a checksum per block, zeros if it was not called. A text that
  // gets those of another text with the same bytes need not be read.
  std::vector<std::uint64_t> sums() const;
  void take_sums(std::span<const std::uint64_t> sums) const;

 private:
  class Files;

  std::shared_ptr<const Text> whole_;  // of which this is a part; otherwise `files_` is set
  std::int64_t begin_ = 0;
  std::unique_ptr<Files> files_;
  std::int64_t size_ = 0;
};

// Sample i is the window of `length` bytes at i * length, its target the same window one byte on.
class TextWindows : public Dataset {
 public:
  TextWindows(std::shared_ptr<const Text> text, std::int64_t length);
  std::int64_t size() const override { return (text_->size() - 1) / length_; }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  std::shared_ptr<const Text> text_;
  std::int64_t length_;
};

struct TextSplit {
  std::shared_ptr<const Text> training;
  std::shared_ptr<const Text> validation;  // nullptr without validation
  std::size_t files = 0;
  std::string description;  // "624 files of the Python 3.11 standard library"

  // Without the digest unless read_for_digest() was called, as in Text.
  DataFingerprint fingerprint() const;
  bool read_for_digest(const Deadline& until) const;
  std::string digest() const;

  // As in Text, of both parts; nothing if there is no text.
  std::string stamp() const;
  std::vector<std::uint64_t> sums() const;
  void take_sums(std::span<const std::uint64_t> sums) const;
};

// The files of a source: "stdlib", a file, or a folder with every regular file below it, in the
// order of their names. Throws InvalidArgument if there is none.
std::vector<std::filesystem::path> source_files(const std::string& source);

// `source` is "stdlib", a file or a folder (every regular file below it, in the order of their
// names). Several files are split by file, chosen by a hash of the relative name. With one file, or
// too few for that, validation gets the end of the text. Throws InvalidArgument if there is nothing
// to read, or less than one window of `length` in either part.
TextSplit open_text(const std::string& source, double validation, std::int64_t length);

}  // namespace echelon
