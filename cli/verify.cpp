#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>

#include "cli/commands.h"
#include "cli/ranks.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/folder.h"
#include "echelon/base/log.h"
#include "echelon/base/options.h"
#include "echelon/launch/environment.h"
#include "echelon/launch/launcher.h"
#include "echelon/net/endpoint.h"
#include "echelon/verify/certificate.h"
#include "echelon/verify/faults.h"
#include "echelon/verify/verify.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon verify                      worlds of 1 to 8 ranks on this machine; exit code 1 if any cell fails
  echelon verify --quick              about 150 cells, some of each kind, in under a minute
  echelon verify --world 2 4          only these numbers of ranks
  echelon verify --json cells.json --html cells.html
                                      the certificate as files, for scripts and for people
  echelon verify --list-injections    deliberate faults, one per line
  echelon verify --inject lost-gradient
                                      show that a fault is caught: runs a few cells, exit code 1 if any fails

Every cell trains a tiny model for some steps. It is ok if all four checks hold:
  max diff   the largest difference from one process is within its bound: of any parameter in fp64; in
             bf16 and fp16 of any step's loss or, given the same gradients, of masters and moments
  bytes      the bytes that all ranks sent equal the closed form
  memory     the bytes of parameters, gradients and optimiser state equal the closed form
  bubble     the idle time of a pipeline, by the order in which its ranks ran, equals the closed form
Otherwise it is FAILED, and the lines below it name the checks. See docs/verify.md.)";

// The file to which ranks write their cells, and the number of hosts that they simulate.
constexpr const char* results_variable = "ECHELON_VERIFY_RESULTS";
constexpr const char* hosts_variable = "ECHELON_VERIFY_HOSTS";

struct Arguments {
  std::vector<int> worlds;  // empty: all
  bool quick = false;
  std::string json, html;
  std::string inject;
  bool list_injections = false;
};

void print_cell(const VerifyCell& cell) {
  fmt::print("{}", to_text(cell));
  std::fflush(stdout);
}

