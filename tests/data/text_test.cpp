#include "echelon/data/text.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

fs::path write(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << content;  // many small files: without the fsync of write_file
  return path;
}

std::string read(const Text& text, std::int64_t offset, std::int64_t size) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  text.read(offset, bytes);
  return {bytes.begin(), bytes.end()};
}

std::string all(const Text& text) { return read(text, 0, text.size()); }

std::string letters(std::int64_t size) {
  std::string text;
  for (std::int64_t i = 0; i < size; ++i) text.push_back(static_cast<char>('a' + i % 26));
  return text;
}

std::vector<std::int64_t> row(const at::Tensor& rows, std::int64_t i) {
  const auto* begin = rows.const_data_ptr<std::int64_t>() + i * rows.size(1);
  return {begin, begin + rows.size(1)};
}

std::vector<std::int64_t> tokens(const std::string& text) {
  std::vector<std::int64_t> values;
  for (const char c : text) values.push_back(static_cast<unsigned char>(c));
  return values;
}

TEST(Text, ReadsAcrossFilesAsTheirConcatenation) {
  ScratchFolder folder;
  const std::vector<std::string> parts = {"", "one", "", "", "2", "three\nfour", ""};
  std::vector<fs::path> files;
  std::string whole;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    files.push_back(write(folder / std::to_string(i), parts[i]));
    whole += parts[i];
  }
  const Text text(files);
  ASSERT_EQ(text.size(), static_cast<std::int64_t>(whole.size()));
  for (std::size_t begin = 0; begin <= whole.size(); ++begin) {
    for (std::size_t size = 0; begin + size <= whole.size(); ++size) {
      EXPECT_EQ(read(text, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(size)),
                whole.substr(begin, size))
          << size << " bytes at " << begin;
    }
  }
}

TEST(Text, KeepsTheOrderOfTheFilesGiven) {
  ScratchFolder folder;
  const auto a = write(folder / "a", "A"), b = write(folder / "b", "B");
  EXPECT_EQ(all(Text({b, a, b})), "BAB");
}

TEST(Text, OfAPartIsThatPart) {
  ScratchFolder folder;
  const auto whole = std::make_shared<const Text>(
      std::vector{write(folder / "a", "abcde"), write(folder / "b", "fghij")});
  const auto part = std::make_shared<const Text>(whole, 3, 8);
  EXPECT_EQ(part->size(), 5);
  EXPECT_EQ(all(*part), "defgh");
  EXPECT_EQ(read(*part, 1, 3), "efg");
  EXPECT_EQ(all(Text(part, 1, 4)), "efg") << "a part of a part";
}

TEST(Text, RefusesToReadPastItsEnd) {
  ScratchFolder folder;
  const auto whole = std::make_shared<const Text>(std::vector{write(folder / "a", "abcde")});
  const Text part(whole, 1, 4);
  EXPECT_EQ(thrown<InvalidArgument>([&] { read(*whole, 3, 3); }),
            "bytes 3 to 6 were asked for of a text of 5");
  EXPECT_EQ(thrown<InvalidArgument>([&] { read(part, 0, 4); }),
            "bytes 0 to 4 were asked for of a text of 3");
  EXPECT_EQ(thrown<InvalidArgument>([&] { read(part, -1, 2); }),
            "bytes -1 to 1 were asked for of a text of 3");
}

// Overwrites a file in place, as an editor or cp does. The clock of file times ticks every few
// milliseconds; a change within one tick of the last check is not seen.
void overwrite(const fs::path& path, const std::string& content, bool append = false) {
  ::usleep(20'000);
  std::ofstream(path, append ? std::ios::app : std::ios::trunc) << content;
}

bool read_whole(const Text& text) { return text.read_for_digest(Deadline::never()); }

// Limits the open files of this process for its lifetime.
class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{files, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

// Names of the files of a folder that this process has open.
std::set<std::string> open_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the one that lists them
    const fs::path file = fs::read_symlink(entry.path(), gone);
    if (file.parent_path() == folder) names.insert(file.filename().string());
  }
  return names;
}

