#include "echelon/job/token_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/data/answers.h"
#include "echelon/data/corpus/document_marks.h"
#include "echelon/data/corpus_data.h"
#include "echelon/data/encoded_text.h"
#include "echelon/data/labelled_texts.h"
#include "echelon/data/labels.h"
#include "echelon/data/masked_texts.h"
#include "echelon/data/packed_documents.h"
#include "echelon/data/record_texts.h"
#include "echelon/data/text.h"
#include "echelon/models/family.h"

namespace echelon {
namespace {

template <class T>
std::uint64_t sum_of(const std::vector<T>& values) {
  return checksum(std::as_bytes(std::span(values)));
}

std::int64_t context_of(const TokenReader& reader) {
  const auto length = reader.data.length, context = reader.model.context;
  if (length > context)
    throw InvalidArgument(
        fmt::format("data.length = {} is more than model.context = {}: set at "
                    "most that",
                    length, context));
  return length > 0 ? length : context;
}

TextRows rows_of(const TokenReader& reader) {
  return {.context = reader.model.context,
          .padding = reader.tokenizer->special().padding.value_or(0),
          .types = true};
}

Masking masking_of(const TokenReader& reader) {
  const SpecialTokens& special = reader.tokenizer->special();
  if (!special.mask)
    throw InvalidArgument(
        fmt::format("task.name=mlm hides words behind a mask token, and the tokeniser {} has none: "
                    "use another tokeniser or another task",
                    reader.data.tokenizer));
  Masking masking{.seed = reader.seed,
                  .share = reader.model.task.mask,
                  .mask = *special.mask,
                  .vocab = reader.tokenizer->size()};
  for (const auto& token : {special.padding, special.unknown, special.begin, special.end,
                            special.classifier, special.separator, special.mask})
    if (token) masking.special.push_back(*token);
  return masking;
}

// The labels of a model, if it classifies.
Labels labels_of(const TokenReader& reader) {
  const TaskOptions& task = reader.model.task;
  return {task.labels, task.label_names,
          reader.model.init.empty() ? reader.data.source : reader.model.init};
}

// The texts as the data of a part, and what was skipped in its description.
void mask_words(const TokenReader& reader, TokenTexts texts, TokenPart& part) {
  auto data = std::make_shared<MaskedTexts>(std::move(texts), rows_of(reader), masking_of(reader));
  if (data->skipped() > 0)
    part.description +=
        fmt::format(" ({} without a word of the vocabulary skipped)", data->skipped());
  part.data = std::move(data);
}

std::string counted(std::int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

// How records are read.
enum class RecordTask { labels, masked_words, answers, documents };

// A causal model learns answers if data.source has prompts, and otherwise documents.
RecordTask record_task(const TokenReader& reader, const Records& source) {
  const ModelTask task = task_of(reader.model);
  if (task == ModelTask::classify) return RecordTask::labels;
  if (task == ModelTask::mlm) return RecordTask::masked_words;
  const bool prompts = find_column(source, reader.data.prompt, usual_prompt) >= 0;
  return prompts ? RecordTask::answers : RecordTask::documents;
}

// Reads records of one file. The columns are looked up in each file, since those of the validation
// data may be in another order. The task is that of data.source for all files.
class RecordReader {
 public:
  RecordReader(const TokenReader& reader, const Records& records, RecordTask task)
      : reader_(reader), records_(records), task_(task) {}

  TokenPart part(std::span<const std::int64_t> numbers) const {
    switch (task_) {
      case RecordTask::labels:
        return labelled(numbers);
      case RecordTask::masked_words:
        return masked(numbers);
      case RecordTask::answers:
        return answers(numbers);
      case RecordTask::documents:
        break;
    }
    return documents(numbers);
  }

 private:
  EncodeRecords encoding(std::vector<int> columns, std::span<const std::int64_t> numbers) const {
    return {records_, *reader_.tokenizer,  std::move(columns),
            numbers,  context_of(reader_), reader_.threads};
  }

  std::vector<int> text_columns() const {
    const DataOptions& data = reader_.data;
    std::vector<int> columns = {require_column(records_, "data.text", data.text, usual_text)};
    if (!data.pair.empty()) columns.push_back(require_column(records_, "data.pair", data.pair, {}));
    return columns;
  }

  TokenPart described(const RecordTexts& found, const char* one, const char* many) const {
    TokenPart part{.bytes = found.bytes, .digest = found.digest};
    part.description = counted(found.texts.size(), one, many);
    if (found.cut > 0)
      part.description += fmt::format(" ({} cut to {} tokens)", found.cut, context_of(reader_));
    return part;
  }

  TokenPart labelled(std::span<const std::int64_t> numbers) const {
    const int column = require_column(records_, "data.label", reader_.data.label, usual_label);
    const auto all = labels_of(reader_).read(records_, column);
    std::vector<std::int32_t> labels;
    for (const auto number : numbers) labels.push_back(all[std::size_t(number)]);
    RecordTexts found = encode_texts(encoding(text_columns(), numbers));
    TokenPart part = described(found, "text", "texts");
    part.digest = sum_of(std::vector{found.digest, sum_of(labels)});
    part.data = std::make_shared<LabelledTexts>(std::move(found.texts), std::move(labels),
                                                rows_of(reader_));
    return part;
  }

  TokenPart masked(std::span<const std::int64_t> numbers) const {
    RecordTexts found = encode_texts(encoding(text_columns(), numbers));
    TokenPart part = described(found, "text", "texts");
    mask_words(reader_, std::move(found.texts), part);
    return part;
  }

  TokenPart answers(std::span<const std::int64_t> numbers) const {
    const DataOptions& data = reader_.data;
    RecordTexts found = encode_answers(
        encoding({require_column(records_, "data.prompt", data.prompt, usual_prompt),
                  require_column(records_, "data.answer", data.answer, usual_answer)},
                 numbers));
    TokenPart part = described(found, "answer", "answers");
    const auto padding = reader_.tokenizer->special().padding.value_or(0);
    part.data = std::make_shared<Answers>(
        std::move(found.texts), reader_.model.context, padding,
        [&](std::int64_t i) { return records_.place(numbers[std::size_t(i)]); });
    return part;
  }

  TokenPart documents(std::span<const std::int64_t> numbers) const;

  const TokenReader& reader_;
  const Records& records_;
  RecordTask task_;
};

// Documents between the tokeniser's marks.
TokenPart RecordReader::documents(std::span<const std::int64_t> numbers) const {
  const std::vector<int> columns = {
      require_column(records_, "data.text", reader_.data.text, usual_text)};
  const DocumentMarks marks = require_document_marks(*reader_.tokenizer);
  RecordTexts found = encode_plain(encoding(columns, numbers));
  TokenPart part = described(found, "text", "texts");
  part.tokens = found.texts.tokens();
  part.description += fmt::format(" of {} tokens", part.tokens);
  const auto documents = std::make_shared<DocumentsInMemory>();
  for (std::int64_t i = 0; i < found.texts.size(); ++i) documents->add(found.texts.ids(i));
  part.tokens += documents->size();  // the loss is also taken of the mark behind each
  MarkedDocuments marked(documents, marks);
  if (reader_.data.pack)
    part.data = std::make_shared<PackedDocuments>(std::move(marked), reader_.model.context);
  else
    part.data = std::make_shared<TruncatedDocuments>(std::move(marked), reader_.model.context);
  return part;
}

std::vector<std::int64_t> all_of(const Records& records) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(records.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Exactly this share of the records, at least one of two or more; the same for the same number of
// records.
std::vector<std::int64_t> held_out(std::int64_t records, double share) {
  if (share <= 0 || records < 2) return {};
  const auto wanted =
      std::clamp<std::int64_t>(std::llround(share * static_cast<double>(records)), 1, records - 1);
  const Key key = derive_key(0, "records for validation");
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < wanted; ++i)
    numbers.push_back(std::int64_t(permute(key, std::uint64_t(i), std::uint64_t(records))));
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Records open_file(const TokenReader& reader, const std::string& path) {
  return {path, Records::Options{.header = reader.data.header}};
}

void require_samples(const TokenPart& part, const std::string& source, std::int64_t context) {
  if (part.data->size() > 0) return;
  throw InvalidArgument(fmt::format(
      "{} has {} tokens, and one sequence needs {}; give more text or a smaller model.context",
      source, part.tokens, context + 1));
}

// A text, as its task reads it.
TokenPart part_of(const TokenReader& reader, const Text& text, const std::string& source) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(text.size()));
  text.read(0, bytes);
  std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // One file is split into training and validation at a byte, perhaps within a character.
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (!content.empty() && continues(content.front())) content.remove_prefix(1);
  for (int i = 1; i <= 3 && i <= std::ssize(content); ++i) {
    const auto lead = static_cast<unsigned char>(content[content.size() - std::size_t(i)]);
    if ((lead & 0xC0) == 0x80) continue;
    const int needs = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (needs > i) content.remove_suffix(std::size_t(i));
    break;
  }
  TokenPart part{.bytes = content.size(), .digest = checksum(std::as_bytes(std::span(content)))};
  if (task_of(reader.model) == ModelTask::mlm) {
    TokenTexts lines =
        encode_lines(*reader.tokenizer, content, source, context_of(reader), reader.threads);
    if (lines.size() == 0) throw InvalidArgument(fmt::format("{} has no line with words", source));
    part.description = counted(lines.size(), "text", "texts");
    mask_words(reader, std::move(lines), part);
    return part;
  }
  auto ids = encode_whole(*reader.tokenizer, content, source, reader.threads);
  part.tokens = std::ssize(ids);
  part.description = fmt::format("{} tokens", part.tokens);
  part.data = std::make_shared<EncodedWindows>(std::move(ids), reader.model.context);
  require_samples(part, source, reader.model.context);
  return part;
}

// Causal: the corpus stays in its files. Masked words: its tokens are read into memory, cut into
// texts.
TokenPart part_of_corpus(const TokenReader& reader, const CorpusData& corpus,
                         const std::shared_ptr<const TokenDocuments>& documents,
                         const std::shared_ptr<const Dataset>& samples) {
  TokenPart part{.tokens = documents->tokens()};
  part.bytes = std::uint64_t(static_cast<double>(part.tokens) * corpus.bytes_per_token());
  const std::string digest = corpus.corpus->digest();
  part.digest = checksum(std::as_bytes(std::span(digest)));
  part.description = fmt::format("{} documents of {} tokens", documents->size(), part.tokens);
  part.tokens += documents->size();  // the loss is also taken of the mark behind each
  part.data = samples;
  if (task_of(reader.model) != ModelTask::mlm) return part;
  const TextEnds ends = text_ends(*reader.tokenizer, context_of(reader));
  TokenTexts texts;
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < documents->size(); ++i) {
    tokens.resize(std::size_t(documents->length(i)));
    documents->read(i, 0, tokens);
    add_in_parts(texts, std::vector<std::int32_t>(tokens.begin(), tokens.end()), ends,
                 context_of(reader));
  }
  part.tokens = 0;
  mask_words(reader, std::move(texts), part);
  return part;
}

}  // namespace

