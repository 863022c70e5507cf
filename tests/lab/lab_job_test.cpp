#include "echelon/lab/lab_job.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/in_folder.h"
#include "echelon/base/options.h"
#include "echelon/base/toml_text.h"
#include "echelon/job/options.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

// A job runs in the working folder, here by a script in place of echelon, which writes what it was
// given: "RANK of WORLD_SIZE: arguments".
class LabJobs : public testing::Test {
 protected:
  LabJob::Run how(const std::string& script = "") const {
    const auto program = folder_.path() / "echelon";
    write_file(program, "#!/bin/sh\necho \"$RANK of $WORLD_SIZE: $*\" > said-$RANK\n" + script);
    fs::permissions(program, fs::perms::owner_all);
    return {.program = program.string()};
  }
  std::string said(int rank) const { return read_file(folder_ / ("said-" + std::to_string(rank))); }
  std::string file(const LabJob& job) const {
    return read_file(folder_.path() / "jobs" / (job.name() + ".toml"));
  }

  const ScratchFolder folder_;
  const InFolder within_{folder_.path()};
};

const LabSettings& settings() {
  static const LabSettings all = {{"train.steps", "20"},
                                  {"data.source", toml_string("data/train.tsv")},
                                  {"model.bert.token_types", "0"},
                                  {"train.batch", "8"},
                                  {"model.layers", "2"}};
  return all;
}

TEST_F(LabJobs, WriteTheirOptionsBySectionInTheOrderOfTheirFirstKeys) {
  const LabJob job("some", settings());
  job.run(how());
  EXPECT_EQ(file(job),
            "[train]\nsteps = 20\nbatch = 8\n\n[data]\nsource = \"data/train.tsv\"\n\n"
            "[model.bert]\ntoken_types = 0\n\n[model]\nlayers = 2\n");
  JobOptions options;
  read_toml_file(fields_of(options), "jobs/some.toml");
  EXPECT_EQ(options.train.steps, 20);
  EXPECT_EQ(options.train.batch, 8);
  EXPECT_EQ(options.data.source, "data/train.tsv");
  EXPECT_EQ(options.model.layers, 2);
}

TEST_F(LabJobs, TakeTheLastSettingOfAKey) {
  LabSettings twice = settings();
  twice.insert(twice.end(), {{"train.steps", "40"}, {"train.steps", "30"}, {"model.width", "64"}});
  const LabJob job("some", twice);
  job.run(how());
  EXPECT_EQ(file(job),
            "[train]\nsteps = 30\nbatch = 8\n\n[data]\nsource = \"data/train.tsv\"\n\n"
            "[model.bert]\ntoken_types = 0\n\n[model]\nlayers = 2\nwidth = 64\n");
}

TEST_F(LabJobs, RefuseOptionsThatDoNotExistBeforeAnythingIsWritten) {
  const auto refused = [](const LabSettings& some) {
    return thrown<InvalidArgument>([&] { LabJob("mine", some); });
  };
  const auto unknown = refused({{"train.stepz", "20"}});
  EXPECT_NE(unknown.find("train.stepz"), unknown.npos) << unknown;
  EXPECT_NE(unknown.find("did you mean train.steps?"), unknown.npos) << unknown;
  EXPECT_NE(unknown.find("mine"), unknown.npos) << unknown;
  for (const auto& [key, value] : LabSettings{{"steps", "20"},
                                              {"train.steps", "-1"},
                                              {"train.steps", "many"},
                                              {"train.steps", ""},
                                              {"data.source", "no quotes"}})
    EXPECT_NE(refused({{key, value}}), "(nothing was thrown)") << key << " = " << value;
  EXPECT_EQ(folder_.names().size(), 0u);
}

TEST_F(LabJobs, TakeAnyTextAsAValue) {
  for (const std::string text : {"plain/folder", "a \"quoted\" \\ folder", "two\nlines\tand \x1b",
                                 "f\xc3\xa4h \xe6\x97\xa5", "# no comment", "", "\\u0041"}) {
    const LabJob job("some", {{"data.source", toml_string(text)}});
    job.run(how());
    JobOptions options;
    read_toml_file(fields_of(options), "jobs/some.toml");
    EXPECT_EQ(options.data.source, text);
  }
}

TEST_F(LabJobs, ShowTheCommandThatRunsThem) {
  const LabJob job("zero3", settings());
  EXPECT_EQ(job.command({.program = "/somewhere/echelon"}), "echelon train jobs/zero3.toml");
  EXPECT_EQ(job.command({.program = "echelon",
                         .ranks = 2,
                         .trace = true,
                         .set = {"train.threads=1", "train.freeze=[\"a b\"]"}}),
            "echelon train jobs/zero3.toml --trace buckets --set train.threads=1 "
            "--set 'train.freeze=[\"a b\"]' --nproc 2");
}