TEST(Text, ReadsMoreFilesThanItKeepsOpen) {
  const FileLimit few(100);
  ScratchFolder folder;
  std::vector<fs::path> files;
  std::string whole;
  for (int i = 0; i < 200; ++i) {
    files.push_back(write(folder / std::to_string(i), "<" + std::to_string(i) + ">"));
    whole += "<" + std::to_string(i) + ">";
  }
  const Text text(files);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(all(text), whole);
  EXPECT_EQ(open_in(folder.path()).size(), 25U) << "a quarter of the limit";
}

TEST(Text, KeepsAsManyFilesOpenAsTheLimitAllows) {
  const FileLimit many(500);
  ScratchFolder folder;
  std::vector<fs::path> files;
  for (int i = 0; i < 120; ++i) files.push_back(write(folder / std::to_string(i), letters(10)));
  const Text text(files);
  all(text);
  EXPECT_EQ(open_in(folder.path()).size(), 120U);
}

TEST(Text, ClosesTheFileThatWasUsedLongestAgo) {
  const FileLimit few(40);  // of which ten
  ScratchFolder folder;
  std::vector<fs::path> files;
  for (int i = 0; i < 12; ++i) files.push_back(write(folder / std::to_string(i), letters(10)));
  const Text text(files);
  for (int i = 0; i < 10; ++i) read(text, 10 * i, 10);
  read(text, 0, 10);
  read(text, 100, 10);
  EXPECT_TRUE(open_in(folder.path()).contains("0"));
  EXPECT_FALSE(open_in(folder.path()).contains("1"));
}

