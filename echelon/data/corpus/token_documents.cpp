#include "echelon/data/corpus/token_documents.h"

#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"

namespace echelon {

void require_within(std::int64_t first, std::size_t count, std::int64_t length) {
  if (first >= 0 && first <= length && std::int64_t(count) <= length - first) return;
  throw InvalidArgument(fmt::format("tokens {} to {} were asked for of a document of {}", first,
                                    first + std::int64_t(count), length));
}

std::int64_t TokenDocuments::tokens() const {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < size(); ++i) sum += length(i);
  return sum;
}

void DocumentsInMemory::add(std::span<const std::int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ends_.push_back(std::int64_t(tokens_.size()));
}

std::int64_t DocumentsInMemory::length(std::int64_t document) const {
  const auto i = std::size_t(document);
  return ends_.at(i) - (i == 0 ? 0 : ends_[i - 1]);
}

void DocumentsInMemory::read(std::int64_t document, std::int64_t first,
                             std::span<std::int64_t> out) const {
  require_within(first, out.size(), length(document));
  const auto begin = document == 0 ? 0 : ends_[std::size_t(document) - 1];
  std::copy_n(tokens_.begin() + begin + first, out.size(), out.begin());
}

}  // namespace echelon
