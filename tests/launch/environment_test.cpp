#include "echelon/launch/environment.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Variables = std::map<std::string, std::string>;

JobEnvironment read(const Variables& variables, const std::string& full_name = "host.example") {
  return read_environment(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      [&] { return full_name; });
}

std::string refusal(const Variables& variables) {
  return thrown<InvalidArgument>([&] { read(variables); });
}

// "rank/world local_rank/local_world rendezvous source"
std::string told(const JobEnvironment& job) {
  return std::to_string(job.rank) + "/" + std::to_string(job.world) + " " +
         std::to_string(job.local_rank) + "/" + std::to_string(job.local_world) + " " +
         job.rendezvous + " " + job.source;
}

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

int port_of(const JobEnvironment& job) {
  return std::stoi(job.rendezvous.substr(job.rendezvous.rfind(':') + 1));
}

const Variables plain{{"RANK", "5"},         {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "1234"}};
const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_RANK", "1"},
                         {"PMIX_NAMESPACE", "1779105793"}};
const Variables slurm{{"SLURM_PROCID", "9"},
                      {"SLURM_NTASKS", "11"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODEID", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                      {"SLURM_STEP_NODELIST", "node[003-005,9]"},
                      {"SLURM_JOB_ID", "77"},
                      {"SLURM_STEP_ID", "0"}};
const Variables pod{{"JOB_COMPLETION_INDEX", "2"}, {"ECHELON_NODES", "4"}, {"HOSTNAME", "train-2"}};

TEST(Environment, NothingSetIsOneProcess) { EXPECT_EQ(told(read({})), "0/1 0/1  one process"); }

TEST(Environment, ReadsThePlainVariables) {
  EXPECT_EQ(told(read(plain)), "5/8 1/4 n0:1234 RANK and WORLD_SIZE");
}

TEST(Environment, TakesThePortAfterTheOneThatTorchrunsAgentHolds) {
  const Variables agent{{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "x"}};
  EXPECT_EQ(told(read(plain + agent)), "5/8 1/4 n0:1235 torchrun");
  EXPECT_EQ(read(plain + agent + Variables{{"MASTER_PORT", "65535"}}).rendezvous, "n0:65534");
  EXPECT_EQ(read(plain + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}}).rendezvous,
            "n0:1234");
}

TEST(Environment, AnAddressOfItsOwnGoesBeforeAll) {
  const Variables own{{"ECHELON_RENDEZVOUS", "[fd00::2]:99"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  for (const auto& source : {plain, open_mpi, slurm, pod})
    EXPECT_EQ(read(source + own).rendezvous, "[fd00::2]:99");
}

TEST(Environment, PutsBracketsAroundAnAddressOfVersion6) {
  EXPECT_EQ(read(plain + Variables{{"MASTER_ADDR", "fd00::2"}}).rendezvous, "[fd00::2]:1234");
}

TEST(Environment, RanksThatMeetAtALoopbackAddressAreAllHere) {
  Variables variables = plain;
  variables.erase("LOCAL_RANK");
  variables.erase("LOCAL_WORLD_SIZE");
  EXPECT_EQ(told(read(variables)), "5/8 0/1 n0:1234 RANK and WORLD_SIZE");
  variables["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(told(read(variables)), "5/8 5/8 127.0.0.1:1234 RANK and WORLD_SIZE");
}

TEST(Environment, EmptyVariablesCountAsNotSet) {
  EXPECT_EQ(told(read({{"RANK", ""}, {"WORLD_SIZE", ""}, {"ECHELON_RENDEZVOUS", ""}})),
            "0/1 0/1  one process");
}

TEST(Environment, OneRankNeedsNoMeetingPlace) {
  EXPECT_EQ(told(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}})), "0/1 0/1  RANK and WORLD_SIZE");
  EXPECT_EQ(read({{"WORLD_SIZE", "1"}}).world, 1);
}

