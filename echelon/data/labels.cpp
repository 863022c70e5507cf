#include "echelon/data/labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr std::size_t most_listed = 8;
constexpr std::size_t most_labels = 10'000;

std::optional<std::int64_t> integer_in(std::string_view text) {
  std::int64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc() || rest != end) return {};
  return value;
}

bool is_fraction(std::string_view text) {
  double value = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, value);
  return failed == std::errc() && rest == end && !integer_in(text) &&
         text.find_first_of("0123456789") != text.npos;
}

// The different labels, and the first record of each.
std::map<std::string, std::int64_t> distinct(const Records& records, int column) {
  std::map<std::string, std::int64_t> first;
  const std::array columns = {column};
  for (std::int64_t i = 0; i < records.size(); ++i) {
    std::string label = std::move(records.read(i, columns).front());
    if (label.empty())
      throw InvalidArgument(
          fmt::format("{}: the label is empty; give one, or remove the line", records.place(i)));
    first.emplace(std::move(label), i);
    if (first.size() > most_labels)
      throw InvalidArgument(fmt::format(
          "{} has more than {} different labels in the column {}: a classification has fewer; is "
          "this the column of the labels (data.label)?",
          records.path().string(), most_labels, records.columns()[std::size_t(column)]));
  }
  return first;
}

// Integers must be 0 to n - 1. Returns n.
std::int64_t require_range(const Records& records,
                           const std::map<std::int64_t, std::int64_t>& first) {
  std::int64_t expected = 0;
  for (const auto& [label, record] : first) {
    if (label == expected) {
      ++expected;
      continue;
    }
    throw InvalidArgument(
        label < 0
            ? fmt::format("{}: label {} is below 0: labels are the integers from 0 on, or names",
                          records.place(record), label)
            : fmt::format("{}: there is a label {} and none is {}: labels are all integers from 0 "
                          "on, or names; task.labels says their number if some have no record",
                          records.place(record), label, expected));
  }
  return expected;
}

}  // namespace

Labels::Labels(std::int64_t count, std::vector<std::string> names, std::string of)
    : count_(count), names_(std::move(names)), of_(std::move(of)) {}

Labels Labels::found_in(const Records& records, int column) {
  const auto first = distinct(records, column);
  const std::string path = records.path().string();
  std::map<std::int64_t, std::int64_t> integers;
  for (const auto& [label, record] : first) {
    if (const auto value = integer_in(label))
      if (const auto [other, is_new] = integers.emplace(*value, record); !is_new)
        throw InvalidArgument(fmt::format(
            "{}: label {} is the integer {} in another spelling than in {}: write it the same way",
            records.place(record), label, *value, records.place(other->second)));
    if (is_fraction(label))
      throw InvalidArgument(
          fmt::format("{}: label {} is no integer: labels are the integers from 0 on, or names",
                      records.place(record), label));
  }
  if (first.size() < 2)
    throw InvalidArgument(
        fmt::format("{} has the label {} only: a classification needs 2 labels at least", path,
                    first.begin()->first));
  if (integers.size() == first.size()) return {require_range(records, integers), {}, path};
  std::vector<std::string> names;
  for (const auto& [label, record] : first) names.push_back(label);
  const auto count = std::ssize(names);
  return {count, std::move(names), path};
}

std::optional<std::int32_t> Labels::number_of(std::string_view text) const {
  const auto found = std::find(names_.begin(), names_.end(), text);
  if (found != names_.end()) return static_cast<std::int32_t>(found - names_.begin());
  const auto value = integer_in(text);
  if (value && *value >= 0 && *value < count_) return static_cast<std::int32_t>(*value);
  return {};
}

std::string Labels::listed() const {
  if (names_.empty()) return fmt::format("0 to {}", count_ - 1);
  const auto shown = std::min(names_.size(), most_listed);
  return fmt::format("{}{}",
                     fmt::join(names_.begin(), names_.begin() + std::ptrdiff_t(shown), ", "),
                     shown < names_.size() ? ", …" : "");
}

std::vector<std::int32_t> Labels::read(const Records& records, int column) const {
  std::vector<std::int32_t> numbers;
  numbers.reserve(std::size_t(records.size()));
  const std::array columns = {column};
  for (std::int64_t i = 0; i < records.size(); ++i) {
    const std::string label = records.read(i, columns).front();
    const auto number = number_of(label);
    if (!number)
      throw InvalidArgument(fmt::format("{}: label {} is unknown: the labels of {} are {}",
                                        records.place(i), label.empty() ? "\"\"" : label, of_,
                                        listed()));
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace echelon