TEST(Text, SaysThatAFileWasCutWhileItIsRead) {
  ScratchFolder folder;
  const auto file = write(folder / "a", letters(100'000));
  const Text text({file});
  ASSERT_TRUE(read_whole(text));
  ASSERT_EQ(::truncate(file.c_str(), 0), 0);
  const auto sentence = thrown<Error>([&] { read(text, 50'000, 10); });
  EXPECT_EQ(sentence.find(file.string() + " has become shorter"), 0U) << sentence;
}

TEST(Text, SaysThatAFileWasChangedWhileItIsRead) {
  for (const bool known : {true, false}) {  // whether its digest is
    ScratchFolder folder;
    const auto file = write(folder / "a", letters(1000));
    const Text text({file});
    EXPECT_EQ(read(text, 0, 10), letters(10));
    if (known) {
      ASSERT_TRUE(read_whole(text));
    }
    overwrite(file, std::string(1000, '!'));
    const auto sentence = thrown<Error>([&] { read(text, 50, 10); });
    EXPECT_EQ(sentence.find(file.string() + " was changed while the job was reading it: it has "
                                            "other text now"),
              0U)
        << sentence;
    overwrite(file, letters(1200));
    if (!known) {
      EXPECT_NE(thrown<Error>([&] { read(text, 50, 10); }).find("1200 bytes now, and had 1000"),
                std::string::npos);
    }
  }
}

TEST(Text, ContinuesIfAChangedFileStillBeginsTheSame) {
  ScratchFolder folder;
  const auto file = write(folder / "a", letters(3000));
  const Text text({file});
  ASSERT_TRUE(read_whole(text));
  overwrite(file, "more", /*append=*/true);
  EXPECT_EQ(all(text), letters(3000)) << "it grew";
  overwrite(file, letters(3000));
  EXPECT_EQ(all(text), letters(3000)) << "it was written again";
}

// A changed file is never trusted, however long its digest took.
TEST(Text, NoticesAChangeRightAfterAHarmlessOne) {
  ScratchFolder folder;
  const std::string content = letters(16 << 20);
  const auto file = write(folder / "a", content);
  const Text text({file});
  ASSERT_TRUE(read_whole(text));
  overwrite(file, "more", /*append=*/true);
  EXPECT_EQ(read(text, 50, 10), content.substr(50, 10));
  overwrite(file, std::string(content.size() + 4, '!'));
  const auto sentence = thrown<Error>([&] { read(text, 50, 10); });
  EXPECT_EQ(sentence.find(file.string() + " was changed"), 0U) << sentence;
  overwrite(file, content);
  EXPECT_EQ(read(text, 50, 10), content.substr(50, 10)) << "the former text is back";
}

// A step must not wait until a large file was read again.
TEST(Text, ComparesOnlyWhatItReadsOfAChangedFile) {
  ScratchFolder folder;
  std::string content = letters(4 << 20);
  const auto file = write(folder / "a", content);
  const Text text({file});
  ASSERT_TRUE(read_whole(text));
  const std::string former = content;
  content[(3 << 20) + 5] = '!';
  overwrite(file, content);
  const std::int64_t across = (2 << 20) - 100;  // two blocks
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(read(text, 10, 100), former.substr(10, 100));
    EXPECT_EQ(read(text, across, 200), former.substr(static_cast<std::size_t>(across), 200));
    for (const std::int64_t place : {3 << 20, (3 << 20) - 50, (4 << 20) - 100})
      EXPECT_EQ(thrown<Error>([&] { read(text, place, 100); })
                    .find(file.string() + " was changed while the job was reading it: it has other "
                                          "text now"),
                0U)
          << place;
  }
}

TEST(Text, NoticesAnotherFileThatTookTheNameOfOneThatIsNotOpen) {
  const FileLimit few(64);
  ScratchFolder folder;
  std::vector<fs::path> files;
  for (int i = 0; i < 100; ++i) files.push_back(write(folder / std::to_string(i), letters(50)));
  const Text text(files);
  ASSERT_TRUE(read_whole(text));
  write(folder / "same", letters(50));
  fs::rename(folder / "same", files[0]);
  EXPECT_EQ(read(text, 0, 50), letters(50));
  write(folder / "other", std::string(50, '!'));
  fs::rename(folder / "other", files[1]);
  const auto sentence = thrown<Error>([&] { read(text, 50, 50); });
  EXPECT_EQ(sentence.find(files[1].string() + " was changed"), 0U) << sentence;
}

TEST(Text, HasADigestOfAllItsBytes) {
  ScratchFolder folder;
  const std::string content = letters(3 << 20);
  const auto digest = [&](const std::string& name, const std::string& bytes) {
    const Text text({write(folder / name, bytes)});
    EXPECT_TRUE(read_whole(text));
    return text.digest();
  };
  const auto first = digest("a", content);
  EXPECT_EQ(digest("b", content), first) << "wherever it is";
  for (const std::size_t place : {std::size_t{0}, content.size() / 2 + 5000, content.size() - 1}) {
    std::string other = content;
    other[place] ^= 1;
    EXPECT_NE(digest("c", other), first) << "byte " << place;
  }
  EXPECT_NE(digest("d", content.substr(1)), first);
  EXPECT_NE(digest("e", ""), first);
}

TEST(Text, ReadsForItsDigestABitAtATime) {
  ScratchFolder folder;
  std::vector<fs::path> files;
  for (int i = 0; i < 5; ++i) files.push_back(write(folder / std::to_string(i), letters(2 << 20)));
  const Text once(files), bit_by_bit(files);
  ASSERT_TRUE(read_whole(once));
  int times = 0;
  while (!bit_by_bit.read_for_digest(Deadline::in(std::chrono::microseconds(200)))) {
    ASSERT_LT(++times, 1'000'000);
  }
  EXPECT_GT(times, 1);
  EXPECT_EQ(bit_by_bit.digest(), once.digest());
  EXPECT_TRUE(bit_by_bit.read_for_digest(Deadline::in({}))) << "there is nothing left to read";
}

TEST(Text, HasASampleThatTellsMostTextsApart) {
  ScratchFolder folder;
  const std::string content = letters(1 << 20);
  const auto sample = [&](const std::string& bytes) {
    return Text({write(folder / "a", bytes)}).sample();
  };
  const auto first = sample(content);
  std::string upper = content;
  for (auto& c : upper) c = static_cast<char>(c - 32);
  EXPECT_EQ(sample(content), first);
  EXPECT_NE(sample(upper), first);
  EXPECT_NE(sample(content.substr(0, content.size() - 1) + "!"), first) << "the last byte";
  EXPECT_NE(sample("!" + content.substr(1)), first) << "the first byte";
  EXPECT_EQ(sample(""), sample(""));
}

TEST(TextWindows, CutTheTextAndPredictTheNextByte) {
  ScratchFolder folder;
  const std::string whole = letters(20) + "\xff\x80";
  const auto text = std::make_shared<const Text>(
      std::vector{write(folder / "a", whole.substr(0, 9)), write(folder / "b", whole.substr(9))});
  const TextWindows windows(text, 5);
  EXPECT_FALSE(windows.may_be_sorted()) << "a validation uses its first samples";
  ASSERT_EQ(windows.size(), 4);  // the 22nd byte is the last target
  const Batch batch = windows.get(std::vector<std::int64_t>{3, 0, 1, 3});
  ASSERT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{4, 5}));
  ASSERT_EQ(batch.target.sizes(), (std::vector<std::int64_t>{4, 5}));
  std::int64_t place = 0;
  for (const std::size_t window : {3, 0, 1, 3}) {
    EXPECT_EQ(row(batch.input, place), tokens(whole.substr(window * 5, 5))) << "window " << window;
    EXPECT_EQ(row(batch.target, place), tokens(whole.substr(window * 5 + 1, 5)))
        << "window " << window;
    ++place;
  }
}

TEST(TextWindows, NeedOneByteMoreThanTheirLength) {
  ScratchFolder folder;
  const auto windows = [&](std::int64_t bytes) {
    const auto file = write(folder / std::to_string(bytes), letters(bytes));
    return TextWindows(std::make_shared<const Text>(std::vector{file}), 5).size();
  };
  EXPECT_EQ(windows(0), 0);
  EXPECT_EQ(windows(5), 0);
  EXPECT_EQ(windows(6), 1);
  EXPECT_EQ(windows(10), 1);
  EXPECT_EQ(windows(11), 2);
}

// A hundred files whose content names them.
std::vector<std::string> write_many(const fs::path& folder) {
  std::vector<std::string> contents;
  for (int i = 0; i < 100; ++i) {
    const std::string name = (i % 3 == 0 ? "sub/" : "") + std::to_string(i) + ".txt";
    contents.push_back("<" + name + " " + letters(20) + ">");
    write(folder / name, contents.back());
  }
  return contents;
}

TEST(OpenText, SplitsByFileIntoPartsThatAreDisjointAndComplete) {
  ScratchFolder folder;
  const auto contents = write_many(folder.path());
  const TextSplit split = open_text(folder.path().string(), 0.3, 16);
  EXPECT_EQ(split.files, 100U);
  EXPECT_EQ(split.description, folder.path().string() + " (100 files)");
  const std::string training = all(*split.training), validation = all(*split.validation);
  std::size_t bytes = 0, held = 0;
  for (const auto& content : contents) {
    const bool trained = training.find(content) != std::string::npos;
    const bool validated = validation.find(content) != std::string::npos;
    EXPECT_NE(trained, validated) << content;
    held += validated;
    bytes += content.size();
  }
  EXPECT_EQ(training.size() + validation.size(), bytes);
  EXPECT_NEAR(static_cast<double>(held), 30, 14);  // three standard deviations
}

TEST(OpenText, SplitsTheSameFilesAlikeWhereverTheyAre) {
  ScratchFolder one, other;
  write_many(one.path());
  write_many(other.path() / "deeper" / "down");
  const TextSplit a = open_text(one.path().string(), 0.3, 16);
  const TextSplit b = open_text((other.path() / "deeper" / "down").string(), 0.3, 16);
  EXPECT_EQ(all(*a.training), all(*b.training));
  EXPECT_EQ(all(*a.validation), all(*b.validation));
}

TEST(OpenText, HasAFingerprintOfBothParts) {
  ScratchFolder one, other;
  write(one.path() / "text", letters(5000));
  write(other.path() / "elsewhere", letters(5000));
  const auto fingerprint = [](const fs::path& source, double validation) {
    const TextSplit split = open_text(source.string(), validation, 16);
    EXPECT_TRUE(split.read_for_digest(Deadline::never()));
    DataFingerprint found = split.fingerprint();
    found.digest = split.digest();
    return found;
  };
  const auto first = fingerprint(one / "text", 0.1);
  EXPECT_EQ(first.tokeniser, "bytes");
  EXPECT_EQ(first.files, 1);
  EXPECT_EQ(first.training, 4500);
  EXPECT_EQ(first.validation, 500);
  EXPECT_EQ(difference(first, "a", fingerprint(other / "elsewhere", 0.1), "b"), "");
  EXPECT_EQ(difference(first, "a", fingerprint(one / "text", 0.2), "b"),
            "a has 4500 bytes to train on and b has 4000");
  write(one.path() / "text", letters(4999) + "!");
  EXPECT_EQ(difference(fingerprint(one / "text", 0.1), "a", first, "b"),
            "a and b have 5000 bytes each, and not the same ones")
      << "a byte of the validation part";
}

TEST(OpenText, KeepsWhatIsHeldOutWhenTheShareGrows) {
  ScratchFolder folder;
  write_many(folder.path());
  const std::string few = all(*open_text(folder.path().string(), 0.1, 16).validation);
  const std::string more = all(*open_text(folder.path().string(), 0.3, 16).validation);
  EXPECT_LT(few.size(), more.size());
  for (std::size_t at = 0; at < few.size(); at = few.find('>', at) + 1) {
    const auto content = few.substr(at, few.find('>', at) + 1 - at);
    EXPECT_NE(more.find(content), std::string::npos) << content;
  }
}

TEST(OpenText, GivesTheEndOfTooFewFilesToValidation) {
  ScratchFolder folder;
  write(folder / "a", letters(600));
  write(folder / "b", letters(500));
  // Neither file is assigned to validation by its name.
  const TextSplit split = open_text(folder.path().string(), 0.05, 16);
  EXPECT_EQ(split.training->size(), 1045);
  EXPECT_EQ(split.validation->size(), 55);
  EXPECT_EQ(all(*split.training) + all(*split.validation), letters(600) + letters(500));
}

TEST(OpenText, ReadsAFolderInTheOrderOfNamesWithoutHiddenEntries) {
  ScratchFolder folder;
  for (const auto* name :
       {"b", "a/z", "a/.hidden", "a.txt", "c/d/e", ".git/objects", "B", ".profile"}) {
    write(folder / name, std::string(name) + ";");
  }
  fs::create_symlink(folder / "missing", folder / "dangling");
  const TextSplit split = open_text(folder.path().string(), 0, 4);
  EXPECT_EQ(all(*split.training), "B;a.txt;a/z;b;c/d/e;");
  EXPECT_EQ(split.validation, nullptr);
}

TEST(OpenText, GivesTheEndOfOneFileToValidation) {
  ScratchFolder folder;
  const std::string whole = letters(1000);
  const auto file = write(folder / "book.txt", whole);
  for (const auto& source : {file, folder.path()}) {  // a folder of one file is that file
    const TextSplit split = open_text(source.string(), 0.1, 16);
    EXPECT_EQ(all(*split.training), whole.substr(0, 900));
    EXPECT_EQ(all(*split.validation), whole.substr(900));
    EXPECT_EQ(split.description, source.string() + " (1 file)");
  }
  const TextSplit undivided = open_text(file.string(), 0, 16);
  EXPECT_EQ(all(*undivided.training), whole);
  EXPECT_EQ(undivided.validation, nullptr);
}

TEST(OpenText, FindsThePythonStandardLibrary) {
  const TextSplit split = open_text("stdlib", 0.05, 128);
  EXPECT_GT(split.files, 100U);
  EXPECT_GT(split.training->size(), 1 << 20);
  const double share = static_cast<double>(split.validation->size()) /
                       static_cast<double>(split.validation->size() + split.training->size());
  EXPECT_NEAR(share, 0.05, 0.04);
}

TEST(OpenText, SaysThatNothingIsThere) {
  ScratchFolder folder;
  EXPECT_EQ(thrown<InvalidArgument>([] { open_text("/no/such/text", 0, 4); }),
            "there is no file or folder /no/such/text to read text from");
  fs::create_directory(folder / "empty");
  EXPECT_EQ(thrown<InvalidArgument>([&] { open_text((folder / "empty").string(), 0, 4); }),
            "there is no file to read in " + (folder / "empty").string());
}

TEST(OpenText, SaysThatTextIsTooShort) {
  ScratchFolder folder;
  const auto empty = write(folder / "empty.txt", "").string();
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { open_text(empty, 0, 128); }),
      "the training text of " + empty +
          " has 0 bytes, and one sequence needs 129; give more text or a smaller model.context");
  const auto brief = write(folder / "brief.txt", letters(128)).string();
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { open_text(brief, 0, 128); }),
      "the training text of " + brief +
          " has 128 bytes, and one sequence needs 129; give more text or a smaller model.context");
  EXPECT_EQ(open_text(brief, 0, 127).training->size(), 128);
}

