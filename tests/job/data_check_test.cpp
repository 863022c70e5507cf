#include "echelon/job/data_check.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

std::string write(const fs::path& path, const std::string& content) {
  std::ofstream(path) << content;
  return path.string();
}

JobData data_of(const std::string& source) {
  JobOptions options;
  options.data.source = source;
  options.model.context = 16;
  options.train.validate_every = 0;
  return open_data(options);
}

// The objection of every rank to its data; empty: none. `allowed`: by this rank, or by all.
std::vector<std::string> said(const std::vector<std::string>& sources, const FormerData& former,
                              bool allowed, int by = -1) {
  std::vector<std::string> all(sources.size());
  run_ranks_well({.world = int(sources.size())}, [&](Group& group) {
    const auto rank = std::size_t(group.rank());
    const auto ranks = native_communicator(group.shared_from_this());
    JobData data = data_of(sources[rank]);
    try {
      require_same_data(data, rank == 0 ? former : FormerData{}, ranks.get(),
                        allowed && (by < 0 || by == int(rank)));
      EXPECT_NE(data.fingerprint.digest, "");
    } catch (const InvalidArgument& refusal) {
      all[rank] = refusal.what();
    }
  });
  return all;
}

TEST(DataCheck, LetsRanksWithTheSameDataPass) {
  ScratchFolder folder;
  const auto a = write(folder / "a", std::string(1000, 'x')),
             b = write(folder / "b", std::string(1000, 'x'));
  EXPECT_EQ(said({a, b, a}, {}, false), (std::vector<std::string>(3)));
}

TEST(DataCheck, TellsEveryRankWhichOneHasOtherData) {
  ScratchFolder folder;
  const auto a = write(folder / "a", std::string(1000, 'x')),
             cut = write(folder / "cut", std::string(999, 'x')),
             other = write(folder / "other", std::string(999, 'x') + "y");
  const std::string end = "; give every rank the same, or --allow-other-data if that is meant";
  for (const auto& sentence : said({a, a, cut}, {}, false))
    EXPECT_EQ(sentence,
              "ranks have different data: rank 2 has 999 bytes to train on and rank 0 has 1000 (" +
                  cut + " and " + a + ")" + end);
  for (const auto& sentence : said({a, other}, {}, false))
    EXPECT_EQ(sentence,
              "ranks have different data: rank 1 and rank 0 have 1000 bytes each, and not the same "
              "ones (" +
                  other + " and " + a + ")" + end);
  EXPECT_EQ(said({a, other}, {}, true), (std::vector<std::string>(2)));
}

TEST(DataCheck, AllowsOtherDataWhereAnyRankDoes) {
  ScratchFolder folder;
  const auto a = write(folder / "a", std::string(1000, 'x')),
             cut = write(folder / "cut", std::string(999, 'x'));
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(said({a, cut, a}, {}, true, rank), (std::vector<std::string>(3))) << "rank " << rank;
}

// What no sample sees.
TEST(DataCheck, ComparesEveryByte) {
  ScratchFolder folder;
  std::string text(4 << 20, 'x');
  const auto a = write(folder / "a", text);
  text[text.size() / 2 + 12345] = 'y';
  const auto b = write(folder / "b", text);
  ASSERT_EQ(data_of(a).fingerprint.sample, data_of(b).fingerprint.sample);
  for (const auto& sentence : said({a, b}, {}, false))
    EXPECT_NE(sentence.find("not the same ones"), std::string::npos) << sentence;
}

// Bytes that this process has requested from the kernel.
std::int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string key;
  std::int64_t bytes = 0;
  io >> key >> bytes;
  EXPECT_EQ(key, "rchar:");
  return bytes;
}

TEST(DataCheck, LetsOneRankOfAHostReadForAll) {
  ScratchFolder folder;
  constexpr std::int64_t size = 32 << 20;
  const auto a = write(folder / "a", std::string(size, 'x')),
             b = write(folder / "b", std::string(size, 'x'));
  const auto before = bytes_read();
  std::vector<DataFingerprint> all(4);
  run_ranks_well({.world = 4}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    JobData data = data_of(group.rank() < 3 ? a : b);  // another file is read separately
    require_same_data(data, {}, ranks.get(), false);
    all[std::size_t(group.rank())] = data.fingerprint;
    // Ranks that did not read it know its checksums anyway.
    ranks->barrier({.blocking = true}).wait();
    if (group.rank() == 0) fs::last_write_time(a, fs::file_time_type::clock::now());
    ranks->barrier({.blocking = true}).wait();
    EXPECT_EQ(data.training->get(std::vector<std::int64_t>{70000}).input[0][0].item<int>(), 'x');
    ranks->barrier({.blocking = true}).wait();
    if (group.rank() == 0) write(a, std::string(size, 'y'));
    ranks->barrier({.blocking = true}).wait();
    if (group.rank() < 3) {
      EXPECT_NE(thrown<Error>([&] {
                  data.training->get(std::vector<std::int64_t>{70000});
                }).find("was changed"),
                std::string::npos);
    }
  });
  EXPECT_LT(bytes_read() - before, 3 * size);
  for (const auto& one : all) {
    EXPECT_EQ(one.digest, all[0].digest);
    EXPECT_NE(one.digest, "");
  }
}

