// The labels of a classification, as they stand in a column of a file: the integers from 0 on, or
// names, which are numbered in the order of their bytes.
//
//   const Labels labels = Labels::found_in(records, records.column("label"));
//   const auto numbers = labels.read(records, column);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/data/records/records.h"

namespace echelon {

class Labels {
 public:
  // Labels that are known before the data: those of existing weights, or of task.labels. Records
  // may have their numbers or, if there are names, their names. `of` says whose they are.
  Labels(std::int64_t count, std::vector<std::string> names, std::string of);

  // The labels that the records have. Throws InvalidArgument, with file and line, if there are
  // fewer than two, or integers that are not 0 to n - 1 or have two spellings (1 and 01), or
  // numbers that are no integers.
  static Labels found_in(const Records& records, int column);

  std::int64_t count() const { return count_; }
  const std::vector<std::string>& names() const { return names_; }  // empty: integers

  // The label of each record. Throws InvalidArgument, with file and line, for one that is not among
  // these.
  std::vector<std::int32_t> read(const Records& records, int column) const;

 private:
  std::optional<std::int32_t> number_of(std::string_view text) const;
  std::string listed() const;

  std::int64_t count_;
  std::vector<std::string> names_;
  std::string of_;
};

}  // namespace echelon