TEST(OpenText, SaysThatTheValidationPartIsTooShort) {
  ScratchFolder folder;
  const auto file = write(folder / "text", letters(1000)).string();
  const auto sentence = thrown<InvalidArgument>([&] { open_text(file, 0.05, 128); });
  EXPECT_EQ(sentence.find("the validation text of " + file + " has 50 bytes"), 0U) << sentence;
}

TEST(OpenText, SaysThatItIsNoText) {
  ScratchFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto sentence = thrown<InvalidArgument>([&] { open_text(pipe.string(), 0, 4); });
  EXPECT_NE(sentence.find(pipe.string()), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("(an error of another kind)"), std::string::npos) << sentence;
}

// Root may read everything, so the test drops that right for a while.
class WithoutRights {
 public:
  WithoutRights() : given_up_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  ~WithoutRights() {
    if (given_up_ && ::seteuid(0) != 0) std::abort();
  }

 private:
  bool given_up_;
};

TEST(OpenText, NamesUnreadableFilesInsteadOfSkippingThem) {
  ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  write(folder / "a/readable", letters(100));
  write(folder / "b/locked/file", letters(100));
  write(folder / "c/readable", letters(100));
  fs::permissions(folder / "b/locked", fs::perms::none);
  std::string sentence;
  {
    WithoutRights nobody;
    sentence = thrown<InvalidArgument>([&] { open_text(folder.path().string(), 0, 4); });
  }
  EXPECT_EQ(sentence,
            "cannot read the folder " + (folder / "b/locked").string() + ": Permission denied");
  fs::permissions(folder / "b/locked", fs::perms::all);
  fs::permissions(folder / "b/locked/file", fs::perms::none);
  {
    WithoutRights nobody;
    sentence = thrown<InvalidArgument>([&] { open_text(folder.path().string(), 0, 4); });
  }
  EXPECT_NE(sentence.find((folder / "b/locked/file").string()), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("Permission denied"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace echelon