TEST(DataCheck, ReadsForEveryRankWhereOtherDataAreAllowed) {
  ScratchFolder folder;
  std::string text(4 << 20, 'x');
  const auto a = write(folder / "a", text);
  text[text.size() / 2 + 12345] = 'y';  // what no sample sees
  const auto b = write(folder / "b", text);
  std::vector<std::string> digests(4);
  run_ranks_well({.world = 4}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    JobData data = data_of(group.rank() % 2 == 0 ? a : b);
    require_same_data(data, {}, ranks.get(), true);
    digests[std::size_t(group.rank())] = data.text.digest();
    EXPECT_EQ(data.text.digest(), data.fingerprint.digest);
  });
  EXPECT_EQ(digests[0], digests[2]);
  EXPECT_EQ(digests[1], digests[3]);
  EXPECT_NE(digests[0], digests[1]);
}

TEST(DataCheck, ComparesARunWithWhatItWasTrainedOn) {
  ScratchFolder folder;
  const auto a = write(folder / "a", std::string(1000, 'x')),
             b = write(folder / "b", std::string(900, 'x'));
  JobData before = data_of(a);
  require_same_data(before, {}, nullptr, false);
  EXPECT_NE(before.fingerprint.digest, "");
  const FormerData former = {"runs/a", before.fingerprint};
  EXPECT_EQ(said({a, a}, former, false), (std::vector<std::string>(2)));
  for (const auto& sentence : said({b, b}, former, false))
    EXPECT_EQ(sentence, "runs/a was trained on other data: " + b +
                            " has 900 bytes to train on and runs/a has 1000; give its own with "
                            "--data, with the run's data.validation and train.validate_every, or "
                            "--allow-other-data if that is meant");
  EXPECT_EQ(said({b, b}, former, true), (std::vector<std::string>(2)));
  EXPECT_EQ(said({b, b}, {"runs/a", {}}, false), (std::vector<std::string>(2)))
      << "a state of an earlier version says nothing of its data";
}

TEST(DataCheck, RefusesAGuestWithOtherData) {
  ScratchFolder folder;
  const auto job = data_of(write(folder / "a", std::string(1000, 'x'))).fingerprint,
             same = data_of(write(folder / "b", std::string(1000, 'x'))).fingerprint,
             other = data_of(write(folder / "c", std::string(1000, 'y'))).fingerprint;
  check_guest_data(with_fingerprint("[model]\nlayers = 1\n", same, false), job);
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { check_guest_data(with_fingerprint("", other, false), job); }),
      "the worker has other data than the job: the worker and the job have 1000 bytes each, and not "
      "the same ones; give it the job's with --data, or --allow-other-data if that is meant");
  DataFingerprint split = job;  // a part of it is kept for validation
  split.training = 900;
  split.validation = 100;
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { check_guest_data(with_fingerprint("", split, false), job); }),
      "the worker has other data than the job: the worker has 900 bytes to train on and the job has "
      "1000; give it the job's data.validation and train.validate_every, or --allow-other-data if "
      "that is meant");
  check_guest_data(with_fingerprint("", other, true), job);
  check_guest_data(with_fingerprint("", other, false), {});
  EXPECT_NE(thrown<InvalidArgument>([&] { check_guest_data("[model]\n", job); }).find("version"),
            std::string::npos);
}

TEST(DataCheck, TellsAllRanksTheObjectionOfTheFirst) {
  std::vector<std::string> heard(3);
  run_ranks_well({.world = 3}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    require_no_objection("", ranks.get());
    heard[std::size_t(group.rank())] = thrown<InvalidArgument>(
        [&] { require_no_objection(group.rank() == 0 ? "no" : "", ranks.get()); });
  });
  EXPECT_EQ(heard, (std::vector<std::string>{"no", "no", "no"}));
}

}  // namespace
}  // namespace echelon
