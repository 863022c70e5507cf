#include "echelon/data/corpus/corpus_writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <thread>

#include "echelon/base/file.h"
#include "echelon/base/folder.h"
#include "echelon/base/process_memory.h"
#include "echelon/base/random.h"
#include "echelon/data/corpus/aside_folder.h"
#include "echelon/data/corpus/corpus_tokenizer.h"
#include "echelon/data/corpus/count_words.h"
#include "echelon/data/corpus/token_cut.h"
#include "echelon/data/tokenizer/bpe_trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

// Words of a small vocabulary, with line ends and indentation.
std::string words(std::uint64_t seed, std::size_t bytes) {
  static const char* const some[] = {"the", "  ",   "rank", "sends", "\n", "\n    ", "don't",
                                     "é",   "漢字", "3.14", "(x)",   "\t", "a",      "\r\n"};
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) {
    const auto draw = philox(seed, i);
    text += some[draw[0] % std::size(some)];
    if (draw[1] % 3) text += " ";
  }
  return text;
}

class CorpusWriterTest : public testing::Test {
 protected:
  CorpusWriterTest() {
    WordCounts counts;
    for (const char* word : {"the", " the", " rank", " sends", "\n   ", " don", "'t", " 漢字"})
      counts.add(word, 10);
    write_tokenizer(folder_ / "tokenizer", train_bpe(counts, {.vocab = 290}));
  }
  fs::path write_text(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  Tokenizer tokenizer() const { return Tokenizer::open(folder_ / "tokenizer"); }
  std::vector<Ids> read() const {
    const Corpus corpus(target_);
    std::vector<Ids> all;
    for (std::int64_t i = 0; i < corpus.size(); ++i) {
      std::vector<std::int64_t> tokens(std::size_t(corpus.length(i)));
      corpus.read(i, 0, tokens);
      all.emplace_back(tokens.begin(), tokens.end());
    }
    return all;
  }
  Ids encoded(const std::string& text) const {
    Ids ids;
    tokenizer().append(text, ids);
    return ids;
  }
  // Everything in the corpus: names and contents.
  std::vector<std::pair<std::string, std::string>> contents() const {
    std::vector<std::pair<std::string, std::string>> all;
    std::error_code error;
    for (const auto& entry : list_folder(target_, error))
      all.emplace_back(entry.name, read_file(target_ / entry.name));
    return all;
  }

  const ScratchFolder folder_;
  const fs::path target_ = folder_ / "corpus";
};

TEST_F(CorpusWriterTest, HasTheTokensOfEachDocument) {
  const std::vector files = {write_text("a.txt", words(1, 5000)), write_text("empty.txt", ""),
                             write_text("b.jsonl", "{\"t\": \"the rank\"}\n{\"t\": \"\"}\n")};
  const auto totals = write_corpus(files, tokenizer(), target_, {.column = "t"});
  EXPECT_EQ(read(), (std::vector<Ids>{encoded(words(1, 5000)), {}, encoded("the rank"), {}}));
  EXPECT_EQ(totals.documents, 4);
  EXPECT_EQ(totals.tokens, Corpus(target_).tokens());
  EXPECT_EQ(totals.text_bytes, std::ssize(words(1, 5000)) + 8);
  const auto corpus = std::make_shared<const Corpus>(target_);
  EXPECT_EQ(corpus->description().marks.end, 0);
  EXPECT_TRUE(CorpusCheck(corpus).run(Deadline::never()));
  require_same_tokenizer(corpus->description(), target_, Tokenizer::open(target_));
}

TEST_F(CorpusWriterTest, HasItsTokeniserUnderTheNameThatIsLookedFor) {
  fs::copy_file(folder_ / "tokenizer/tokenizer.json", folder_ / "mine.json");
  write_corpus({write_text("a.txt", "the rank")}, Tokenizer::open(folder_ / "mine.json"), target_,
               {});
  require_same_tokenizer(Corpus(target_).description(), target_, Tokenizer::open(target_));
}

TEST_F(CorpusWriterTest, BelongsToItsTokeniserAlone) {
  write_corpus({write_text("a.txt", "the rank")}, tokenizer(), target_, {});
  CorpusDescription description = Corpus(target_).description();
  const std::string folder = target_.string();
  require_same_tokenizer(description, folder, tokenizer());
  description.vocab = 60'000;
  EXPECT_EQ(thrown<Corrupt>([&] { require_same_tokenizer(description, folder, tokenizer()); }),
            folder + "/corpus.json has vocab 60000, and the tokeniser " +
                tokenizer().files().front().string() + " has " +
                std::to_string(tokenizer().size()) + " tokens");
  description.tokenizer = "another";
  EXPECT_NE(thrown<InvalidArgument>([&] {
              require_same_tokenizer(description, folder, tokenizer());
            }).find("is not that of the corpus " + folder),
            std::string::npos);
}

// Cuts between pieces, batches and shards must not show.
TEST_F(CorpusWriterTest, HasTheSameBytesForAnyNumberOfThreads) {
  const std::string text = words(2, 3 << 20);
  const std::vector files = {write_text("a.txt", text), write_text("b.txt", words(3, 100'000)),
                             write_text("c.txt", words(4, 2 << 20))};
  std::vector<std::pair<std::string, std::string>> first;
  for (const int threads : {1, 2, 5}) {
    const auto totals = write_corpus(files, tokenizer(), target_,
                                     {.replace = true, .threads = threads, .shard_bytes = 1 << 20});
    EXPECT_EQ(totals.shards, 2) << "the second file fits no more";
    if (first.empty()) first = contents();
    EXPECT_TRUE(contents() == first) << threads << " threads";
  }
  EXPECT_TRUE(read() == (std::vector<Ids>{encoded(text), encoded(words(3, 100'000)),
                                          encoded(words(4, 2 << 20))}));
}

TEST_F(CorpusWriterTest, CutsWhereTheTokeniserDoesNotNotice) {
  const Tokenizer t = tokenizer();
  const TextCut cut = cut_for(t);
  const std::string text = words(5, 20'000);
  const auto at = cut(text);
  ASSERT_GT(at, 15'000u);
  Ids parts = encoded(text.substr(0, at)), rest = encoded(text.substr(at));
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, encoded(text));
  EXPECT_EQ(cut(std::string(20'000, ' ')), 0u) << "a run of blanks is one word";
  EXPECT_EQ(cut(std::string(20'000, 'x')), 0u);
  EXPECT_EQ(cut(""), 0u);
}

// What is read at once ends in the middle of a character, right behind a place for a cut.
TEST_F(CorpusWriterTest, TakesCharactersThatSpanReads) {
  for (const std::string character : {"漢", "\U0001F600"})
    for (std::size_t before = 1; before < character.size(); ++before) {
      std::string text((1 << 20) - 257, 'x');
      text += ' ';
      text.append((1 << 20) - before - text.size(), 'y');
      for (int i = 0; i < 300; ++i) text += character;
      write_corpus({write_text("a.txt", text)}, tokenizer(), target_, {.replace = true});
      EXPECT_TRUE(read().front() == encoded(text)) << before;
    }
}

TEST_F(CorpusWriterTest, LeavesNothingOfWhatFails) {
  const auto before = folder_.names();
  const auto good = write_text("a.txt", words(6, 2 << 20)), bad = write_text("b.txt", "x \xff");
  EXPECT_EQ(thrown<Corrupt>([&] {
              write_corpus({good, bad}, tokenizer(), target_, {});
            }),
            bad.string() + ": byte 2, 0xff, is not UTF-8; convert the file");
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { write_corpus({write_text("c.txt", "")}, tokenizer(), target_, {}); }),
            "there is no text in " + (folder_ / "c.txt").string());
  EXPECT_NE(thrown<Interrupted>([&] {
              write_corpus({good}, tokenizer(), target_,
                           {.progress = [](std::int64_t) { return false; }});
            }),
            "(nothing was thrown)");
  for (const auto& name : folder_.names())
    EXPECT_TRUE(std::count(before.begin(), before.end(), name) || name.ends_with(".txt")) << name;
}

TEST_F(CorpusWriterTest, ReplacesACorpusOnlyOnRequest) {
  const std::vector one = {write_text("a.txt", "the rank")}, two = {write_text("b.txt", "sends")};
  write_corpus(one, tokenizer(), target_, {});
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_corpus(two, tokenizer(), target_, {}); }),
            target_.string() +
                " has a corpus; choose another folder with -o, or replace it with --force");
  EXPECT_EQ(read(), (std::vector<Ids>{encoded("the rank")}));
  write_corpus(two, tokenizer(), target_, {.replace = true});
  EXPECT_EQ(read(), (std::vector<Ids>{encoded("sends")}));
  fs::create_directories(folder_ / "other");
  write_text("other/thesis.txt", "mine");
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { write_corpus(two, tokenizer(), folder_ / "other", {.replace = true}); }),
            (folder_ / "other").string() +
                " has other files than those of a corpus; choose a folder that is empty or not "
                "there");
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_corpus(two, tokenizer(), folder_ / "a.txt", {}); }),
            (folder_ / "a.txt").string() + " is a file, and a corpus is a folder; choose another");
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_corpus(two, tokenizer(), folder_ / "x/y", {}); }),
            "there is no folder " + (folder_ / "x").string() + " to write " +
                (folder_ / "x/y").string() + " into");
}

