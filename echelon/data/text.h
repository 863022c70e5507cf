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

// Several files, one after another, as one sequence of bytes. They are read when bytes are asked
// for; as many as the process's limit allows stay open, those used last. A file that is changed
// meanwhile is noticed: where it still has the bytes that it had (it was touched, copied, or grew)
// it is read on, a read of any others is an Error.
// Several threads may read.
class Text {
 public:
  explicit Text(const std::vector<std::filesystem::path>& files);  // in this order
  Text(std::shared_ptr<const Text> whole, std::int64_t begin,
       std::int64_t end);  // a part of another
  ~Text();

  std::int64_t size() const { return size_; }
  void read(std::int64_t offset,
            std::span<std::uint8_t> out) const;  // InvalidArgument past the end

  // A checksum of a few pages all over it: tells most texts apart at once.
  std::uint64_t sample() const;
  // Reads all of it for digest(), as far as it comes until the deadline; true: to the end.
  bool read_for_digest(const Deadline& until) const;
  // A checksum of all bytes, once they were read.
  std::uint64_t digest() const;

  // Which files these are and when they were last changed: equal on one host where they are the
  // very same, so that one process can read them for all there.
  std::uint64_t stamp() const;
  // What read_for_digest() has found out: a number for each block, zeros where it was not called.
  // With those of a text that has the same bytes it need not be.
  std::vector<std::uint64_t> sums() const;
  void take_sums(std::span<const std::uint64_t> sums) const;

 private:
  class Files;

  std::shared_ptr<const Text> whole_;  // of which this is a part; else `files_`
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
  std::shared_ptr<const Text> validation;  // nullptr where nothing is kept for it
  std::size_t files = 0;
  std::string description;  // "624 files of the Python 3.11 standard library"

  // Without the digest, which takes reading all of it: read_for_digest() first, as in Text.
  DataFingerprint fingerprint() const;
  bool read_for_digest(const Deadline& until) const;
  std::string digest() const;

  // As in Text, of both parts; nothing where there is no text.
  std::string stamp() const;
  std::vector<std::uint64_t> sums() const;
  void take_sums(std::span<const std::uint64_t> sums) const;
};

// `source` is "stdlib", a file or a folder (every regular file below it, in the order of their
// names). Several files are split by file, chosen by a hash of the file's relative name; one file,
// or too few for that, give the end of their text to validation. Throws InvalidArgument where there
// is nothing to read, or less than one window of `length` in either part.
TextSplit open_text(const std::string& source, double validation, std::int64_t length);

}  // namespace echelon
