#include "echelon/data/corpus_data.h"

#include <fmt/format.h>

#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/data/packed_documents.h"

namespace echelon {
namespace {

std::shared_ptr<const Dataset> samples_of(const CorpusData& data, const char* part,
                                          std::shared_ptr<const TokenDocuments> documents,
                                          const CorpusOptions& options) {
  const auto tokens = documents->tokens();
  MarkedDocuments marked(std::move(documents), data.corpus->description().marks);
  std::shared_ptr<const Dataset> samples;
  if (options.pack)
    samples = std::make_shared<PackedDocuments>(std::move(marked), options.context);
  else
    samples = std::make_shared<TruncatedDocuments>(std::move(marked), options.context);
  if (samples->size() == 0)
    throw InvalidArgument(fmt::format(
        "the {} documents of {} have {} tokens, and one sample needs {}; give more text or a "
        "smaller model.context",
        part, data.corpus->folder().string(), tokens, options.context));
  return samples;
}

}  // namespace

CorpusData open_corpus(const std::filesystem::path& folder, const CorpusOptions& options) {
  CorpusData data;
  data.corpus = std::make_shared<const Corpus>(folder);
  data.documents =
      split_documents(data.corpus, options.validation, options.pack ? options.context : 1);
  data.training = samples_of(data, "training", data.documents.training, options);
  if (data.documents.validation)
    data.validation = samples_of(data, "validation", data.documents.validation, options);
  const auto& description = data.corpus->description();
  data.description = fmt::format("{}: {} document{}, {} tokens", folder.string(),
                                 data.corpus->size(), data.corpus->size() == 1 ? "" : "s",
                                 human_count(static_cast<double>(description.tokens())));
  return data;
}

double CorpusData::bytes_per_token() const {
  const auto bytes = corpus->description().text_bytes, tokens = corpus->description().tokens();
  return tokens == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(tokens);
}

}  // namespace echelon