// Throws InvalidArgument if no fault has that name.
const Fault* fault_of(const Arguments& arguments) {
  if (arguments.inject.empty()) return nullptr;
  if (const Fault* found = find_fault(arguments.inject)) return found;
  std::vector<std::string> known;
  for (const auto& fault : all_faults()) known.push_back(fault.name);
  const std::string near = nearest(arguments.inject, known);
  throw InvalidArgument(
      fmt::format("there is no fault {:?} to inject{}; --list-injections shows all",
                  arguments.inject, near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

// Scripts read every line as a fault, so column names are only for a terminal.
int list_injections() {
  const auto line = [](std::string_view fault, std::string_view check, std::string_view what) {
    fmt::print("{:<20}  {:<10}  {}\n", fault, check, what);
  };
  if (::isatty(STDOUT_FILENO)) line("fault", "caught by", "what goes wrong");
  for (const auto& fault : all_faults()) line(fault.name, name(fault.caught_by), fault.what);
  return 0;
}

int work(const Arguments& arguments, const JobEnvironment& environment) {
  log::set_rank(environment.rank);
  NetOptions net;
  CommOptions comm;
  comm.timeout = 60;
  if (const char* hosts = std::getenv(hosts_variable); hosts && hosts == std::string("2"))
    net.host = environment.rank < environment.world / 2 ? "first host" : "second host";
  else
    comm.algorithm = Algorithm::shared;  // for every size, as the closed forms assume
  const auto ranks = Communicator::world(comm, net);
  const auto cells =
      verify_cells(ranks, {Endpoint::listening_address(environment, net), Token::find()},
                   {.quick = arguments.quick, .fault = fault_of(arguments)}, print_cell);
  if (environment.rank == 0)
    write_file(std::getenv(results_variable),
               to_json({.cells = cells, .command = {}, .fault = {}}));
  return 0;
}

std::vector<int> worlds_of(const Arguments& arguments) {
  if (!arguments.worlds.empty()) return arguments.worlds;
  if (!arguments.inject.empty()) return {2, 4};
  if (arguments.quick) return {2, 3, 4, 8};
  return {1, 2, 3, 4, 5, 6, 7, 8};
}

std::string command_line() {
  auto words = own_command_line();
  words[0] = std::filesystem::path(words[0]).filename().string();
  return fmt::format("{}", fmt::join(words, " "));
}

// A caught fault makes cells fail, so the exit code is 1.
int tell_of_fault(const Certificate& certificate, const Fault& fault) {
  if (certificate.cells.empty() && certificate.broken_worlds == 0)
    throw InvalidArgument(fmt::format(
        "the fault {} shows in no cell of these worlds: give others with --world", fault.name));
  fmt::print("the fault {} was {}caught by {} of {} cells\n", fault.name,
             certificate.caught() ? "" : "NOT ", certificate.failed_cells(),
             certificate.cells.size());
  return certificate.failed() > 0 ? 1 : 0;
}

int run(const Arguments& arguments) {
  const Fault* const fault = fault_of(arguments);
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("echelon-verify-{}", ::getpid());
  std::filesystem::create_directories(folder);
  Certificate certificate{.cells = {}, .command = command_line(), .fault = arguments.inject};
  if (fault) fmt::print("fault {}: {}\n", fault->name, fault->what);
  fmt::print("{}", text_head());
  const auto one = [&](int world, const char* hosts) {
    const auto results = folder / fmt::format("{}-{}.json", world, hosts);
    ::setenv(results_variable, results.c_str(), 1);
    ::setenv(hosts_variable, hosts, 1);
    std::fflush(stdout);
    certificate.broken_worlds += 0 != launch({.program = own_command_line(),
                                              .nproc = world,
                                              .rendezvous = {},
                                              .log_dir = {},
                                              .prefix = false});
    if (std::filesystem::exists(results))
      for (auto& cell : parse_cells(read_file(results)))
        certificate.cells.push_back(std::move(cell));
  };
  const auto start = std::chrono::steady_clock::now();
  for (const int world : worlds_of(arguments)) {
    one(world, "1");
    if (world == 4 && !arguments.quick && !fault) one(world, "2");
  }
  remove_whole(folder);
  const int broken = certificate.broken_worlds, failed = certificate.failed_cells();
  fmt::print(
      "{} cells, {} failed{}, in {:.0f} s\n", certificate.cells.size(), failed,
      broken > 0 ? fmt::format("; {} world{} did not finish", broken, broken == 1 ? "" : "s") : "",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!arguments.json.empty()) write_file(arguments.json, to_json(certificate));
  if (!arguments.html.empty()) write_file(arguments.html, to_html(certificate));
  if (fault) return tell_of_fault(certificate, *fault);
  return certificate.failed() > 0 ? 1 : 0;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("verify", "Check that every strategy trains what one process trains");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--world", arguments->worlds, "Numbers of ranks [1 to 8]")
      ->check(CLI::Range(1, 8))
      ->type_name("P");
  command->add_flag("--quick", arguments->quick,
                    "Run fewer cells; they still cover every value of every option");
  command->add_option("--json", arguments->json, "Write the certificate to FILE")
      ->type_name("FILE");
  command->add_option("--html", arguments->html, "Write the certificate as a page to FILE")
      ->type_name("FILE");
  command
      ->add_option("--inject", arguments->inject,
                   "Inject a deliberate fault and run the cells that must catch it")
      ->type_name("NAME");
  command->add_flag("--list-injections", arguments->list_injections,
                    "List the faults, with the effect of each and the check that catches it");
  command->footer(examples);
  command->callback([arguments, &exit_code] {
    if (std::getenv(results_variable)) {
      exit_code = work(*arguments, read_environment());
      return;
    }
    if (arguments->list_injections) {
      exit_code = list_injections();
      return;
    }
    require_place_for(arguments->json, "--json");
    require_place_for(arguments->html, "--html");
    exit_code = run(*arguments);
  });
}

}  // namespace echelon::cli