TEST_F(LabJobs, RefuseOptionsThatContradictEachOtherBeforeAnythingIsWritten) {
  const LabJob job("some", {{"train.batch", "1"}});
  EXPECT_EQ(thrown<InvalidArgument>([&] { job.check({.program = "echelon"}); }),
            "(nothing was thrown)");
  const auto uneven =
      thrown<InvalidArgument>([&] { job.check({.program = "echelon", .ranks = 2}); });
  EXPECT_NE(uneven.find("train.batch"), uneven.npos) << uneven;
  const auto set = thrown<InvalidArgument>(
      [&] { job.check({.program = "echelon", .set = {"parallel.pipeline=2"}}); });
  EXPECT_NE(set.find("parallel.pipeline"), set.npos) << set;
  EXPECT_EQ(folder_.names().size(), 0u);
}

TEST_F(LabJobs, RunTheirProgramOnceForEachRank) {
  LabJob::Run two = how();
  two.ranks = 2;
  two.trace = true;
  two.set = {"train.seed=7"};
  LabJob("some", settings()).run(two);
  const std::string words =
      "train jobs/some.toml --trace buckets --set train.seed=7 --name some --json jobs/some.json\n";
  EXPECT_EQ(said(0), "0 of 2: " + words);
  EXPECT_EQ(said(1), "1 of 2: " + words);
}

// The exit code of a failed job; 0: it did not fail.
int exit_code_of(const LabJob::Run& how) {
  try {
    LabJob("some", settings()).run(how);
  } catch (const JobFailed& failed) {
    return failed.exit_code;
  }
  return 0;
}

TEST_F(LabJobs, GiveTheExitCodeOfAJobThatFails) {
  for (const int code : {0, 1, 2, 130})
    EXPECT_EQ(exit_code_of(how("exit " + std::to_string(code) + "\n")), code);
}

// A signal that comes during the last evaluation of a job. In a process without other threads, as
// launch() wants it; the parent of a rank's parent is the launcher.
TEST_F(LabJobs, AreInterruptedAlsoIfTheyEndWell) {
  for (const auto& [signal, code] :
       std::map<std::string, int>{{"INT", 130}, {"TERM", 130}, {"HUP", 130}, {"USR1", 0}}) {
    const auto told =
        how("trap '' INT TERM HUP USR1\nread -r _ _ _ launcher _ < /proc/$PPID/stat\n"
            "kill -" +
            signal + " $launcher\nsleep 0.5\nexit 0\n");
    const pid_t child = ::fork();
    if (child == 0) ::_exit(exit_code_of(told));
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << signal << ": " << status;
    EXPECT_EQ(WEXITSTATUS(status), code) << signal;
  }
}

TEST_F(LabJobs, AreNotStartedAfterAnInterrupt) {
  const std::atomic<bool> stop = true;
  LabJob::Run late = how();
  late.stop = &stop;
  EXPECT_EQ(exit_code_of(late), 130);
  EXPECT_FALSE(fs::exists(folder_ / "said-0"));
}

TEST_F(LabJobs, PrintNothingWhereTheyAreQuiet) {
  for (const bool quiet : {false, true}) {
    testing::internal::CaptureStdout();
    LabJob::Run talking = how("echo what a job prints\n");
    talking.quiet = quiet;
    LabJob("some", settings()).run(talking);
    EXPECT_EQ(testing::internal::GetCapturedStdout(), quiet ? "" : "what a job prints\n");
  }
}

TEST_F(LabJobs, SayWhatAFinishedJobWrote) {
  const LabJob job("some", settings());
  EXPECT_EQ(job.folder(), "runs/some");
  EXPECT_EQ(job.weights(), "runs/some/weights");
  fs::create_directories("jobs");
  fs::create_directories(job.folder());
  write_file("jobs/some.json", R"({"step_ms": 12.5, "val_f1": 0.75, "loss": -3e-7})");
  write_file(job.folder() / "ledger.json", R"({"world": 2, "sent_bytes": 5000000000})");
  std::string ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::string kinds;
    for (std::size_t i = 0; i < memory_kind_names.size(); ++i)
      kinds += (i > 0 ? ", \"" : "\"") + std::string(memory_kind_names[i]) +
               "\": " + std::to_string(100 * rank + int(i));
    ranks += (rank > 0 ? ", " : "") + ("{\"rank\": " + std::to_string(rank)) +
             ", \"tensors_at_peak_bytes\": {" + kinds + "}}";
  }
  write_file(job.folder() / "memory.json", "{\"ranks\": [" + ranks + "]}");
  write_file(job.folder() / "exchanges.json", "{\"steps\": 3}");
  EXPECT_EQ(job.number("step_ms"), 12.5);
  EXPECT_EQ(job.number("loss"), -3e-7);
  EXPECT_EQ(job.number("val_accuracy"), std::nullopt);
  EXPECT_EQ(job.sent_bytes(), 5000000000u);
  const auto memory = job.memory_at_peak();
  ASSERT_EQ(memory.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& [number, use] = memory[std::size_t(rank)];
    EXPECT_EQ(number, rank);
    for (std::size_t i = 0; i < use.bytes.size(); ++i)
      EXPECT_EQ(use.bytes[i], 100u * std::uint64_t(rank) + i) << memory_kind_names[i];
  }
  EXPECT_EQ(job.exchanges(), "{\"steps\": 3}");
}

}  // namespace
}  // namespace echelon