int find_column(const Records& records, const std::string& option,
                const std::vector<std::string>& usual) {
  if (!option.empty()) return records.column(option);
  const auto& columns = records.columns();
  for (const std::string& name : usual)
    if (std::find(columns.begin(), columns.end(), name) != columns.end())
      return records.column(name);
  return -1;
}

int require_column(const Records& records, const char* key, const std::string& option,
                   const std::vector<std::string>& usual) {
  const int found = find_column(records, option, usual);
  if (found >= 0) return found;
  throw InvalidArgument(fmt::format("{} has no column {}; it has {}: name the column with {}",
                                    records.path().string(), fmt::join(usual, " or "),
                                    fmt::join(records.columns(), ", "), key));
}

std::string fingerprint_name(const Tokenizer& tokenizer) {
  return "tokens of tokeniser " + tokenizer.digest().substr(0, 16);
}

TokenParts open_records(const TokenReader& reader, double validation) {
  TokenParts parts{.files = 1};
  const Records records = open_file(reader, reader.data.source);
  std::vector<std::int64_t> training = all_of(records), held;
  if (reader.data.validation_source.empty()) held = held_out(records.size(), validation);
  std::vector<std::int64_t> rest;
  std::set_difference(training.begin(), training.end(), held.begin(), held.end(),
                      std::back_inserter(rest));
  const RecordTask task = record_task(reader, records);
  const RecordReader of_source(reader, records, task);
  parts.training = of_source.part(rest);
  if (!held.empty()) parts.validation = of_source.part(held);
  if (!reader.data.validation_source.empty()) {
    const Records others = open_file(reader, reader.data.validation_source);
    parts.validation = RecordReader(reader, others, task).part(all_of(others));
    parts.validation.description += " of " + reader.data.validation_source;
    parts.files = 2;
  }
  require_samples(parts.training, reader.data.source, reader.model.context);
  if (parts.validation.data && parts.validation.data->size() == 0) {
    const std::string& own = reader.data.validation_source;
    require_samples(parts.validation,
                    own.empty() ? "the validation part of " + reader.data.source : own,
                    reader.model.context);
  }
  return parts;
}

