#include "echelon/launch/launcher.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/net/host.h"
#include "echelon/net/socket.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/launch/launched.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

using Lines = std::vector<std::string>;

class Launcher : public testing::Test {
 protected:
  // What a test's own surroundings may have set.
  void SetUp() override {
    for (const char* name : {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
                             "ECHELON_TOKEN", "ECHELON_TOKEN_FILE", "RANK", "WORLD_SIZE"})
      ::unsetenv(name);
  }

  // The environments of the ranks, each written to a file by `env`.
  std::vector<std::map<std::string, std::string>> environments(
      LaunchOptions options, const std::function<void()>& prepare = [] {}) {
    const ScratchFolder folder;
    options.program = {"/bin/sh", "-c", "env > $0/$LOCAL_RANK", folder.path().string()};
    Launched job(options, prepare);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    std::vector<std::map<std::string, std::string>> all;
    for (int i = 0; i < options.nproc; ++i) {
      auto& variables = all.emplace_back();
      for (const auto& line : lines_of(contents(folder / std::to_string(i))))
        variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    }
    return all;
  }
};

TEST_F(Launcher, TellsEveryRankWhoItIs) {
  const auto ranks = environments(shell(3, ""));
  for (int i = 0; i < 3; ++i) {
    auto rank = ranks[static_cast<std::size_t>(i)];
    EXPECT_EQ(rank["RANK"], std::to_string(i));
    EXPECT_EQ(rank["LOCAL_RANK"], std::to_string(i));
    EXPECT_EQ(rank["WORLD_SIZE"], "3");
    EXPECT_EQ(rank["LOCAL_WORLD_SIZE"], "3");
    EXPECT_EQ(rank["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(parse_address(rank["ECHELON_RENDEZVOUS"]).host, "127.0.0.1");
    EXPECT_NE(rank["ECHELON_RENDEZVOUS"], "127.0.0.1:" + rank["MASTER_PORT"]);
    EXPECT_GE(rank["ECHELON_TOKEN"].size(), 32u);
    EXPECT_EQ(rank.contains("ECHELON_RENDEZVOUS_FD"), i == 0);
    for (const char* name : {"MASTER_PORT", "ECHELON_RENDEZVOUS", "ECHELON_TOKEN"})
      EXPECT_EQ(rank[name], ranks[0].at(name)) << name;
  }
}

TEST_F(Launcher, NumbersItsJobsAtRandom) {
  const auto first = environments(shell(2, "")), second = environments(shell(1, ""));
  EXPECT_EQ(first[0].at("ECHELON_LAUNCH_ID"), first[1].at("ECHELON_LAUNCH_ID"));
  EXPECT_NE(first[0].at("ECHELON_LAUNCH_ID"), second[0].at("ECHELON_LAUNCH_ID"));
}

TEST_F(Launcher, RefusesMoreRanksThanItCanHaveFilesFor) {
  Launched job(shell(60, "true"), [] {
    const rlimit limit{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  });
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_TRUE(job.err().find("launching 60 ranks needs 1") != std::string::npos &&
              job.err().find("the limit is 64") != std::string::npos)
      << job.err();
}

TEST_F(Launcher, MakesANewTokenForEveryJob) {
  const auto first = environments(shell(1, "")), second = environments(shell(1, ""));
  EXPECT_NE(first[0].at("ECHELON_TOKEN"), second[0].at("ECHELON_TOKEN"));
}

TEST_F(Launcher, SharesTheCoresAmongTheRanks) {
  const int all = cores();
  EXPECT_EQ(environments(shell(1, ""))[0].at("OMP_NUM_THREADS"), std::to_string(all));
  EXPECT_FALSE(environments(shell(1, ""))[0].contains("OMP_WAIT_POLICY"));
  const auto crowded = environments(shell(all + 1, ""));
  EXPECT_EQ(crowded[0].at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(crowded[0].at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(crowded[0].at("GOMP_SPINCOUNT"), "0");
}

TEST_F(Launcher, LeavesWhatTheUserSetAboutThreads) {
  const auto more = environments(shell(1, ""), [] { ::setenv("OMP_NUM_THREADS", "1000,2", 1); });
  EXPECT_EQ(more[0].at("OMP_NUM_THREADS"), "1000,2");
  EXPECT_EQ(more[0].at("OMP_WAIT_POLICY"), "passive");
  const auto active =
      environments(shell(cores() + 1, ""), [] { ::setenv("OMP_WAIT_POLICY", "active", 1); });
  EXPECT_EQ(active[0].at("OMP_WAIT_POLICY"), "active");
  EXPECT_FALSE(active[0].contains("GOMP_SPINCOUNT"));
}

TEST_F(Launcher, HidesATorchrunAroundIt) {
  const auto ranks =
      environments(shell(1, ""), [] { ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); });
  EXPECT_FALSE(ranks[0].contains("TORCHELASTIC_USE_AGENT_STORE"));
}

TEST_F(Launcher, GivesRankZeroASocketThatListensAlready) {
  Launched job(
      shell(2,
            "echo at $ECHELON_RENDEZVOUS; ls -l /proc/self/fd | grep -c socket: ; echo up; "
            "exec sleep 100"));
  ASSERT_TRUE(job.says("up", 2)) << job.err();
  const auto out = lines_of(job.out());
  EXPECT_EQ(std::count(out.begin(), out.end(), "[0] 1"), 1) << job.out();
  EXPECT_EQ(std::count(out.begin(), out.end(), "[1] 0"), 1) << job.out();
  const auto at = job.out().find("at 127");
  const auto place = parse_address(job.out().substr(at + 3, job.out().find('\n', at) - at - 3));
  EXPECT_NO_THROW(connect_tcp(place, Deadline::in(1s)));
}

TEST_F(Launcher, NumbersTheRanksOfSeveralMachinesInOrder) {
  LaunchOptions options = shell(2, "");
  options.nodes = 3;
  options.node_rank = 2;
  options.rendezvous = "node0:29400";
  const std::string token = "sixteen characters or more";
  const auto ranks = environments(options, [&] { ::setenv("ECHELON_TOKEN", token.c_str(), 1); });
  auto rank = ranks[1];
  EXPECT_EQ(rank["RANK"], "5");
  EXPECT_EQ(rank["WORLD_SIZE"], "6");
  EXPECT_EQ(rank["LOCAL_RANK"], "1");
  EXPECT_EQ(rank["ECHELON_RENDEZVOUS"], "node0:29400");
  EXPECT_EQ(rank["MASTER_ADDR"] + ":" + rank["MASTER_PORT"], "node0:29401");
  EXPECT_EQ(rank["ECHELON_TOKEN"], token);
  EXPECT_FALSE(rank.contains("ECHELON_RENDEZVOUS_FD"));
}

TEST_F(Launcher, RefusesSeveralMachinesWithoutATokenInCommon) {
  LaunchOptions options = shell(1, "echo ran");
  options.nodes = 2;
  options.rendezvous = "node0:29400";
  const ScratchFolder home;
  Launched job(options, [&] { ::setenv("XDG_CONFIG_HOME", home.path().c_str(), 1); });
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_EQ(job.out(), "");
  EXPECT_TRUE(job.err().find("several nodes need a token that all know; set ECHELON_TOKEN") !=
              std::string::npos)
      << job.err();
  EXPECT_EQ(home.names(), Lines{});
}

TEST_F(Launcher, RefusesOptionsThatDoNotFit) {
  const auto refusal = [](const std::function<void(LaunchOptions&)>& change) {
    LaunchOptions options = shell(1, "true");
    change(options);
    return thrown<InvalidArgument>([&] { launch(options); });
  };
  EXPECT_EQ(refusal([](auto& o) { o.nproc = 0; }),
            "cannot launch 0 ranks on one machine; nproc must be from 1 to 1024");
  EXPECT_EQ(refusal([](auto& o) { o.nproc = 1025; }),
            "cannot launch 1025 ranks on one machine; nproc must be from 1 to 1024");
  EXPECT_EQ(refusal([](auto& o) { o.node_rank = 1; }),
            "the node rank is 1; it must be from 0 to 0, since there is 1 node");
  EXPECT_EQ(refusal([](auto& o) { o.nodes = 2; }),
            "several nodes need a rendezvous: HOST:PORT of node 0, the same on every node");
  EXPECT_EQ(refusal([](auto& o) { o.program.clear(); }),
            "there is no program to launch; give one after --");
}

TEST_F(Launcher, MarksEveryLineWithItsRank) {
  Launched job(shell(2, "echo one; echo two; printf end; echo bad >&2"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(sorted_lines(job.out()),
            (Lines{"[0] end", "[0] one", "[0] two", "[1] end", "[1] one", "[1] two"}));
  EXPECT_EQ(sorted_lines(job.err()), (Lines{"[0] bad", "[1] bad"}));
}

TEST_F(Launcher, LeavesLinesUnmarkedWhenAsked) {
  LaunchOptions options = shell(2, "echo line");
  options.prefix = false;
  Launched job(options);
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "line\nline\n");
}

TEST_F(Launcher, LeavesTheOutputOfASingleRankAsItIs) {
  Launched job(shell(1, "printf 'a\\r\\nb'; printf c >&2"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "a\r\nb");
  EXPECT_EQ(job.err(), "c");
}

TEST_F(Launcher, ShowsRankZeroOnlyWhenAsked) {
  LaunchOptions options = shell(2, "echo line; if [ $RANK = 1 ]; then sleep 0.2; exit 1; fi");
  options.quiet_others = true;
  Launched job(options);
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_EQ(job.out(), "[0] line\n");
  EXPECT_TRUE(job.err().ends_with("exited with 1; its last lines:\n  line\n")) << job.err();
}

TEST_F(Launcher, NeverMixesLinesOfRanks) {
  const int count = 3000;
  Launched job(shell(3, "seq -f \"$RANK of $RANK %g " + std::string(100, 'x') + "\" 3000"));
  ASSERT_EQ(job.exit_code(), 0);
  std::map<std::string, int> next;
  for (const auto& line : lines_of(job.out())) {
    const std::string rank = line.substr(1, 1);
    const auto wanted = "[" + rank + "] " + rank + " of " + rank + " " +
                        std::to_string(++next[rank]) + " " + std::string(100, 'x');
    ASSERT_EQ(line, wanted);
  }
  EXPECT_EQ(next, (std::map<std::string, int>{{"0", count}, {"1", count}, {"2", count}}));
}

TEST_F(Launcher, ShowsAProgressBarAsItMoves) {
  Launched job(shell(2, "printf '10%%\\r20%%\\r'; exec sleep 100"));
  EXPECT_TRUE(job.says("10%\r", 2)) << job.out();
}

TEST_F(Launcher, AddsWhatRanksPrintToTheirLogs) {
  const ScratchFolder folder;
  LaunchOptions options = shell(2, "echo out $RANK; echo err $RANK >&2");
  options.log_dir = folder / "deep/logs";
  for (int i = 0; i < 2; ++i) {
    Launched job(options);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
  }
  EXPECT_EQ(sorted_lines(contents(folder / "deep/logs/rank-1.log")),
            (Lines{"err 1", "err 1", "out 1", "out 1"}));
}

TEST_F(Launcher, GivesInputToRankZeroAlone) {
  const ScratchFolder folder;
  std::ofstream(folder / "input") << "hello\n";
  Launched job(shell(2, "read line; echo got $line"),
               [&] { ::dup2(::open((folder / "input").c_str(), O_RDONLY), 0); });
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(sorted_lines(job.out()), (Lines{"[0] got hello", "[1] got"}));
}

TEST_F(Launcher, GivesTheExitCodeOfTheRankThatFailed) {
  const std::string nap = own_nap();
  Launched job(
      shell(3, "echo pid $$; if [ $RANK = 2 ]; then seq 30; exit 3; fi; exec sleep " + nap));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
  const auto at = job.out().find("[2] pid ") + 8;
  const auto pid = job.out().substr(at, job.out().find('\n', at) - at);
  std::string wanted = "echelon: error: rank 2 (pid " + pid + ") exited with 3; its last lines:\n";
  for (int i = 11; i <= 30; ++i) wanted += "  " + std::to_string(i) + "\n";
  EXPECT_EQ(job.err(), wanted);
}

TEST_F(Launcher, TellsOfARankThatWasKilled) {
  const std::string nap = own_nap();
  Launched job(shell(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep " + nap));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
  EXPECT_TRUE(job.err().starts_with("echelon: error: rank 1 (pid ")) << job.err();
  EXPECT_TRUE(job.err().ends_with(") was killed by signal 9 (Killed)\n")) << job.err();
}

TEST_F(Launcher, BlamesTheRankThatFailedAndNotOneThatMissedIt) {
  // Rank 0 ends first, but for the sake of rank 1, which takes its time to end.
  Launched late(shell(2, "if [ $RANK = 0 ]; then exit 69; fi; sleep 0.1; exit 7"));
  EXPECT_EQ(late.exit_code(), 7);
  EXPECT_TRUE(late.err().starts_with("echelon: error: rank 1 (pid ")) << late.err();
  // Nobody else fails: then it is the one to name.
  const std::string nap = own_nap();
  Launched alone(shell(2, "if [ $RANK = 0 ]; then exit 69; fi; exec sleep " + nap));
  EXPECT_EQ(alone.exit_code(), 69);
  EXPECT_TRUE(alone.err().starts_with("echelon: error: rank 0 (pid ")) << alone.err();
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
}

// For scripts: tells the launcher something of this rank.
const std::string tell = "tell() { echo \"$@\" > /proc/self/fd/${ECHELON_LAUNCHER_FD%%:*}; }; ";

// A script in which one rank stops itself, and the others go on once it has stopped.
std::string after_stop_of(int rank, const ScratchFolder& folder, const std::string& script) {
  const std::string pid = (folder / "pid").string();
  return "if [ $RANK = " + std::to_string(rank) + " ]; then echo $$ > " + pid +
         "; kill -STOP $$; fi; until grep -q 'State:.T' /proc/$(cat " + pid +
         ")/status; do sleep 0.01; done 2>/dev/null; " + script;
}

TEST_F(Launcher, GoesOnWithoutARankThatSaidItIsExpendable) {
  Launched job(shell(3, tell +
                            "if [ $RANK = 2 ]; then tell expendable 2; kill -9 $$; fi; sleep 0.5; "
                            "echo done"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_TRUE(job.says("done", 2)) << job.out();
  EXPECT_TRUE(job.err().find("rank 2 (pid ") != std::string::npos &&
              job.err().find("was killed by signal 9") != std::string::npos)
      << job.err();
}

TEST_F(Launcher, FailsWhenAllRanksWereExpendableAndFailed) {
  Launched job(shell(2, tell + "tell expendable $RANK; exit 5"));
  EXPECT_EQ(job.exit_code(), 5) << job.err();
}

TEST_F(Launcher, EndsTheOthersWhenARankDiesBeforeItSaidThatItIsExpendable) {
  const std::string nap = own_nap();
  Launched job(shell(2, tell + "if [ $RANK = 1 ]; then exit 3; fi; exec sleep " + nap));
  EXPECT_EQ(job.exit_code(), 3);
}

TEST_F(Launcher, NamesTheStoppedRankThatExpendableOnesWaitedFor) {
  for (const std::string blames : {"tell blames $RANK 0 rank 0 on here; ", ""}) {
    const ScratchFolder folder;
    Launched job(
        shell(3, tell + after_stop_of(0, folder, "tell expendable $RANK; " + blames + "exit 1")));
    EXPECT_EQ(job.exit_code(), 1);
    const auto last = lines_of(job.err()).back();
    EXPECT_TRUE(last.starts_with("echelon: error: rank 0 (pid ") &&
                last.find("is stopped") != std::string::npos)
        << job.err();
  }
}

TEST_F(Launcher, NamesTheStuckRankThatExpendableOnesBlame) {
  const std::string nap = own_nap();
  Launched job(shell(3, tell + "if [ $RANK = 0 ]; then exec sleep " + nap +
                            "; fi; tell expendable $RANK; tell blames $RANK 0 rank 0 on here; exit "
                            "1"));
  EXPECT_EQ(job.exit_code(), 1);
  const auto last = lines_of(job.err()).back();
  EXPECT_TRUE(last.starts_with("echelon: error: rank 0 (pid ") &&
              last.find("did not come in time") != std::string::npos)
      << job.err();
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
}

TEST_F(Launcher, ForgivesAnExpendableRankThatMissesOneThatEndedWell) {
  Launched job(shell(2, tell + "if [ $RANK = 0 ]; then exit 0; fi; tell expendable 1; sleep 0.3; "
                               "tell blames 1 0 rank 0 on here; exit 69"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

TEST_F(Launcher, KillsExpendableRanksThatOutliveTheJob) {
  const std::string nap = own_nap();
  // A machine may have expendable ranks alone: one that ends well shows that the job has ended.
  for (const std::string others : {"0", "0 1 2"}) {
    for (const auto& straggler : {std::string("kill -STOP $$"), "exec sleep " + nap}) {
      LaunchOptions options = shell(3, tell + "for r in " + others +
                                           "; do [ $RANK = $r ] && tell expendable $r; done; "
                                           "if [ $RANK = 0 ]; then echo up; " +
                                           straggler + "; fi");
      options.leave = 300ms;
      Launched job(options);
      EXPECT_EQ(job.exit_code(), 0) << job.err();
      const auto err = lines_of(job.err());
      ASSERT_EQ(err.size(), 1u) << job.err();
      EXPECT_TRUE(err[0].starts_with("echelon: error: rank 0 (pid ") &&
                  err[0].find(straggler.starts_with("kill") ? "is stopped" : "still runs") !=
                      std::string::npos &&
                  err[0].ends_with("; the job has ended without it, and it was killed"))
          << job.err();
      EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
    }
  }
}

TEST_F(Launcher, GivesExpendableRanksTimeToLeave) {
  Launched job(shell(2, tell + "if [ $RANK = 0 ]; then exit 0; fi; tell expendable 1; sleep 0.5; "
                               "echo left"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[1] left\n");
  EXPECT_EQ(job.err(), "");
}

TEST_F(Launcher, LetsRanksThatAreStoppedEndInOrderWhenToldTo) {
  Launched job(shell(2,
                     "trap 'echo saved; exit 130' TERM; echo up; [ $RANK = 1 ] && kill -STOP "
                     "$$; while :; do sleep 0.02; done"));
  ASSERT_TRUE(job.says("up", 2));
  job.signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_TRUE(job.says("saved", 2)) << job.out();
}

TEST_F(Launcher, NamesTheStoppedRankThatAnotherWaitedFor) {
  const ScratchFolder folder;
  Launched job(
      shell(3, tell + after_stop_of(1, folder, "tell blames $RANK 1 rank 1 on here; exit 1")));
  EXPECT_EQ(job.exit_code(), 1);
  const auto last = lines_of(job.err()).back();
  EXPECT_TRUE(last.starts_with("echelon: error: rank 1 (pid ") &&
              last.find("is stopped") != std::string::npos)
      << job.err();
}

TEST_F(Launcher, NamesTheRankOfAnotherMachineThatIsBlamed) {
  Launched job(shell(2, tell +
                            "if [ $RANK = 1 ]; then tell blames 1 0 rank 0 on here; exit 69; fi; "
                            "tell blames 0 7 'rank 7 on node9 (pid 3)'; exit 69"));
  EXPECT_EQ(job.exit_code(), 69);
  const auto last = lines_of(job.err()).back();
  EXPECT_TRUE(
      last.starts_with("echelon: error: rank 7 on node9 (pid 3) failed first, as rank 0 (pid "))
      << job.err();
}

TEST_F(Launcher, GivesTheOthersTheirTimeWhenOneWasInterrupted) {
  const ScratchFolder folder;
  LaunchOptions options =
      shell(2,
            "if [ $RANK = 1 ]; then until [ -e $0/up ]; do sleep 0.01; done; exit 130; fi; "
            "trap 'sleep 0.5; echo saved; exit 130' TERM; : > $0/up; while :; do sleep 0.02; done");
  options.program.push_back(folder.path().string());
  options.grace = 50ms;
  Launched job(options);
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_TRUE(job.out().ends_with("saved\n")) << job.out();
  EXPECT_EQ(job.err().find("echelon"), std::string::npos) << job.err();
}

TEST_F(Launcher, EndsQuietlyWhenRanksThatWereToldToEndWereInterrupted) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Launched job(shell(2, "trap 'exit 130' TERM HUP; echo up; while :; do sleep 0.02; done"));
    ASSERT_TRUE(job.says("up", 2));
    job.signal(signal);
    EXPECT_EQ(job.exit_code(), 130);
    EXPECT_EQ(job.err().find("echelon"), std::string::npos) << job.err();
  }
}

TEST_F(Launcher, TakesARankForInterruptedThatASignalKilledBeforeItCouldSaySo) {
  for (const std::string name : {"INT", "TERM", "HUP"}) {
    const ScratchFolder folder;
    LaunchOptions options =
        shell(2, "if [ $RANK = 1 ]; then until [ -e $0/up ]; do sleep 0.01; done; kill -" + name +
                     " $$; fi; trap 'sleep 0.2; echo saved; exit 130' TERM; : > $0/up; "
                     "while :; do sleep 0.02; done");
    options.program.push_back(folder.path().string());
    options.takes_interrupts = true;
    options.grace = 50ms;
    Launched job(options);
    EXPECT_EQ(job.exit_code(), 130);
    EXPECT_EQ(job.out(), "[0] saved\n");
    EXPECT_EQ(job.err().find("echelon"), std::string::npos) << job.err();
  }
}

TEST_F(Launcher, TellsOfARankThatFailsWhileItEnds) {
  Launched job(shell(2,
                     "trap 'exit $((130 - 129 * RANK))' TERM; echo up; while :; do sleep 0.02; "
                     "done"));
  ASSERT_TRUE(job.says("up", 2));
  job.signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_TRUE(job.err().find("rank 1 (pid ") != std::string::npos &&
              job.err().find("exited with 1") != std::string::npos)
      << job.err();
}

// A script that goes on once all of so many ranks have come, and that a SIGTERM does not end.
std::string all_at_once(int ranks, const ScratchFolder& folder, const std::string& script) {
  return "trap '' TERM; cd " + folder.path().string() +
         "; : > here-$RANK; while [ $(ls here-* | wc -l) -lt " + std::to_string(ranks) +
         " ]; do sleep 0.01; done; " + script;
}

TEST_F(Launcher, SaysOnceWhatRanksSayAlikeWhenTheyFail) {
  const ScratchFolder folder;
  LaunchOptions options =
      shell(3, all_at_once(3, folder, "echo 'echelon: error: too small' >&2; exit 2"));
  options.alike = 1min;
  Launched marked(options);
  EXPECT_EQ(marked.exit_code(), 2);
  EXPECT_EQ(marked.err(),
            "[0-2] echelon: error: too small\nechelon: error: all 3 ranks exited with 2\n");
  const ScratchFolder another;
  options = shell(3, all_at_once(3, another, "echo 'echelon: error: too small' >&2; exit 2"));
  options.prefix = false;
  options.alike = 1min;
  Launched plain(options);
  EXPECT_EQ(plain.exit_code(), 2);
  EXPECT_EQ(plain.err(), "echelon: error: too small\nechelon: error: all 3 ranks exited with 2\n");
}

TEST_F(Launcher, HidesNoErrorThatDiffers) {
  const ScratchFolder folder;
  // The others fail once the first is gone.
  LaunchOptions options = shell(
      4, all_at_once(4, folder,
                     "if [ $RANK = 1 ]; then echo 'echelon: error: no room' >&2; echo $$ > pid; "
                     "exit 1; fi; until [ -s pid ]; do sleep 0.01; done; "
                     "while kill -0 $(cat pid) 2>&-; do sleep 0.01; done; "
                     "echo 'echelon: error: too small' >&2; exit 2"));
  options.alike = 1min;
  Launched job(options);
  EXPECT_EQ(job.exit_code(), 1);
  const auto err = lines_of(job.err());
  ASSERT_EQ(err.size(), 3u) << job.err();
  EXPECT_EQ((Lines{err[0], err[1]}),
            (Lines{"[1] echelon: error: no room", "[0,2-3] echelon: error: too small"}));
  EXPECT_TRUE(err[2].starts_with("echelon: error: rank 1 (pid ") &&
              err[2].ends_with(" exited with 1"))
      << job.err();
}

TEST_F(Launcher, ShowsAnErrorSoonAndBeforeWhatTheRankSaysNext) {
  Launched more(shell(2, "echo 'echelon: error: odd' >&2; echo and so on >&2"));
  EXPECT_EQ(more.exit_code(), 0);
  EXPECT_EQ(sorted_lines(more.err()), (Lines{"[0] and so on", "[0] echelon: error: odd",
                                             "[1] and so on", "[1] echelon: error: odd"}));
  for (const std::string rank : {"[0] ", "[1] "})
    EXPECT_LT(more.err().find(rank + "echelon"), more.err().find(rank + "and so on"));
  Launched twice(shell(2, "for i in 1 2; do echo 'echelon: error: again' >&2; done; exit 3"));
  EXPECT_EQ(twice.exit_code(), 3);
  EXPECT_EQ(twice.err().find("0-1,1"), std::string::npos) << twice.err();
  Launched hangs(shell(2, "echo 'echelon: error: odd' >&2; exec sleep 100"));
  EXPECT_TRUE(soon([&] { return hangs.err() == "[0-1] echelon: error: odd\n"; })) << hangs.err();
}

TEST_F(Launcher, TellsLastWhoFailedFirst) {
  // Rank 1 is killed; the others miss it, one after another, and take their time to say so.
  Launched job(shell(
      3,
      "trap '' TERM; if [ $RANK = 1 ]; then sleep 0.1; kill -9 $$; fi; sleep 0.$((RANK + 3)); "
      "echo echelon: error: rank $RANK misses another >&2; exit 69"));
  EXPECT_EQ(job.exit_code(), 137);
  const auto err = lines_of(job.err());
  ASSERT_EQ(err.size(), 3u) << job.err();
  EXPECT_EQ((std::set<std::string>{err[0], err[1]}),
            (std::set<std::string>{"[0] echelon: error: rank 0 misses another",
                                   "[2] echelon: error: rank 2 misses another"}));
  EXPECT_TRUE(err[2].starts_with("echelon: error: rank 1 (pid ") &&
              err[2].ends_with(") was killed by signal 9 (Killed)"))
      << job.err();
}

TEST_F(Launcher, LetsTheOtherRanksEndInOrderWhenOneFails) {
  Launched job(shell(
      2,
      "trap 'echo saved; exit 0' TERM; echo up; if [ $RANK = 1 ]; then sleep 0.1; exit 4; fi; "
      "while :; do sleep 0.02; done"));
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_TRUE(job.out().ends_with("[0] saved\n")) << job.out();
}

TEST_F(Launcher, KillsRanksThatDoNotEnd) {
  const std::string nap = own_nap();
  LaunchOptions options = shell(
      2, "trap '' TERM; echo up; if [ $RANK = 1 ]; then sleep 0.1; exit 4; fi; exec sleep " + nap);
  options.grace = 200ms;
  const auto before = std::chrono::steady_clock::now();
  Launched job(options);
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 200ms);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
  const auto err = lines_of(job.err());
  ASSERT_EQ(err.size(), 3u) << job.err();
  EXPECT_TRUE(err[0].ends_with(") did not end and was killed")) << job.err();
  EXPECT_TRUE(err[1].ends_with(") exited with 4; its last lines:")) << "who failed is told last";
}

TEST_F(Launcher, EndsRanksThatAreStopped) {
  const std::string nap = own_nap();
  LaunchOptions options =
      shell(2, "if [ $RANK = 1 ]; then sleep 0.1; exit 4; fi; kill -STOP $$; exec sleep " + nap);
  Launched job(options);
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_TRUE(job.err().find("did not end") == std::string::npos) << job.err();
}

// In the rank's group; in a session of its own; orphaned in a session of its own.
std::string descendants_of_all_kinds(const std::string& nap) {
  return "sleep " + nap + " & setsid sleep " + nap + " & (setsid sleep " + nap + " &) ; ";
}

TEST_F(Launcher, LeavesNothingBehindWhenRanksEndWell) {
  const std::string nap = own_nap();
  Launched job(shell(2, descendants_of_all_kinds(nap) + "echo up"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
}

TEST_F(Launcher, LeavesNothingBehindWhenARankIsKilled) {
  const std::string nap = own_nap();
  Launched job(shell(2, descendants_of_all_kinds(nap) + "echo up; wait"));
  ASSERT_TRUE(job.says("up", 2));
  ASSERT_TRUE(soon([&] { return processes_with(nap).size() == 6; }));
  const auto parent_of = [](pid_t pid) {
    const auto stat = contents("/proc/" + std::to_string(pid) + "/stat");
    return static_cast<pid_t>(std::atoi(stat.c_str() + stat.rfind(')') + 4));
  };
  // The parent of the first is a rank; that of an orphan is the supervisor.
  const pid_t rank = parent_of(processes_with(nap)[0]);
  ::kill(rank, SIGKILL);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
  EXPECT_TRUE(job.err().find("(pid " + std::to_string(rank) + ") was killed by signal 9") !=
              std::string::npos)
      << job.err();
}

TEST_F(Launcher, LeavesNothingBehindWhenItIsKilledItself) {
  const std::string nap = own_nap();
  Launched job(
      shell(2, "trap '' TERM HUP INT; " + descendants_of_all_kinds(nap) + "echo up; wait"));
  ASSERT_TRUE(job.says("up", 2));
  ASSERT_TRUE(soon([&] { return processes_with(nap).size() == 6; }));
  job.signal(SIGKILL);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_TRUE(soon([&] { return processes_with(nap).empty(); }));
}

TEST_F(Launcher, LeavesNothingBehindWhenItsSupervisorIsKilled) {
  const std::string nap = own_nap();
  Launched job(shell(2, "echo parent $PPID.; " + descendants_of_all_kinds(nap) + "echo up; wait"));
  ASSERT_TRUE(job.says("up", 2));
  ASSERT_TRUE(soon([&] { return processes_with(nap).size() == 6; }));
  const auto supervisor = std::atoi(job.out().substr(job.out().find("parent ") + 7).c_str());
  ::kill(supervisor, SIGKILL);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
  EXPECT_TRUE(job.err().find("the parent of the ranks (pid ") != std::string::npos) << job.err();
}

TEST_F(Launcher, SparesOtherChildrenOfTheProgramThatCallsIt) {
  const std::string nap = own_nap(), ours = own_nap();
  Launched job(shell(1, "kill -9 $PPID; exec sleep " + nap), [&] {
    if (::fork() == 0) {
      ::execlp("sleep", "sleep", ours.c_str(), nullptr);
      ::_exit(127);
    }
    soon([&] { return !processes_with(ours).empty(); });
  });
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
  ASSERT_EQ(processes_with(ours).size(), 1u);
  ::kill(processes_with(ours)[0], SIGKILL);
}

// Says each signal that it gets, and ends at SIGTERM or SIGINT in its own time.
const std::string listener =
    "for s in HUP QUIT USR1 USR2; do trap \"echo got $s\" $s; done; "
    "trap 'sleep 0.1; echo ends; exit 0' TERM INT; echo up; while :; do sleep 0.02; done";

TEST_F(Launcher, PassesSignalsOnToEveryRank) {
  Launched job(shell(2, listener));
  ASSERT_TRUE(job.says("up", 2));
  for (const auto& [number, name] : std::map<int, std::string>{
           {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGHUP, "HUP"}, {SIGQUIT, "QUIT"}}) {
    job.signal(number);
    EXPECT_TRUE(job.says("got " + name, 2)) << job.out();
  }
  job.signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_TRUE(job.says("ends", 2)) << job.out();
  EXPECT_TRUE(job.err().find("echelon") == std::string::npos) << job.err();
}

TEST_F(Launcher, EndsQuietlyWhenRanksFollowAnInterrupt) {
  Launched job(shell(2, "echo up; while :; do sleep 0.02; done"));
  ASSERT_TRUE(job.says("up", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_EQ(job.err(), "");
}

TEST_F(Launcher, GivesRanksTheirTimeAfterAnInterrupt) {
  LaunchOptions options = shell(
      2,
      "trap 'if [ $RANK = 1 ]; then exit 130; fi; sleep 0.3; echo saved; exit 0' INT; echo up; "
      "while :; do sleep 0.02; done");
  options.grace = 50ms;
  Launched job(options);
  ASSERT_TRUE(job.says("up", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_TRUE(job.out().ends_with("saved\n")) << job.out();
}

TEST_F(Launcher, KillsAtTheSecondInterrupt) {
  const std::string nap = own_nap();
  Launched job(shell(
      2, "trap 'echo no' INT; echo up; setsid sleep " + nap + " & while :; do sleep 0.02; done"));
  ASSERT_TRUE(job.says("up", 2));
  job.signal(SIGINT);
  ASSERT_TRUE(job.says("no", 2));
  job.signal(SIGINT);  // at once: no second one
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  job.signal(SIGINT);
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
}

TEST_F(Launcher, TakesSignalsFromHandlersOfTheProgram) {
  Launched job(shell(1, listener), [] { std::signal(SIGTERM, [](int) { ::_exit(99); }); });
  ASSERT_TRUE(job.says("up", 1));
  job.signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 0);
}

TEST_F(Launcher, LeavesIgnoredSignalsIgnored) {
  // As under nohup. A signal that was passed on would make the failure one that was asked for.
  const std::string nap = own_nap();
  Launched job(shell(2, "echo up; if [ $RANK = 1 ]; then sleep 0.3; exit 3; fi; exec sleep " + nap),
               [] { std::signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(job.says("up", 2));
  job.signal(SIGHUP);
  EXPECT_EQ(job.exit_code(), 3);
}

TEST_F(Launcher, StopsAndContinuesItsRanks) {
  const std::string nap = own_nap();
  Launched job(shell(1, "exec sleep " + nap));
  ASSERT_TRUE(soon([&] { return processes_with(nap).size() == 1; }));
  const auto state = [](pid_t pid) {
    const auto stat = contents("/proc/" + std::to_string(pid) + "/stat");
    return stat[stat.rfind(')') + 2];
  };
  const pid_t rank = processes_with(nap).at(0);
  job.signal(SIGTSTP);
  // The launcher comes last; a shell continues it when it sees it stopped.
  EXPECT_TRUE(soon([&] { return state(rank) == 'T' && state(job.pid()) == 'T'; }));
  job.signal(SIGCONT);
  EXPECT_TRUE(soon([&] { return state(rank) != 'T'; }));
  job.signal(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
}

TEST_F(Launcher, SaysInASentenceThatAProgramCannotBeRun) {
  const ScratchFolder folder;
  std::ofstream(folder / "text") << "text\n";
  std::ofstream(folder / "script") << "#!/no/such/interpreter\n";
  ::chmod((folder / "script").c_str(), 0700);
  const auto run = [](const std::string& program) {
    LaunchOptions options;
    options.nproc = 2;
    options.program = {program};
    Launched job(options);
    const int code = job.exit_code();
    return std::to_string(code) + " " + job.err();
  };
  EXPECT_EQ(run("no-such-program"),
            "127 echelon: error: cannot run no-such-program: No such file or directory\n");
  EXPECT_EQ(
      run((folder / "text").string()),
      "126 echelon: error: cannot run " + (folder / "text").string() + ": Permission denied\n");
  EXPECT_EQ(run((folder / "script").string()),
            "127 echelon: error: cannot run " + (folder / "script").string() +
                ": the interpreter named in its first line is not there\n");
}

TEST_F(Launcher, SeesARankDieWhileNobodyReadsItsOutput) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor unread(ends[0]), write(ends[1]);
  const std::string nap = own_nap();
  Launched job(shell(2, "if [ $RANK = 1 ]; then sleep 0.2; exit 5; fi; yes " + nap),
               [&] { ::dup2(write.get(), 1); });
  EXPECT_EQ(job.exit_code(), 5);
  EXPECT_EQ(processes_with(nap), std::vector<pid_t>{});
}

TEST_F(Launcher, EndsWhenItsReaderHasGone) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Descriptor unread(ends[0]), write(ends[1]);
  Launched job(shell(2, "yes"), [&] {
    ::dup2(write.get(), 1);
    unread = Descriptor();
    write = Descriptor();
  });
  unread = Descriptor();
  EXPECT_EQ(job.exit_code(), 141);
}

TEST_F(Launcher, StartsManyRanksWithFewOpenFiles) {
  const auto few = [] {
    const rlimit limit{64, 4096};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  Launched job(shell(60, "ulimit -n"), few);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  const auto out = lines_of(job.out());
  EXPECT_EQ(out.size(), 60u);
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](const auto& l) {
    return l.ends_with("] 64");
  })) << job.out();
}

}  // namespace
}  // namespace echelon
