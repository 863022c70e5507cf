#include "echelon/data/corpus/corpus_writer.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/folder.h"
#include "echelon/data/corpus/aside_folder.h"
#include "echelon/data/corpus/corpus.h"
#include "echelon/data/corpus/document_marks.h"
#include "echelon/data/corpus/ordered_work.h"
#include "echelon/data/corpus/token_cut.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

// The tokens of a batch, and where documents end among them.
struct EncodedBatch {
  TextBatch text;
  std::int64_t bytes = 0;  // of the source, up to the end of this batch
  std::vector<std::int32_t> ids;
  struct Piece {
    std::size_t end;  // in ids
    bool ends_document;
  };
  std::vector<Piece> pieces;
};

// The source is asked where a text is that cannot be encoded.
void encode(const Tokenizer& tokenizer, const TextSource& source, EncodedBatch& batch) {
  batch.ids.clear();
  batch.pieces.clear();
  for (const auto& piece : batch.text.pieces) {
    try {
      tokenizer.append(piece.text, batch.ids, piece.continues);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", source.place(piece), error.what()));
    }
    batch.pieces.push_back({batch.ids.size(), piece.ends});
  }
}

int threads_of(int given) {
  return given > 0 ? given : int(std::max(1u, std::thread::hardware_concurrency()));
}

// Batch after batch as shards, which may end within a batch.
class ShardSequence {
 public:
  ShardSequence(OrderedWork<EncodedBatch>& work, const CorpusWriterOptions& options)
      : work_(work), options_(options) {}

  bool ended() {
    if (!batch_) next_batch();
    return !batch_;
  }

  // Documents until the shard is full. ended() is false.
  ShardTotals write(FileWriter& file, int token_bytes) {
    TokenShardWriter shard(file, token_bytes);
    while (!ended()) {
      const auto [end, ends_document] = batch_->pieces[piece_];
      const auto begin = piece_ == 0 ? 0 : batch_->pieces[piece_ - 1].end;
      shard.add(std::span(batch_->ids).subspan(begin, end - begin));
      if (++piece_ == batch_->pieces.size()) batch_ = nullptr;
      if (!ends_document) continue;
      shard.end_document();
      if (shard.bytes() >= options_.shard_bytes) break;
    }
    return shard.finish();
  }

 private:
  void next_batch() {
    batch_ = work_.next();
    piece_ = 0;
    if (batch_ && options_.progress && !options_.progress(batch_->bytes))
      throw Interrupted("the corpus was not written: this was interrupted");
  }

  OrderedWork<EncodedBatch>& work_;
  const CorpusWriterOptions& options_;
  const EncodedBatch* batch_ = nullptr;
  std::size_t piece_ = 0;
};

bool is_mount_point(const fs::path& folder) {
  struct stat inside {
  }, outside{};
  return ::stat(folder.c_str(), &inside) == 0 && ::stat((folder / "..").c_str(), &outside) == 0 &&
         inside.st_dev != outside.st_dev;
}

// Throws unless `folder` has a corpus and nothing else, or nothing at all. Messages call it `name`.
void require_only_a_corpus(const fs::path& folder, const std::string& name) {
  std::error_code error;
  const auto entries = list_folder(folder, error);
  if (entries.empty() && !error) return;
  if (!is_corpus(folder))
    throw InvalidArgument(fmt::format(
        "{} has other files than those of a corpus; choose a folder that is empty or not there",
        name));
  CorpusDescription::parse(read_file(folder / "corpus.json"), name + "/corpus.json");
  for (const FolderEntry& entry : entries)
    if (!entry.is_file || !is_corpus_file(entry.name))
      throw InvalidArgument(fmt::format(
          "{} has {} beside a corpus, which would be removed with it; move it away, or choose "
          "another folder",
          name, entry.name));
}

// The folder itself, where a symbolic link is given: it is replaced, and the link stays.
fs::path without_link(const fs::path& folder) {
  std::error_code missing;
  fs::path real = fs::canonical(folder, missing);
  return missing ? folder : real;
}

