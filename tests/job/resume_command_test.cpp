#include "echelon/job/resume_command.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace echelon {
namespace {

JobEnvironment started_by(const char* source, int world, int local_world) {
  JobEnvironment environment;
  environment.source = source;
  environment.world = world;
  environment.local_world = local_world;
  return environment;
}

TEST(ResumeCommand, IsOneProcesssOwn) {
  EXPECT_EQ(resume_command("runs/a", {}), "echelon train --resume runs/a");
  EXPECT_EQ(resume_command("runs/a", {}, "--set optim.rate=..."),
            "echelon train --resume runs/a --set optim.rate=...");
}

TEST(ResumeCommand, StartsRanksOfOneMachineHere) {
  for (const char* source : {"RANK and WORLD_SIZE", "torchrun"})
    EXPECT_EQ(resume_command("runs/a", started_by(source, 4, 4)),
              "echelon train --resume runs/a --nproc 4");
}

TEST(ResumeCommand, UsesTheLauncherThatKnowsTheMachines) {
  EXPECT_EQ(resume_command("runs/a", started_by("Slurm", 8, 4)),
            "srun -n 8 echelon train --resume runs/a");
  EXPECT_EQ(resume_command("runs/a", started_by("Open MPI", 4, 4)),
            "mpirun -n 4 echelon train --resume runs/a");
  EXPECT_EQ(resume_command("runs/a", started_by("Open MPI", 8, 4)),
            "mpirun -n 8 echelon train --resume runs/a\n(with the hosts as before)");
  EXPECT_EQ(resume_command("runs/a", started_by("MPICH", 2, 2)),
            "mpiexec -n 2 echelon train --resume runs/a");
}

TEST(ResumeCommand, SaysThatEveryMachineMustStartAgain) {
  EXPECT_EQ(
      resume_command("runs/a", started_by("RANK and WORLD_SIZE", 8, 4), "--set x=1"),
      "echelon train --resume runs/a --set x=1\n(on each of the 8 ranks, started as before: RANK "
      "and WORLD_SIZE)");
  EXPECT_EQ(resume_command("runs/a", started_by("torchrun", 2, 1)),
            "echelon train --resume runs/a\n(on each of the 2 ranks, started as before: torchrun)");
}

// The words that a shell reads from the first line.
std::vector<std::string> words_of(const std::string& command) {
  const std::string line = command.substr(0, command.find('\n'));
  const std::string script =
      "echelon() { printf '%s\\n' \"$@\"; }; mpirun() { shift 3; echelon \"$@\"; }; ";
  ::setenv("ECHELON_TEST_SCRIPT", (script + line).c_str(), 1);
  FILE* const shell = ::popen("exec sh -c \"$ECHELON_TEST_SCRIPT\"", "r");
  std::string text;
  for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell)) text += char(c);
  EXPECT_EQ(::pclose(shell), 0) << line;
  std::vector<std::string> words;
  std::istringstream lines(text);
  for (std::string word; std::getline(lines, word);) words.push_back(word);
  return words;
}

TEST(ResumeCommand, IsQuotedForAShell) {
  for (const std::string run : {"runs/a", "runs/two words", "it's", "a$(b)`c`\"d\"", "(e);&|*"})
    for (const auto& environment :
         {JobEnvironment(), started_by("Open MPI", 8, 4), started_by("torchrun", 8, 4)})
      EXPECT_EQ(words_of(resume_command(run, environment)),
                (std::vector<std::string>{"train", "--resume", run}))
          << resume_command(run, environment);
}

}  // namespace
}  // namespace echelon