TEST_F(CorpusWriterTest, ReplacesNothingButACorpus) {
  const std::vector one = {write_text("a.txt", "the rank")};
  write_corpus(one, tokenizer(), target_, {});
  const auto again = [&] { write_corpus(one, tokenizer(), target_, {.replace = true}); };
  again();
  write_text("corpus/thesis.txt", "mine");
  EXPECT_EQ(thrown<InvalidArgument>(again),
            target_.string() +
                " has thesis.txt beside a corpus, which would be removed with it; move it away, or "
                "choose another folder");
  fs::remove(target_ / "thesis.txt");
  fs::create_directories(target_ / "shard-00000.tokens.d");
  EXPECT_NE(thrown<InvalidArgument>(again).find("shard-00000.tokens.d"), std::string::npos);
  fs::create_directories(folder_ / "web");
  write_text("web/corpus.json", "{\"name\": \"of somebody else\"}");
  EXPECT_NE(
      thrown<Corrupt>([&] { write_corpus(one, tokenizer(), folder_ / "web", {.replace = true}); }),
      "(nothing was thrown)");
  EXPECT_TRUE(fs::exists(folder_ / "web/corpus.json"));
}

// Between the first look at the folder and the end, another process may have used it.
TEST_F(CorpusWriterTest, RemovesNothingThatAppearsWhileItWrites) {
  const std::vector one = {write_text("a.txt", "the rank")}, two = {write_text("b.txt", "sends")};
  const auto meanwhile = [](const auto& happens) {
    return [=](std::int64_t) {
      happens();
      return true;
    };
  };
  const auto other_run = meanwhile([&] { write_corpus(one, tokenizer(), target_, {}); });
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { write_corpus(two, tokenizer(), target_, {.progress = other_run}); }),
            target_.string() +
                " was written by another process in the meantime; choose another folder with -o, "
                "or replace it with --force");
  const auto thesis = meanwhile([&] { write_text("corpus/thesis.txt", "mine"); });
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              write_corpus(two, tokenizer(), target_, {.replace = true, .progress = thesis});
            }),
            target_.string() +
                " has thesis.txt beside a corpus, which would be removed with it; move it away, or "
                "choose another folder");
  EXPECT_EQ(read_file(target_ / "thesis.txt"), "mine");
  EXPECT_EQ(read(), (std::vector<Ids>{encoded("the rank")}));
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"a.txt", "b.txt", "corpus", "tokenizer"}));
}

