#include "echelon/train/resume_command.h"

#include <gtest/gtest.h>

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
            "mpirun -n 8 (the hosts as before) echelon train --resume runs/a");
  EXPECT_EQ(resume_command("runs/a", started_by("MPICH", 2, 2)),
            "mpiexec -n 2 echelon train --resume runs/a");
}

TEST(ResumeCommand, SaysThatEveryMachineIsToBeginAgain) {
  EXPECT_EQ(resume_command("runs/a", started_by("RANK and WORLD_SIZE", 8, 4), "--set x=1"),
            "echelon train --resume runs/a --set x=1 on each of the 8 ranks, started as before "
            "(RANK and WORLD_SIZE)");
  EXPECT_EQ(resume_command("runs/a", started_by("torchrun", 2, 1)),
            "echelon train --resume runs/a on each of the 2 ranks, started as before (torchrun)");
}

}  // namespace
}  // namespace echelon
