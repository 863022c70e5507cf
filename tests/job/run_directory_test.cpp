#include "echelon/job/run_directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/comm/job_ledger.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

StepReport report(std::int64_t step) {
  return {.step = step,
          .loss = 1.0 / static_cast<double>(step),
          .grad_norm = 0.5,
          .rate = 0.01,
          .seconds = 0.002,
          .targets = 40,
          .times = {.compute = 0.0005, .exposed = 0.00025, .hidden = 0.000125, .update = 0.00125}};
}

std::vector<json> lines(const fs::path& path) {
  std::vector<json> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
  return all;
}

TEST(RunDirectory, IsMadeOnceUnderItsName) {
  ScratchFolder folder;
  const auto runs = folder / "deep/runs";
  const RunDirectory run = RunDirectory::create(runs, "first");
  EXPECT_EQ(run.path(), runs / "first");
  EXPECT_TRUE(fs::is_directory(run.path()));
  const auto path = (runs / "first").string();
  EXPECT_EQ(thrown<InvalidArgument>([&] { RunDirectory::create(runs, "first"); }),
            path + " exists; choose another --name, or go on with --resume " + path);
}

TEST(RunDirectory, TakesTheTimeForANameAndNeverOneTwice) {
  ScratchFolder folder;
  std::set<fs::path> paths;
  for (int i = 0; i < 4; ++i) paths.insert(RunDirectory::create(folder.path(), "").path());
  EXPECT_EQ(paths.size(), 4U);
}

TEST(RunDirectory, StaysBelowTheFolderOfRuns) {
  ScratchFolder folder;
  for (const auto* name : {".", "..", "a/b", "/tmp/elsewhere", "../up"}) {
    const auto sentence =
        thrown<InvalidArgument>([&] { RunDirectory::create(folder / "runs", name); });
    EXPECT_NE(sentence.find("--name"), std::string::npos) << name << ": " << sentence;
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(RunDirectory, IsOpenedIfThereIsAStateToResumeFrom) {
  ScratchFolder folder;
  const auto missing = (folder / "none").string();
  EXPECT_EQ(thrown<InvalidArgument>([&] { RunDirectory::open(missing); }),
            "--resume: there is no run " + missing);
  const RunDirectory run = RunDirectory::create(folder.path(), "run");
  write_file(run.config(), "");
  EXPECT_NE(thrown<InvalidArgument>([&] {
              RunDirectory::open(run.path());
            }).find("holds no state to go on from"),
            std::string::npos);
  write_file(run.state(), "");
  EXPECT_EQ(RunDirectory::open(run.path()).path(), run.path());
}

TEST(RunDirectory, WritesALineAStep) {
  ScratchFolder folder;
  RunDirectory run = RunDirectory::create(folder.path(), "run");
  run.add_step(report(1), /*bytes=*/false);
  run.add_step(report(2), /*bytes=*/true);
  run.add_validation(2, 0.25, {{"bits_per_byte", 0.5}, {"accuracy", 0.75}});
  const auto all = lines(run.path() / "metrics.jsonl");
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0],
            (json{{"step", 1}, {"loss", 1.0}, {"grad_norm", 0.5}, {"rate", 0.01}, {"tokens", 40}}));
  auto time = lines(run.path() / "times.jsonl")[1];
  EXPECT_NEAR(time["time"].get<double>(), static_cast<double>(std::time(nullptr)), 300);
  EXPECT_GE(time["elapsed_s"].get<double>(), 0);
  time.erase("time");
  time.erase("elapsed_s");
  EXPECT_EQ(time, (json{{"step", 2},
                        {"step_ms", 2.0},
                        {"data_ms", 0.0},
                        {"compute_ms", 0.5},
                        {"exposed_ms", 0.25},
                        {"hidden_ms", 0.125},
                        {"update_ms", 1.25},
                        {"data_ms", 0.0}}));
  EXPECT_DOUBLE_EQ(all[1]["bits_per_byte"].get<double>(), 0.5 / std::log(2));
  EXPECT_EQ(all[2]["step"], 2);
  EXPECT_EQ(all[2]["val_loss"], 0.25);
  EXPECT_EQ(all[2]["val_bits_per_byte"], 0.5);
  EXPECT_EQ(all[2]["val_accuracy"], 0.75);
}