TEST_F(CorpusWriterTest, ReplacesTheFolderThatALinkLeadsTo) {
  const std::vector one = {write_text("a.txt", "the rank")}, two = {write_text("b.txt", "sends")};
  fs::create_directories(folder_ / "disk/corpus");
  fs::create_directory_symlink(folder_ / "disk/corpus", target_);
  write_corpus(one, tokenizer(), target_, {});
  write_corpus(two, tokenizer(), target_, {.replace = true});
  EXPECT_EQ(read(), (std::vector<Ids>{encoded("sends")}));
  EXPECT_TRUE(fs::is_symlink(target_));
  std::error_code error;
  EXPECT_EQ(list_folder(folder_ / "disk", error).size(), 1u);
  fs::create_directory_symlink(folder_ / "nowhere", folder_ / "loose");
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { write_corpus(one, tokenizer(), folder_ / "loose", {}); }),
      (folder_ / "loose").string() +
          " is a symbolic link to a folder that is not there; make the folder, or choose another");
}

// A pattern may need more steps than PCRE2 gets: an error of the tokeniser, which knows no files.
TEST_F(CorpusWriterTest, NamesTheTextThatTheTokeniserRefuses) {
  fs::create_directories(folder_ / "slow");
  write_file(folder_ / "slow/tokenizer.json",
             R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+[bc]"},
                                   "behavior": "Isolated"},
                 "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  std::optional<Tokenizer> t;
  try {
    t = Tokenizer::open(folder_ / "slow");
  } catch (const InvalidArgument&) {
    GTEST_SKIP() << "built without PCRE2";
  }
  const std::string bad(40, 'a');
  const auto said = [&](const fs::path& file) {
    return thrown<InvalidArgument>([&] {
      write_corpus({write_text("good.txt", "a"), file}, *t, target_,
                   {.column = file.extension() == ".txt" ? "" : "t"});
    });
  };
  const fs::path text = write_text("a.txt", bad);
  EXPECT_TRUE(said(text).starts_with(text.string() + ": ")) << said(text);
  const fs::path records = write_text("a.jsonl", "{\"t\": \"a\"}\n{\"t\": \"" + bad + "\"}\n");
  EXPECT_TRUE(said(records).starts_with(records.string() + ", line 2: ")) << said(records);
}

