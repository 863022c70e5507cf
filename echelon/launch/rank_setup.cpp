#include "echelon/launch/rank_setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/terminal.h"
#include "echelon/net/job_identity.h"
#include "echelon/net/token.h"

namespace echelon {

namespace {

constexpr int most_nodes = 100'000;

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

void check(const LaunchOptions& options) {
  if (options.program.empty() || options.program.front().empty())
    throw InvalidArgument("there is no program to launch; give one after --");
  if (options.nproc < 1 || options.nproc > most_local_ranks)
    throw InvalidArgument(
        fmt::format("cannot launch {} ranks on one machine; nproc must be from 1 to {}",
                    options.nproc, most_local_ranks));
  if (options.nodes < 1 || options.nodes > most_nodes)
    throw InvalidArgument(fmt::format("cannot launch on {} nodes; there must be from 1 to {}",
                                      options.nodes, most_nodes));
  if (options.node_rank < 0 || options.node_rank >= options.nodes)
    throw InvalidArgument(
        fmt::format("the node rank is {}; it must be from 0 to {}, since there {} {} node{}",
                    options.node_rank, options.nodes - 1, options.nodes == 1 ? "is" : "are",
                    options.nodes, options.nodes == 1 ? "" : "s"));
  if (options.nodes > 1 && options.rendezvous.empty())
    throw InvalidArgument(
        "several nodes need a rendezvous: HOST:PORT of node 0, the same on every node");
}

// Token::find creates a token if there is none, but only this machine would know it.
std::string shared_token() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  const auto folder = config && *config == '/'
                          ? std::filesystem::path(config)
                          : std::filesystem::path(home ? home : "") / ".config";
  const auto file = folder / "echelon" / "token";
  std::error_code ignored;
  if (!std::getenv("ECHELON_TOKEN") && !std::getenv("ECHELON_TOKEN_FILE") &&
      !std::filesystem::exists(file, ignored))
    throw InvalidArgument(fmt::format(
        "several nodes need a token that all know; set ECHELON_TOKEN, or ECHELON_TOKEN_FILE to a file, or put one (any text of 16 characters or more, mode 0600) in {} on every node",
        file.string()));
  return Token::find().text();
}

// Free now; torch's store takes it a moment later.
std::uint16_t free_port() { return local_address(listen_tcp("127.0.0.1", 0)).port; }

// Threads per rank. OMP_NUM_THREADS may be a list with one number per nesting level.
int threads_a_rank(const LaunchOptions& options, const JobSetup& job) {
  if (is_set("OMP_NUM_THREADS")) return std::max(1, std::atoi(std::getenv("OMP_NUM_THREADS")));
  return std::max(1, job.cores / options.nproc);
}

// The same text on every node, wherever the program is installed there.
std::string command_text(const std::vector<std::string>& program) {
  std::string text = std::filesystem::path(program.front()).filename().string();
  for (std::size_t i = 1; i < program.size(); ++i) text += ' ' + program[i];
  if (text.size() <= JobIdentity::longest) return text;
  const std::string mark = fmt::format("... {:016x}", checksum(std::as_bytes(std::span(text))));
  return text.substr(0, JobIdentity::longest - mark.size()) + mark;
}

// Assigns NUMA nodes round-robin, but only if every rank keeps as many cores as before: not if
// nodes would be left empty, be shared unevenly, or differ in size.
CpuList cpus_of(const LaunchOptions& options, const JobSetup& job, int local_rank) {
  const auto nodes = job.numa.size();
  const auto same_size = [&](const CpuList& cpus) { return cpus.size() == job.numa[0].size(); };
  if (!options.bind || nodes < 2 || static_cast<std::size_t>(options.nproc) % nodes != 0 ||
      !std::all_of(job.numa.begin(), job.numa.end(), same_size))
    return {};
  return job.numa[static_cast<std::size_t>(local_rank) % nodes];
}

}  // namespace

JobSetup job_setup(const LaunchOptions& options) {
  check(options);
  JobSetup job;
  if (options.rendezvous.empty()) {
    job.listener = listen_tcp("127.0.0.1", 0);
    job.rendezvous = local_address(job.listener);
    job.master_port = free_port();
  } else {
    job.rendezvous = parse_address(options.rendezvous);
    // All nodes must be able to compute it: the port next to the rendezvous.
    const int port = job.rendezvous.port;
    job.master_port = static_cast<std::uint16_t>(port < 65535 ? port + 1 : port - 1);
  }
  // A token from the user lets others join later: a worker with --join.
  job.token = options.nodes > 1              ? shared_token()
              : std::getenv("ECHELON_TOKEN") ? Token::find().text()
                                             : Token::random().text();
  job.made_token = options.nodes == 1 && !std::getenv("ECHELON_TOKEN");
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  job.launch_id = fmt::format("{:016x}", number);
  job.cores = cores();
  job.numa = numa_nodes();
  return job;
}

RankSetup rank_setup(const LaunchOptions& options, const JobSetup& job, int local_rank) {
  RankSetup setup;
  setup.rank = options.node_rank * options.nproc + local_rank;
  auto& variables = setup.variables;
  variables["RANK"] = std::to_string(setup.rank);
  variables["WORLD_SIZE"] = std::to_string(options.nodes * options.nproc);
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(options.nproc);
  variables["MASTER_ADDR"] = job.rendezvous.host;
  variables["MASTER_PORT"] = std::to_string(job.master_port);
  variables["ECHELON_RENDEZVOUS"] = job.rendezvous.text();
  variables["ECHELON_RENDEZVOUS_FD"] = std::nullopt;
  if (job.listener && setup.rank == 0)
    variables["ECHELON_RENDEZVOUS_FD"] = std::to_string(job.listener.get());
  variables["ECHELON_TOKEN"] = job.token;
  variables["ECHELON_LAUNCH_ID"] = job.launch_id;
  variables["ECHELON_LAUNCH_COMMAND"] = std::nullopt;
  if (options.nodes > 1) variables["ECHELON_LAUNCH_COMMAND"] = command_text(options.program);
  // No one else can know this token, so no one else can join.
  variables["ECHELON_TOKEN_MADE"] = std::nullopt;
  if (job.made_token) variables["ECHELON_TOKEN_MADE"] = "1";
  // Only output that is passed on unchanged can be drawn over.
  const bool watched = setup.rank == 0 && !options.prefix && !terminal::path().empty();
  variables[terminal::variable] = std::nullopt;
  if (watched) variables[terminal::variable] = terminal::path();
  // If they are left over from a surrounding torchrun, they would send torch's store to that agent.
  variables["TORCHELASTIC_USE_AGENT_STORE"] = std::nullopt;
  variables["TORCHELASTIC_RUN_ID"] = std::nullopt;

  const int threads = threads_a_rank(options, job);
  if (!is_set("OMP_NUM_THREADS")) variables["OMP_NUM_THREADS"] = std::to_string(threads);
  if (options.nproc * threads > job.cores && !is_set("OMP_WAIT_POLICY") &&
      !is_set("GOMP_SPINCOUNT")) {
    variables["OMP_WAIT_POLICY"] = "passive";
    variables["GOMP_SPINCOUNT"] = "0";
  }
  setup.cpus = cpus_of(options, job, local_rank);
  return setup;
}

std::vector<std::string> environment_of(const RankSetup& rank) {
  std::vector<std::string> lines;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view line = *entry;
    if (!rank.variables.contains(std::string(line.substr(0, line.find('=')))))
      lines.emplace_back(line);
  }
  for (const auto& [name, value] : rank.variables)
    if (value) lines.push_back(name + "=" + *value);
  return lines;
}

}  // namespace echelon