// The folder was looked at before the text was encoded, and somebody may have written to it since.
void give_name(AsideFolder& aside, const fs::path& folder, bool replace) {
  if (replace) {
    require_corpus_place(folder, replace);
    aside.replace([&](const fs::path& old) { require_only_a_corpus(old, folder.string()); });
  } else if (!aside.commit()) {
    throw InvalidArgument(fmt::format(
        "{} was written by another process in the meantime; choose another folder with -o, or "
        "replace it with --force",
        folder.string()));
  }
}

}  // namespace

void require_corpus_place(const fs::path& given, bool replace) {
  const fs::path folder = given.has_filename() ? given : given.parent_path();
  // The finished corpus is renamed to this name.
  if (const auto name = folder.filename(); name.empty() || name == "." || name == "..")
    throw InvalidArgument(fmt::format(
        "{} cannot be replaced by a corpus: give a folder with a name", given.string()));
  std::error_code error;
  if (!fs::exists(folder, error)) {
    if (fs::is_symlink(fs::symlink_status(folder, error)))
      throw InvalidArgument(fmt::format(
          "{} is a symbolic link to a folder that is not there; make the folder, or choose another",
          folder.string()));
    const auto parent = folder.parent_path();
    if (!parent.empty() && !fs::is_directory(parent))
      throw InvalidArgument(
          fmt::format("there is no folder {} to write {} into", parent.string(), folder.string()));
    return;
  }
  if (!fs::is_directory(folder))
    throw InvalidArgument(
        fmt::format("{} is a file, and a corpus is a folder; choose another", folder.string()));
  if (is_mount_point(folder))
    throw InvalidArgument(fmt::format(
        "{} is a mount point, which cannot be replaced by a corpus: give a folder in it",
        folder.string()));
  if (!replace && is_corpus(folder))
    throw InvalidArgument(
        fmt::format("{} has a corpus; choose another folder with -o, or replace it with --force",
                    folder.string()));
  require_only_a_corpus(folder, folder.string());
}

CorpusTotals write_corpus(const std::vector<fs::path>& files, const Tokenizer& tokenizer,
                          const fs::path& folder, const CorpusWriterOptions& options) {
  require_corpus_place(folder, options.replace);
  TextSource source(
      files, {.column = options.column, .header = options.header, .cut = cut_for(tokenizer)});
  OrderedWork<EncodedBatch> work(
      threads_of(options.threads),
      [&](EncodedBatch& batch) {
        const bool more = source.next(batch.text);
        batch.bytes = source.bytes();
        return more;
      },
      [&](EncodedBatch& batch) { encode(tokenizer, source, batch); });

  CorpusDescription description;
  description.vocab = tokenizer.size();
  description.marks = document_marks(tokenizer);
  description.tokenizer = tokenizer.digest();
  AsideFolder aside(without_link(folder), is_corpus_file);
  CorpusTotals totals;
  for (ShardSequence shards(work, options); !shards.ended();) {
    const auto path = shard_path(aside.path(), description.shards.size());
    write_file(path, [&](FileWriter& file) {
      description.shards.push_back(shards.write(file, description.token_bytes()));
    });
    totals.file_bytes += std::int64_t(fs::file_size(path));
  }
  description.files = source.files();
  description.text_bytes = totals.text_bytes = source.bytes();
  totals.documents = description.documents();
  totals.tokens = description.tokens();
  totals.shards = std::ssize(description.shards);
  if (totals.tokens == 0)
    throw InvalidArgument(fmt::format("there is no text in {}{}", files.front().string(),
                                      files.size() > 1 ? " and the other files" : ""));
  for (const auto& file : tokenizer.files())
    write_file(aside.path() / tokenizer.name_in_folder(file), read_file(file));
  write_file(aside.path() / "corpus.json", description.to_json());
  give_name(aside, folder, options.replace);
  return totals;
}

}  // namespace echelon