TEST_F(CorpusWriterTest, RefusesPlacesThatCannotBeRenamedBeforeItEncodes) {
  for (const fs::path& place : {fs::path("."), fs::path(".."), folder_ / ".", fs::path("/")})
    EXPECT_EQ(thrown<InvalidArgument>([&] { require_corpus_place(place, true); }),
              place.string() + " cannot be replaced by a corpus: give a folder with a name");
  EXPECT_NE(thrown<InvalidArgument>([] {
              require_corpus_place("/proc/", true);
            }).find("is a mount point"),
            std::string::npos);
}

// As Llama 2's: a mark for spaces, one before the text too, and bytes for what is unknown.
Tokenizer with_prepended_mark(const fs::path& folder) {
  std::string vocabulary = R"("<unk>": 0, "\u2581": 1)", merges;
  int next = 2;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary += fmt::format(", \"<0x{:02X}>\": {}", byte, next++);
  for (const char* token : {"a", "t", "h", "e", "th", "the", "\u2581the", "\u2581a"})
    vocabulary += fmt::format(", \"{}\": {}", token, next++);
  fs::create_directories(folder);
  write_file(folder / "tokenizer.json",
             R"({"normalizer": {"type": "Sequence", "normalizers": [
                  {"type": "Prepend", "prepend": "\u2581"},
                  {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
                 "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                 "merges": ["t h", "th e", "\u2581 the", "\u2581 a"], "vocab": {)" +
                 vocabulary + "}}}");
  return Tokenizer::open(folder);
}

TEST_F(CorpusWriterTest, PutsNothingBeforeAPieceThatContinuesADocument) {
  const Tokenizer t = with_prepended_mark(folder_ / "marked");
  const std::string text = words(9, 3 << 20);
  EXPECT_GT(cut_for(t)(text), text.size() - 1000);
  write_corpus({write_text("a.txt", text)}, t, target_, {});
  Ids ids;
  t.append(text, ids);
  EXPECT_TRUE(read().front() == ids);
}

// Memory must not grow with the text: 96 MiB of it pass through.
class CorpusWriterMemory : public CorpusWriterTest, public testing::WithParamInterface<bool> {};

TEST_P(CorpusWriterMemory, IsTheSameForMuchTextAsForLittle) {
  const std::string block = words(7, 4 << 20);
  const Tokenizer t = GetParam() ? with_prepended_mark(folder_ / "marked") : tokenizer();
  const auto peak = [&](int blocks) {
    std::ofstream out(folder_ / "long.txt", std::ios::binary);
    for (int i = 0; i < blocks; ++i) out << block;
    out.close();
    std::uint64_t most = 0;
    write_corpus(
        {folder_ / "long.txt"}, t, target_,
        {.replace = true, .threads = 2, .shard_bytes = 16 << 20, .progress = [&](std::int64_t) {
           most = std::max(most, anonymous_bytes());
           return true;
         }});
    return most;
  };
  const auto little = peak(6), much = peak(24);
  EXPECT_LT(much, little + (36 << 20)) << "the text has 24 and 96 MiB";
}

INSTANTIATE_TEST_SUITE_P(OfTokenisers, CorpusWriterMemory, testing::Bool(),
                         [](const auto& one) { return one.param ? "MarkedLlama2" : "ByteLevel"; });

bool anything(std::string_view /*name*/) { return true; }

TEST(AsideFolder, IsCompleteOrAbsent) {
  const ScratchFolder scratch;
  const fs::path target = scratch / "folder";
  {
    AsideFolder aside(target, anything);
    std::ofstream(aside.path() / "a") << "1";
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_TRUE(scratch.names().empty());
  for (const char* content : {"1", "2"}) {
    AsideFolder aside(target, anything);
    std::ofstream(aside.path() / content) << content;
    aside.replace([](const fs::path&) {});
    EXPECT_TRUE(fs::exists(target / content));
  }
  EXPECT_FALSE(fs::exists(target / "1")) << "the former contents are gone";
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"folder"});
}

