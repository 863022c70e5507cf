#include "echelon/data/corpus/marked_documents.h"

#include <utility>

#include "echelon/base/error.h"

namespace echelon {

MarkedDocuments::MarkedDocuments(std::shared_ptr<const TokenDocuments> documents,
                                 DocumentMarks marks)
    : documents_(std::move(documents)) {
  if (!marks.begin && !marks.end)
    throw InvalidArgument(
        "the tokeniser has no token that begins or ends a text, which a causal model needs between "
        "documents: add one, such as <|endoftext|>, to its tokenizer.json and make the corpus "
        "again");
  begin_ = marks.begin ? *marks.begin : *marks.end;
  end_ = marks.end ? *marks.end : *marks.begin;
}

void MarkedDocuments::read(std::int64_t document, std::int64_t first,
                           std::span<std::int64_t> out) const {
  if (out.empty()) return;
  if (first == 0) {
    out.front() = begin_;
    out = out.subspan(1);
    ++first;
  }
  if (out.empty()) return;
  if (first + std::ssize(out) == length(document)) {
    out.back() = end_;
    out = out.first(out.size() - 1);
  }
  if (!out.empty()) documents_->read(document, first - 1, out);
}

}  // namespace echelon