TokenParts open_corpus_parts(const TokenReader& reader, double validation) {
  const DataOptions& data = reader.data;
  const bool own = !data.validation_source.empty();
  const auto open = [&](const std::string& folder, double share) {
    CorpusData opened = open_corpus(
        folder, {.context = reader.model.context, .pack = data.pack, .validation = share});
    require_same_tokenizer(opened.corpus->description(), folder, *reader.tokenizer);
    return opened;
  };
  const CorpusData corpus = open(data.source, own ? 0 : validation);
  TokenParts parts{.files = corpus.corpus->description().files};
  parts.training = part_of_corpus(reader, corpus, corpus.documents.training, corpus.training);
  if (own) {
    const CorpusData other = open(data.validation_source, 0);
    parts.validation = part_of_corpus(reader, other, other.documents.training, other.training);
    parts.validation.description += " of " + data.validation_source;
  } else if (corpus.validation) {
    parts.validation =
        part_of_corpus(reader, corpus, corpus.documents.validation, corpus.validation);
  }
  return parts;
}

TokenParts open_text_as_tokens(const TokenReader& reader, double validation) {
  const DataOptions& data = reader.data;
  const bool own = !data.validation_source.empty();
  const TextSplit split = open_text(data.source, own ? 0 : validation, 1);
  TokenParts parts{.files = std::int64_t(split.files)};
  parts.training = part_of(reader, *split.training, data.source);
  if (own) {
    const TextSplit other = open_text(data.validation_source, 0, 1);
    parts.validation = part_of(reader, *other.training, data.validation_source);
    parts.validation.description += " of " + data.validation_source;
    parts.files += std::int64_t(other.files);
  } else if (split.validation) {
    parts.validation = part_of(reader, *split.validation, "the validation part of " + data.source);
  }
  return parts;
}

}  // namespace echelon