TEST(Environment, RanksOfOpenMpiOnOneMachineMeetThere) {
  const auto job = read(open_mpi);
  EXPECT_EQ(job.source, "Open MPI");
  EXPECT_TRUE(job.rendezvous.starts_with("127.0.0.1:")) << job.rendezvous;
  EXPECT_GE(port_of(job), 20000);
  EXPECT_LE(port_of(job), 52767);
  EXPECT_EQ(read(open_mpi + Variables{{"OMPI_COMM_WORLD_RANK", "0"}}).rendezvous, job.rendezvous);
  EXPECT_NE(read(open_mpi + Variables{{"PMIX_NAMESPACE", "1779105794"}}).rendezvous,
            job.rendezvous);
}

TEST(Environment, RanksOfOpenMpiOnSeveralMachinesNeedAnAddress) {
  const auto several = open_mpi + Variables{{"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_EQ(refusal(several),
            "Open MPI started this job of 4 ranks but does not say where they can meet; set "
            "ECHELON_RENDEZVOUS=HOST:PORT on every rank, with a host of rank 0 and a port that is "
            "free there");
  EXPECT_EQ(told(read(several + Variables{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}})),
            "1/4 1/2 a:7 Open MPI");
}

TEST(Environment, ReadsMpichOnceItHasAnAddress) {
  const Variables mpich{{"PMI_RANK", "1"},        {"PMI_SIZE", "2"},     {"MPI_LOCALRANKID", "1"},
                        {"MPI_LOCALNRANKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  EXPECT_TRUE(refusal(mpich).starts_with("MPICH started this job of 2 ranks")) << refusal(mpich);
  EXPECT_EQ(told(read(mpich + Variables{{"ECHELON_RENDEZVOUS", "a:7"}})), "1/2 1/2 a:7 MPICH");
}

TEST(Environment, PmixAloneNeedsTheSizeFromTheUser) {
  const Variables pmix{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-h-1@1"}};
  EXPECT_EQ(refusal(pmix),
            "the environment variable PMIX_RANK is \"1\", but WORLD_SIZE is not set; set both or "
            "neither");
  const auto here =
      read(pmix + Variables{{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(here.source, "PMIx");
  EXPECT_TRUE(here.rendezvous.starts_with("127.0.0.1:")) << here.rendezvous;
  EXPECT_TRUE(refusal(pmix + Variables{{"WORLD_SIZE", "2"}}).find("set ECHELON_RENDEZVOUS") !=
              std::string::npos);
}

TEST(Environment, ReadsSlurm) {
  const auto job = read(slurm);
  EXPECT_EQ(told(job), "9/11 1/3 " + job.rendezvous + " Slurm");
  EXPECT_TRUE(job.rendezvous.starts_with("node003:")) << job.rendezvous;
  EXPECT_GE(port_of(job), 20000);
  EXPECT_LE(port_of(job), 52767);
  EXPECT_NE(read(slurm + Variables{{"SLURM_STEP_ID", "1"}}).rendezvous, job.rendezvous);
  EXPECT_EQ(
      told(read(slurm + Variables{{"PMIX_RANK", "9"}, {"PMIX_NAMESPACE", "slurm.pmix.77.0"}})),
      told(job));
  EXPECT_EQ(read(slurm + Variables{{"MASTER_PORT", "5"}}).rendezvous, "node003:5");
}

TEST(Environment, FindsTheFirstHostOfEveryKindOfList) {
  const std::map<std::string, std::string> hosts{{"a", "a"},
                                                 {"a,b", "a"},
                                                 {"n[1-2],m", "n1"},
                                                 {"n[09,11]", "n09"},
                                                 {"r[1-2]n[03-4]", "r1n03"},
                                                 {"a-b.c,d", "a-b.c"},
                                                 {"rack[0-1]-ib", "rack0-ib"}};
  for (const auto& [list, host] : hosts) {
    const auto place = read(slurm + Variables{{"SLURM_STEP_NODELIST", list}}).rendezvous;
    EXPECT_EQ(place.substr(0, place.find(':')), host) << list;
  }
  for (const auto* list : {"n[", "n[]", "n[1-2", "n[,1]"})
    EXPECT_EQ(refusal(slurm + Variables{{"SLURM_STEP_NODELIST", list}}),
              std::string("the environment variable SLURM_STEP_NODELIST is \"") + list +
                  "\"; it must be a list of hosts like node[003-005,9],login1");
}

TEST(Environment, CountsTheTasksOfThisNodeWhereSlurmSaysLess) {
  Variables variables = slurm;
  variables.erase("SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(read(variables + Variables{{"SLURM_NTASKS_PER_NODE", "4"}}).local_world, 4);
  EXPECT_EQ(read(variables + Variables{{"SLURM_NTASKS_PER_NODE", "40"}}).local_world, 11);
  EXPECT_EQ(read(variables + Variables{{"SLURM_NNODES", "3"}}).local_world, 4);
  EXPECT_EQ(read(variables).local_world, 11);
  EXPECT_EQ(read(slurm + Variables{{"SLURM_NODEID", "1"}}).local_world, 4);
  for (const auto* list : {"4(x2)", "x", "4(x2);3", "4,4,12"})
    EXPECT_TRUE(refusal(slurm + Variables{{"SLURM_STEP_TASKS_PER_NODE", list}})
                    .starts_with("the environment variable SLURM_STEP_TASKS_PER_NODE is"))
        << list;
}

TEST(Environment, ABatchScriptOfSlurmIsNoRank) {
  Variables script = slurm + Variables{{"SLURM_PROCID", "0"}, {"ENVIRONMENT", "BATCH"}};
  EXPECT_EQ(read(script).world, 11) << "srun in a batch script";
  script.erase("SLURM_STEP_ID");
  EXPECT_EQ(told(read(script)), "0/1 0/1  one process");
  EXPECT_EQ(read(slurm + Variables{{"SLURM_STEP_ID", "4294967290"}}).world, 1);
  script.erase("ENVIRONMENT");  // a login shell may have changed it
  EXPECT_EQ(told(read(script)), "0/1 0/1  one process");
  EXPECT_EQ(read(script).not_a_rank,
            "Slurm has set 11 tasks aside for job 77, but this process is none of them: put srun "
            "before the command, or start ranks of your own with --nproc");
  EXPECT_EQ(read(script + Variables{{"SLURM_NTASKS", "1"}}).not_a_rank, "");
  EXPECT_EQ(read(slurm).not_a_rank, "");
}

TEST(Environment, KnowsTheJobByWhatItsLauncherCallsIt) {
  const auto job = [](const Variables& variables) { return read(variables).identity.job; };
  EXPECT_EQ(job(plain), "");
  EXPECT_EQ(job(slurm), "Slurm 77.0");
  EXPECT_EQ(job(open_mpi), "Open MPI 1779105793");
  EXPECT_EQ(job(pod), "Kubernetes train");
  EXPECT_EQ(job(plain + Variables{{"TORCHELASTIC_RUN_ID", "x"}}), "torchrun x, restart 0");
  EXPECT_NE(
      job(plain + Variables{{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}),
      job(plain + Variables{{"TORCHELASTIC_RUN_ID", "x"}}));
  for (const auto& source : {plain, open_mpi, slurm, pod})
    EXPECT_EQ(job(source + Variables{{"ECHELON_JOB_ID", "mine"}}), "mine");
}

TEST(Environment, KnowsWhichLaunchItIsOf) {
  const auto identity = read(plain + Variables{{"ECHELON_LAUNCH_ID", "5f"}}).identity;
  EXPECT_EQ(identity.launch, "5f");
  EXPECT_EQ(identity.first_rank, 4) << "rank 5 is the second of its machine";
}

TEST(Environment, PodsOfAnIndexedJobMeetAtPodZero) {
  EXPECT_EQ(told(read(pod, "train-2.workers.default.svc.cluster.local")),
            "2/4 0/1 train-0.workers.default.svc.cluster.local:29500 Kubernetes");
  EXPECT_EQ(read(pod, "train-2").rendezvous, "train-0:29500");
  EXPECT_EQ(read(pod + Variables{{"HOSTNAME", "train-2.workers"}}).rendezvous,
            "train-0.workers:29500");
  EXPECT_EQ(read(pod + Variables{{"MASTER_ADDR", "m"}, {"MASTER_PORT", "3"}}).rendezvous, "m:3");
  EXPECT_EQ(read(pod + Variables{{"WORLD_SIZE", "3"}}).world, 3);
}

TEST(Environment, PodsThatCannotFindEachOtherSayWhatToSet) {
  Variables unknown = pod;
  unknown.erase("ECHELON_NODES");
  EXPECT_TRUE(refusal(unknown).find("set ECHELON_NODES") != std::string::npos) << refusal(unknown);
  EXPECT_EQ(read(pod + Variables{{"ECHELON_NODES", "1"}}).rank, 0) << "jobs of their own";
  const auto renamed = pod + Variables{{"HOSTNAME", "something"}};
  EXPECT_TRUE(refusal(renamed).starts_with("Kubernetes started this job of 4 ranks but"))
      << refusal(renamed);
}

TEST(Environment, NamesAVariableThatMakesNoSense) {
  EXPECT_EQ(refusal(plain + Variables{{"RANK", "8"}}),
            "the environment variable RANK is \"8\"; it must be a whole number from 0 to 7, since "
            "WORLD_SIZE is 8");
  for (const auto* value : {"-1", "x", "1x", " 1", "1.0", "99999999999999999999"})
    EXPECT_TRUE(refusal(plain + Variables{{"RANK", value}})
                    .starts_with(std::string("the environment variable RANK is \"") + value + "\""))
        << value;
  EXPECT_EQ(refusal(plain + Variables{{"WORLD_SIZE", "0"}}),
            "the environment variable WORLD_SIZE is \"0\"; it must be a whole number from 1 to "
            "1000000");
  EXPECT_EQ(
      refusal(plain + Variables{{"LOCAL_WORLD_SIZE", "9"}}),
      "the environment variable LOCAL_WORLD_SIZE is \"9\"; it must be a whole number from 1 to "
      "8, since WORLD_SIZE is 8");
  EXPECT_EQ(refusal(plain + Variables{{"LOCAL_RANK", "4"}}),
            "the environment variable LOCAL_RANK is \"4\"; it must be a whole number from 0 to 3, "
            "since LOCAL_WORLD_SIZE is 4");
  EXPECT_EQ(
      refusal(plain + Variables{{"MASTER_PORT", "70000"}}),
      "the environment variable MASTER_PORT is \"70000\"; it must be a whole number from 1 to "
      "65535");
  EXPECT_TRUE(
      refusal(plain + Variables{{"ECHELON_RENDEZVOUS", "nowhere"}})
          .starts_with("the environment variable ECHELON_RENDEZVOUS is \"nowhere\"; it must be "
                       "HOST:PORT"));
}

TEST(Environment, SaysWhatIsMissing) {
  EXPECT_EQ(
      refusal({{"RANK", "0"}}),
      "the environment variable RANK is \"0\", but WORLD_SIZE is not set; set both or neither");
  EXPECT_EQ(
      refusal({{"WORLD_SIZE", "2"}}),
      "the environment variable WORLD_SIZE is \"2\", but RANK is not set; set both or neither");
  Variables variables = plain;
  variables.erase("MASTER_PORT");
  EXPECT_EQ(
      refusal(variables),
      "the ranks are to meet at n0, but MASTER_PORT is not set; set it to a port that is free "
      "there, or ECHELON_RENDEZVOUS=HOST:PORT");
}

}  // namespace
}  // namespace echelon