TEST(AsideFolder, TakesTheNameOfAnEmptyFolderOnly) {
  const ScratchFolder scratch;
  fs::create_directories(scratch / "folder");
  {
    AsideFolder aside(scratch / "folder", anything);
    std::ofstream(aside.path() / "1") << "1";
    EXPECT_TRUE(aside.commit());
  }
  std::ofstream(scratch / "file") << "x";
  fs::create_directory_symlink(scratch / "folder", scratch / "link");
  for (const char* taken : {"folder", "file", "link"}) {
    AsideFolder aside(scratch / taken, anything);
    std::ofstream(aside.path() / "2") << "2";
    EXPECT_FALSE(aside.commit()) << taken;
  }
  EXPECT_TRUE(fs::exists(scratch / "folder" / "1"));
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"file", "folder", "link"}));
}

TEST(AsideFolder, PutsBackWhatMayNotBeRemoved) {
  const ScratchFolder scratch;
  fs::create_directories(scratch / "folder");
  std::ofstream(scratch / "folder/thesis.txt") << "mine";
  const auto refuse = [](const fs::path& old) {
    throw InvalidArgument(fs::exists(old / "thesis.txt") ? "this is a thesis" : "nothing is here");
  };
  {
    AsideFolder aside(scratch / "folder", anything);
    std::ofstream(aside.path() / "2") << "2";
    EXPECT_EQ(thrown<InvalidArgument>([&] { aside.replace(refuse); }), "this is a thesis");
  }
  fs::create_directories(scratch / "new");
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { replace_folder(scratch / "new", scratch / "folder", refuse); }),
      "this is a thesis");
  EXPECT_EQ(read_file(scratch / "folder/thesis.txt"), "mine");
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"folder", "new"}));
}

