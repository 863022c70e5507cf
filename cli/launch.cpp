#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "echelon/base/error.h"
#include "echelon/launch/launcher.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon launch --nproc 4 -- ./train --rate 1e-3     four ranks of a program; lines are prefixed [0] to [3]
  echelon launch --nproc 2 --log-dir logs -- ./train  also write the output to logs/rank-0.log and logs/rank-1.log
  echelon launch --nproc 8 --nodes 2 --node-rank 0 --rendezvous node0:29400 -- ./train
                                                      the first of two machines; on the other, --node-rank 1

Ranks get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and ECHELON_RENDEZVOUS in their
environment. When a rank fails, launch ends the others and exits with the code of that rank (128 + N for signal N); the
last line names the rank that failed first. A rank that exits with 69 failed because another rank was lost. A rank that
exits with 130 was interrupted, and the others are asked to end too. A job does not end when it loses a worker of
parameter servers that it can continue without (server.mode=bounded or async).)";

struct Arguments {
  LaunchOptions options;
  bool no_prefix = false, no_bind = false;
};

}  // namespace

void add_launch(CLI::App& app, int& exit_code, const std::vector<std::string>& program) {
  auto* command = app.add_subcommand(
      "launch", "Run a program as the ranks of a job: launch [OPTIONS] -- PROGRAM [ARGUMENTS]");
  auto arguments = std::make_shared<Arguments>();
  LaunchOptions& options = arguments->options;
  command->add_option("--nproc", options.nproc, "Ranks on this machine")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--nodes", options.nodes, "Number of machines; run the same command on each")
      ->type_name("M")
      ->capture_default_str();
  command->add_option("--node-rank", options.node_rank, "Index of this machine, from 0")
      ->type_name("K")
      ->capture_default_str();
  command
      ->add_option("--rendezvous", options.rendezvous,
                   "Port of machine 0 where ranks meet (torch's store: the next port)")
      ->type_name("HOST:PORT");
  command
      ->add_option("--log-dir", options.log_dir,
                   "Also append the output of rank R to DIR/rank-R.log")
      ->type_name("DIR");
  command->add_flag("--no-prefix", arguments->no_prefix, "Do not put [R] before lines of rank R");
  command->add_flag("--quiet-others", options.quiet_others, "Show only the output of rank 0");
  command->add_flag("--no-bind", arguments->no_bind, "Do not bind ranks to NUMA nodes");
  command->footer(examples);
  command->allow_extras();  // for a better message than that they were not expected
  command->callback([command, arguments, &exit_code, &program] {
    if (const auto extras = command->remaining(); !extras.empty())
      throw InvalidArgument(fmt::format(
          "{} was not expected; the program to launch and its arguments go after --", extras[0]));
    LaunchOptions& chosen = arguments->options;
    chosen.program = program;
    chosen.prefix = !arguments->no_prefix;
    chosen.bind = !arguments->no_bind;
    exit_code = launch(chosen);
  });
}

}  // namespace echelon::cli