TEST(RunDirectory, RewindsItsMetricsToAStepAndContinuesFromThere) {
  ScratchFolder folder;
  {
    RunDirectory run = RunDirectory::create(folder.path(), "run");
    for (std::int64_t step = 1; step <= 12; ++step) run.add_step(report(step), false);
    run.add_validation(12, 0.5, {});
    write_file(run.config(), "");
    write_file(run.state(), "");
  }
  std::ofstream(folder / "run/metrics.jsonl", std::ios::app)
      << "{\"step\": 3, \"lo";  // cut short by a crash
  RunDirectory run = RunDirectory::open(folder / "run");
  run.rewind_metrics(9);
  run.add_step(report(10), false);
  const auto all = lines(folder / "run/metrics.jsonl");
  ASSERT_EQ(all.size(), 10U);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(all[i]["step"], i + 1);
    EXPECT_EQ(all[i]["loss"], 1.0 / static_cast<double>(i + 1)) << "numbers come through unchanged";
  }
}

TEST(RunDirectory, ContinuesItsTimeAfterTheRemainingSteps) {
  ScratchFolder folder;
  RunDirectory run = RunDirectory::create(folder.path(), "run");
  write_file(run.path() / "times.jsonl",
             "{\"step\":1,\"elapsed_s\":100.5}\n{\"step\":2,\"elapsed_s\":200.5}\n");
  run.rewind_metrics(1);
  run.add_step(report(2), false);
  const auto all = lines(run.path() / "times.jsonl");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_GE(all[1]["elapsed_s"].get<double>(), 100.5);
  EXPECT_LT(all[1]["elapsed_s"].get<double>(), 200);
}

TEST(RunDirectory, IsOneJobsAtATime) {
  ScratchFolder folder;
  {
    RunDirectory run = RunDirectory::create(folder.path(), "run");
    write_file(run.config(), "");
    write_file(run.state(), "");
    RunDirectory second = RunDirectory::open(run.path());  // only to read
    const auto sentence = thrown<InvalidArgument>([&] { second.lock(); });
    EXPECT_EQ(sentence.find(
                  fmt::format("{} is in use by process {} on ", run.path().string(), ::getpid())),
              0U)
        << sentence;
  }
  RunDirectory again = RunDirectory::open(folder / "run");
  again.lock();
  const RunDirectory moved = std::move(again);
  RunDirectory second = RunDirectory::open(folder / "run");
  EXPECT_THROW(second.lock(), InvalidArgument);
}

// A file that a killed process had begun to write has six letters behind its name.
TEST(RunDirectory, RemovesWhatAKilledJobHadBegunToWrite) {
  ScratchFolder folder;
  { RunDirectory::create(folder.path(), "run"); }
  const auto path = folder / "run";
  for (const std::string_view name : all_names<RunFile>) {
    write_file(path / name, "whole");
    write_file(path / fmt::format(".{}.abcdef", name), "half");
  }
  fs::create_directories(path / "best");
  write_file(path / "best/.model.safetensors.abcdef", "half");
  RunDirectory::open(path).lock();
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.path().extension() == ".abcdef") left.push_back(entry.path().string());
  EXPECT_EQ(left, std::vector<std::string>{});
  for (const std::string_view name : all_names<RunFile>) EXPECT_EQ(read_file(path / name), "whole");
}

TEST(RunDirectory, DropsInvalidLinesWhenItRewinds) {
  ScratchFolder folder;
  RunDirectory run = RunDirectory::create(folder.path(), "run");
  run.rewind_metrics(1);  // no metrics yet
  write_file(run.path() / "metrics.jsonl",
             "{\"step\":1}\nnonsense\n{\"step\":\"one\"}\n[1]\n\n{\"loss\":1}\n{\"step\":2}\n");
  run.rewind_metrics(1);
  EXPECT_EQ(read_file(run.path() / "metrics.jsonl"), "{\"step\":1}\n");
}

TEST(RunDirectory, WritesWhatWasMeasured) {
  ScratchFolder folder;
  const RunDirectory run = RunDirectory::create(folder.path(), "run");
  MemoryUse peak;
  peak.bytes = {1, 2, 3, 4, 5, 6};
  run.write_memory({}, {{peak, 100, 200}, {peak, 300, 400}});
  run.write_ledger(job_ledger(nullptr));
  const json memory = json::parse(read_file(run.path() / "memory.json"));
  EXPECT_EQ(memory["tensors_at_peak_bytes"], (json{{"parameters", 1},
                                                   {"gradients", 2},
                                                   {"optimizer", 3},
                                                   {"activations", 4},
                                                   {"workspace", 5},
                                                   {"communication", 6}}));
  EXPECT_EQ(memory["tensors_peak_bytes"], 21);
  EXPECT_EQ(memory["process_start_bytes"], 100);
  EXPECT_EQ(memory["process_peak_bytes"], 200);
  EXPECT_EQ(json::parse(read_file(run.path() / "ledger.json"))["sent_bytes"], 0);
}

}  // namespace
}  // namespace echelon
