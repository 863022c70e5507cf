#include "echelon/data/corpus/document_split.h"

#include <algorithm>
#include <utility>

#include "echelon/base/random.h"

namespace echelon {
namespace {

// The last tokens of all documents for validation.
DocumentSplit split_at_end(const std::shared_ptr<const TokenDocuments>& all, double validation) {
  const auto held = static_cast<std::int64_t>(static_cast<double>(all->tokens()) * validation);
  std::vector<std::int64_t> training, held_out;
  std::int64_t after = 0, cut = 0;  // `cut` tokens of the last document of training are held out
  for (auto document = all->size() - 1; document >= 0; --document) {
    const auto length = all->length(document);
    if (after < held) {
      held_out.push_back(document);
      cut = std::min(held - after, length);
    }
    if (after + length > held) training.push_back(document);
    after += length;
  }
  std::reverse(training.begin(), training.end());
  std::reverse(held_out.begin(), held_out.end());
  const bool shared = !held_out.empty() && !training.empty() && training.back() == held_out.front();
  const auto skip = shared ? all->length(held_out.front()) - cut : 0;
  return {std::make_shared<DocumentPart>(all, std::move(training), 0, shared ? cut : 0),
          std::make_shared<DocumentPart>(all, std::move(held_out), skip)};
}

}  // namespace

DocumentPart::DocumentPart(std::shared_ptr<const TokenDocuments> all,
                           std::vector<std::int64_t> documents, std::int64_t skip,
                           std::int64_t drop)
    : all_(std::move(all)), documents_(std::move(documents)), skip_(skip), drop_(drop) {}

std::int64_t DocumentPart::length(std::int64_t document) const {
  return all_->length(documents_.at(std::size_t(document))) - (document == 0 ? skip_ : 0) -
         (document + 1 == size() ? drop_ : 0);
}

void DocumentPart::read(std::int64_t document, std::int64_t first,
                        std::span<std::int64_t> out) const {
  require_within(first, out.size(), length(document));
  all_->read(documents_[std::size_t(document)], first + (document == 0 ? skip_ : 0), out);
}

DocumentSplit split_documents(std::shared_ptr<const TokenDocuments> all, double validation,
                              std::int64_t least) {
  if (validation <= 0) return {std::move(all), nullptr};
  std::vector<std::int64_t> training, held_out;
  const Key key = derive_key(0, "documents held out for validation");
  for (std::int64_t i = 0; i < all->size(); ++i)
    (uniform_at(key, std::uint64_t(i)) < validation ? held_out : training).push_back(i);
  DocumentSplit split{std::make_shared<DocumentPart>(all, std::move(training)),
                      std::make_shared<DocumentPart>(all, std::move(held_out))};
  if (split.training->size() == 0 || split.validation->size() == 0 ||
      split.training->tokens() < least || split.validation->tokens() < least)
    return split_at_end(all, validation);
  return split;
}

}  // namespace echelon