TEST(AsideFolder, RemovesThoseOfDeadWritersOnly) {
  const ScratchFolder scratch;
  const AsideFolder alive(scratch / "folder", is_corpus_file);
  const auto make = [&](const std::string& name, const std::string& file = {}) {
    fs::create_directories(scratch / name);
    if (!file.empty()) std::ofstream(scratch / (name + "/" + file)) << "x";
  };
  make(".folder.abc123.aside");
  make(".folder.abc124.aside", "shard-00000.tokens");
  make(".folder.abc125.aside", ".shard-00001.tokens.x1y2z3");
  const std::vector<std::string> others = {".folder.abc123", ".folder.backup",
                                           ".other.abc123.aside", ".folder.abc126.aside",
                                           ".folder.abc127.aside"};
  for (const std::string& name : others) make(name);
  make(others[3], "thesis.txt");
  fs::create_directories(scratch / (others[4] + "/shard-00000.tokens"));
  const AsideFolder another(scratch / "folder/", is_corpus_file);
  const auto names = scratch.names();
  const auto has = [&](const std::string& name) {
    return std::count(names.begin(), names.end(), name) == 1;
  };
  for (const std::string& name : others) EXPECT_TRUE(has(name)) << name << " is not one of ours";
  EXPECT_TRUE(has(alive.path().filename().string()));
  EXPECT_TRUE(has(another.path().filename().string()));
  EXPECT_EQ(names.size(), others.size() + 2);
}

// Writers begin at the same time: none removes the folder that another one has just made.
TEST(AsideFolder, IsNotRemovedByAWriterThatBeginsAtTheSameTime) {
  const ScratchFolder scratch;
  std::atomic<int> lost = 0;
  std::vector<std::jthread> writers;
  for (int i = 0; i < 4; ++i)
    writers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        const AsideFolder aside(scratch / "folder", is_corpus_file);
        std::this_thread::yield();
        lost += !fs::exists(aside.path());
      }
    });
  writers.clear();
  EXPECT_EQ(lost, 0);
}

TEST(AsideFolder, ReplacesAFolderWhereTheTwoCannotBeExchanged) {
  const ScratchFolder scratch;
  const auto accept = [](const fs::path&) {};
  for (const char* content : {"1", "2", "3"}) {
    fs::create_directories(scratch / "new");
    std::ofstream(scratch / "new" / content) << content;
    replace_folder(scratch / "new", scratch / "folder", accept);
    EXPECT_TRUE(fs::exists(scratch / "folder" / content));
  }
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"folder"});
  EXPECT_THROW(replace_folder(scratch / "nothing", scratch / "folder", accept), Error);
  EXPECT_TRUE(fs::exists(scratch / "folder" / "3"));
}

TEST(CountWords, IsTheSameForAnyNumberOfThreads) {
  const ScratchFolder folder;
  std::ofstream(folder / "a.txt", std::ios::binary) << words(8, 3 << 20);
  for (const auto kind : {WordsOf::lines, WordsOf::documents}) {
    std::vector<std::pair<std::string, std::int64_t>> first;
    for (const int threads : {1, 4}) {
      TextSource source({folder / "a.txt"}, {.cut = cut_for(kind), .batch_bytes = 100'000});
      const WordCounts counts = count_words(source, kind, threads);
      std::vector<std::pair<std::string, std::int64_t>> all;
      for (std::size_t i = 0; i < counts.size(); ++i)
        all.emplace_back(counts.word(i), counts.count(i));
      std::sort(all.begin(), all.end());
      if (first.empty()) first = all;
      EXPECT_TRUE(all == first) << threads;
    }
    EXPECT_EQ(std::any_of(first.begin(), first.end(),
                          [](const auto& word) { return word.first == "\n   "; }),
              kind == WordsOf::documents);
  }
}

}  // namespace
}  // namespace echelon
