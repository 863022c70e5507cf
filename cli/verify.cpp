#include <fmt/format.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/ranks.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/folder.h"
#include "echelon/base/log.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/environment.h"
#include "echelon/net/launcher.h"
#include "echelon/train/verify.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon verify                      worlds of 2, 3 and 4 ranks on this machine; exit code 1 if any cell fails
  echelon verify --world 2            one world
  echelon verify --json cells.json    the certificate as a file

Every strategy trains a tiny GPT in fp64 for 5 steps. max diff is the largest difference of any parameter from one
process; bytes: what all ranks sent is the closed form to the byte; memory: so are parameters, gradients and state.
In bf16 and fp16 it is that of any step's loss, or, given the same gradients, of any master and moment.)";

// Where the ranks leave their cells, and how many hosts they play.
constexpr const char* results_variable = "ECHELON_VERIFY_RESULTS";
constexpr const char* hosts_variable = "ECHELON_VERIFY_HOSTS";

struct Arguments {
  std::vector<int> worlds = {2, 3, 4};
  std::string json;
};

void print_header() {
  fmt::print("{:<58} {:>5} {:>10} {:>6} {:>6}\n", "strategy", "world", "max diff", "bytes",
             "memory");
}

void print_cell(const VerifyCell& cell) {
  fmt::print("{:<58} {:>5} {:>10.1e} {:>6} {:>6}{}\n", cell.name, cell.world, cell.max_abs_diff,
             cell.bytes_ok ? "ok" : "WRONG", cell.memory_ok ? "ok" : "WRONG",
             cell.ok() ? "" : "   FAILED " + cell.note);
  std::fflush(stdout);
}

int work(const JobEnvironment& environment) {
  log::set_rank(environment.rank);
  NetOptions net;
  if (const char* hosts = std::getenv(hosts_variable); hosts && hosts == std::string("2"))
    net.host = environment.rank < environment.world / 2 ? "first host" : "second host";
  CommOptions comm;
  comm.timeout = 60;
  const auto ranks = Communicator::world(comm, net);
  const auto cells =
      verify_cells(ranks, Endpoint::listening_address(environment, net), Token::find(), print_cell);
  if (environment.rank == 0) write_file(std::getenv(results_variable), certificate(cells));
  return 0;
}

int run(const Arguments& arguments) {
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("echelon-verify-{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::vector<VerifyCell> cells;
  print_header();
  int broken = 0;
  const auto one = [&](int world, const char* hosts) {
    const auto results = folder / fmt::format("{}-{}.json", world, hosts);
    ::setenv(results_variable, results.c_str(), 1);
    ::setenv(hosts_variable, hosts, 1);
    std::fflush(stdout);
    broken += 0 != launch({.program = own_command_line(),
                           .nproc = world,
                           .rendezvous = {},
                           .log_dir = {},
                           .prefix = false});
    if (std::filesystem::exists(results))
      for (auto& cell : parse_cells(read_file(results))) cells.push_back(std::move(cell));
  };
  for (const int world : arguments.worlds) {
    one(world, "1");
    if (world == 4) one(world, "2");
  }
  remove_whole(folder);
  const auto failed =
      std::count_if(cells.begin(), cells.end(), [](const auto& c) { return !c.ok(); });
  fmt::print("{} cells, {} failed{}\n", cells.size(), failed,
             broken > 0 ? fmt::format("; {} world{} did not come to {} end", broken,
                                      broken == 1 ? "" : "s", broken == 1 ? "its" : "their")
                        : "");
  if (!arguments.json.empty()) write_file(arguments.json, certificate(cells, broken));
  return failed > 0 || broken ? 1 : 0;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "verify", "Prove that every strategy trains what one process trains, to the byte");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--world", arguments->worlds, "Numbers of ranks")
      ->check(CLI::Range(2, 8))
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--json", arguments->json, "The cells, to FILE")->type_name("FILE");
  command->footer(examples);
  command->callback([arguments, &exit_code] {
    const JobEnvironment environment = read_environment();
    if (environment.world > 1 && std::getenv(results_variable)) {
      exit_code = work(environment);
      return;
    }
    require_place_for(arguments->json, "--json");
    exit_code = run(*arguments);
  });
}

}  // namespace echelon::cli
