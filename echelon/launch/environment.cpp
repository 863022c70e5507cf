// Each source is a function that checks whether its variables are set. If so, it says which rank
// this is and, if it can know, at which host and port the ranks may meet. A meeting place that the
// user sets takes precedence over one that a source derives.
#include "echelon/launch/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/net/host.h"
#include "echelon/net/socket.h"

namespace echelon {

namespace {

constexpr std::int64_t most_ranks = 1'000'000;
constexpr int first_port = 20000, ports = 32768;
constexpr int pod_port = 29500;  // a pod has its own ports; this is torch's usual one

// Checked values of variables.
class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    auto value = lookup_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  std::string text_of_first(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const auto value = text(name)) return *value;
    return {};
  }

  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<std::int64_t> number(const char* name, std::int64_t lowest, std::int64_t highest,
                                     std::string_view because = "") const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    std::int64_t number = 0;
    const char* end = value->data() + value->size();
    const auto [rest, failed] = std::from_chars(value->data(), end, number);
    if (failed != std::errc() || rest != end || number < lowest || number > highest)
      throw InvalidArgument(
          fmt::format("the environment variable {} is \"{}\"; it must be a whole "
                      "number from {} to {}{}",
                      name, *value, lowest, highest, because));
    return number;
  }

  int world(const char* name) const {
    return static_cast<int>(number(name, 1, most_ranks).value_or(0));
  }

  // A number from 0 to count - 1, where `limit` names the source of `count`.
  std::optional<int> index(const char* name, int count, const char* limit) const {
    const auto value = number(name, 0, count - 1, fmt::format(", since {} is {}", limit, count));
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  }

 private:
  const Lookup& lookup_;
};

struct Found {
  JobEnvironment job;
  bool local_known = false;  // the source says which ranks are on this machine
  std::string host;          // where the ranks may meet; empty if the source cannot know
  std::optional<int> port;
};

[[noreturn]] void missing(const char* given, const Variables& variables, std::string_view absent) {
  throw InvalidArgument(
      fmt::format("the environment variable {} is \"{}\", but {} is not set; set both or neither",
                  given, variables.text(given).value_or(""), absent));
}

// The same on every rank of a job. Different jobs on a machine hardly ever share one.
int port_of(const std::string& job) {
  return first_port + static_cast<int>(derive_key(0, job) % ports);
}

bool is_here(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

struct Names {
  const char *rank, *world, *local_rank, *local_world;
};

// The four numbers, if the rank's variable is set.
std::optional<Found> numbers(const Variables& variables, const Names& names) {
  if (!variables.has(names.rank)) return std::nullopt;
  Found found;
  auto& job = found.job;
  job.world = variables.world(names.world);
  if (job.world == 0) missing(names.rank, variables, names.world);
  job.rank = *variables.index(names.rank, job.world, names.world);
  const auto local_world = variables.number(
      names.local_world, 1, job.world, fmt::format(", since {} is {}", names.world, job.world));
  if (local_world) {
    job.local_world = static_cast<int>(*local_world);
    const auto local_rank = variables.index(names.local_rank, job.local_world, names.local_world);
    if (!local_rank && job.local_world > 1) missing(names.local_world, variables, names.local_rank);
    job.local_rank = local_rank.value_or(0);
    found.local_known = true;
  } else if (const auto local_rank = variables.index(names.local_rank, job.world, names.world)) {
    job.local_rank = *local_rank;
    job.local_world = *local_rank + 1;  // at least
    found.local_known = true;
  }
  return found;
}

// If all ranks are on this machine, they can meet at a port derived from the job's id.
void meet_here_if_all_are(Found& found, const std::string& job_id) {
  if (found.job.local_world != found.job.world || job_id.empty()) return;
  found.host = "127.0.0.1";
  found.port = port_of(job_id);
}

// A job id prefixed with its source; empty if the id is empty.
std::string named(const char* source, const std::string& id) {
  return id.empty() ? "" : fmt::format("{} {}", source, id);
}

constexpr Names plain_names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

std::optional<Found> from_plain_variables(const Variables& variables) {
  auto found = numbers(variables, plain_names);
  if (!found) return found;
  const auto run = variables.text("TORCHELASTIC_RUN_ID");
  found->job.source = run ? "torchrun" : "RANK and WORLD_SIZE";
  if (run)  // ranks of an earlier start may still be running
    found->job.identity.job =
        fmt::format("torchrun {}, restart {}", *run,
                    variables.text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return found;
}

std::optional<Found> from_open_mpi(const Variables& variables) {
  auto found = numbers(variables, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (!found) return found;
  found->job.source = "Open MPI";
  const auto job_id = variables.text_of_first({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  found->job.identity.job = named("Open MPI", job_id);
  meet_here_if_all_are(*found, job_id);
  return found;
}

// Slurm's own PMI also sets PMI_RANK, but not the local rank. It gives no id to derive a port from.
std::optional<Found> from_mpich(const Variables& variables) {
  if (!variables.has("MPI_LOCALRANKID")) return std::nullopt;
  auto found = numbers(variables, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  if (found) found->job.source = "MPICH";
  return found;
}

std::optional<Found> from_pmix(const Variables& variables) {
  const std::string job_id = variables.text_of_first({"PMIX_NAMESPACE"});
  // srun --mpi=pmix: Slurm's own variables are more specific.
  if (job_id.starts_with("slurm.") && variables.has("SLURM_PROCID")) return std::nullopt;
  auto found = numbers(variables, {"PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (!found) return found;
  found->job.source = "PMIx";
  found->job.identity.job = named("PMIx", job_id);
  meet_here_if_all_are(*found, job_id);
  return found;
}

// The first host of a list: node003 for "node[003-005,9],login1".
std::string first_host(const char* name, const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const auto close = list.find(']', i);
    const auto end = list.find_first_of(",-]", i);
    if (close == std::string::npos || end == i + 1)
      throw InvalidArgument(
          fmt::format("the environment variable {} is \"{}\"; it must be a list of "
                      "hosts like node[003-005,9],login1",
                      name, list));
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host;
}

// The entry for `node` in a list such as "4(x2),3" (4, 4, 3). Nothing if the list is shorter or
// malformed.
std::optional<int> tasks_of_node(const std::string& list, int node) {
  const char *at = list.data(), *end = at + list.size();
  while (at < end) {
    int tasks = 0, times = 1;
    const auto [rest, failed] = std::from_chars(at, end, tasks);
    if (failed != std::errc()) return std::nullopt;
    at = rest;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      at = std::from_chars(at + 2, end, times).ptr;
      if (at < end && *at == ')') ++at;
    }
    if (node < times) return tasks;
    node -= times;
    if (at < end && *at++ != ',') return std::nullopt;
  }
  return std::nullopt;
}

std::string slurm_step(const Variables& variables) {
  return variables.text_of_first({"SLURM_STEP_ID", "SLURM_STEPID"});
}

// A batch script or an interactive shell of Slurm sees variables like those of rank 0 of all tasks,
// although no other task was started. Only srun creates a step.
bool is_slurm_shell(const Variables& variables) {
  const std::string step = slurm_step(variables);
  return step.empty() || step == "4294967290" ||
         step == "4294967291";  // SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT
}

// The error for a process of a Slurm job that is not one of its several tasks; empty: no error.
std::string slurm_without_srun(const Variables& variables) {
  if (!variables.has("SLURM_PROCID") || !is_slurm_shell(variables)) return {};
  const int tasks = variables.world("SLURM_NTASKS");
  if (tasks <= 1) return {};
  return fmt::format(
      "Slurm has set {} tasks aside for job {}, but this process is none of them: put srun before "
      "the command, or start ranks of your own with --nproc",
      tasks, variables.text_of_first({"SLURM_JOB_ID", "SLURM_JOBID"}));
}

int slurm_local_world(const Variables& variables, int world) {
  const int node = static_cast<int>(variables.number("SLURM_NODEID", 0, most_ranks).value_or(0));
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto list = variables.text(name);
    if (!list) continue;
    const auto tasks = tasks_of_node(*list, node);
    if (tasks && *tasks >= 1 && *tasks <= world) return *tasks;
    throw InvalidArgument(
        fmt::format("the environment variable {} is \"{}\"; for SLURM_NODEID {} it "
                    "must give a number from 1 to {}, in a list like 4(x2),3",
                    name, *list, node, world));
  }
  // For the whole allocation: a step may have fewer.
  if (const auto most = variables.number("SLURM_NTASKS_PER_NODE", 1, most_ranks))
    return static_cast<int>(std::min<std::int64_t>(*most, world));
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) {
    if (const auto nodes = variables.number(name, 1, most_ranks))
      return static_cast<int>((world + *nodes - 1) / *nodes);
  }
  return world;
}

std::optional<Found> from_slurm(const Variables& variables) {
  if (!variables.has("SLURM_PROCID") || is_slurm_shell(variables)) return std::nullopt;
  Found found;
  auto& job = found.job;
  job.source = "Slurm";
  const char* size =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  job.world = variables.world(size);
  if (job.world == 0) missing("SLURM_PROCID", variables, size);
  job.rank = *variables.index("SLURM_PROCID", job.world, size);
  job.local_world = slurm_local_world(variables, job.world);
  job.local_rank =
      variables.index("SLURM_LOCALID", job.local_world, "the number of tasks on this node")
          .value_or(0);
  found.local_known = true;

  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (!found.host.empty()) break;
    if (const auto list = variables.text(name)) found.host = first_host(name, *list);
  }
  if (found.host.empty() && job.local_world == job.world) found.host = "127.0.0.1";
  const std::string id = variables.text_of_first({"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string step = slurm_step(variables);
  if (!id.empty()) {
    found.port = port_of(fmt::format("slurm {}.{}", id, step));
    job.identity.job = fmt::format("Slurm {}.{}", id, step);
  }
  return found;
}

// The common prefix of the names of a job's pods: "train" for "train-2"; empty if there is none.
std::string name_of_pods(const std::string& own, int index) {
  const std::string name = own.substr(0, own.find('.'));
  const std::string tail = fmt::format("-{}", index);
  if (name.size() <= tail.size() || !name.ends_with(tail)) return {};
  return name.substr(0, name.size() - tail.size());
}

// The full name of pod 0: "train-0.workers.default.svc.cluster.local", from "train-2" and its full
// name.
std::string pod_zero(const std::string& own, int index,
                     const std::function<std::string()>& full_host_name) {
  const std::string pods = name_of_pods(own, index);
  if (pods.empty()) return {};
  const std::string full = own.find('.') != own.npos ? own : full_host_name();
  const auto dot = full.find('.');
  const std::string domain = dot == std::string::npos ? "" : full.substr(dot);
  return pods + "-0" + domain;
}

std::optional<Found> from_kubernetes(const Variables& variables,
                                     const std::function<std::string()>& full_host_name) {
  if (!variables.has("JOB_COMPLETION_INDEX")) return std::nullopt;
  const char* size = variables.has("WORLD_SIZE") ? "WORLD_SIZE" : "ECHELON_NODES";
  Found found;
  auto& job = found.job;
  job.source = "Kubernetes";
  job.world = variables.world(size);
  if (job.world == 0)
    throw InvalidArgument(
        "this is a pod of an indexed job (JOB_COMPLETION_INDEX is set), but not of how many; set "
        "ECHELON_NODES to the job's completions, or to 1 if each pod is a job of its own");
  if (job.world == 1) return found;
  job.rank = *variables.index("JOB_COMPLETION_INDEX", job.world, size);
  found.local_known = true;
  const auto name = variables.text("HOSTNAME");
  const std::string own = name ? *name : full_host_name();
  job.identity.job = named("Kubernetes", name_of_pods(own, job.rank));
  found.host = pod_zero(own, job.rank, full_host_name);
  found.port = pod_port;
  return found;
}

// The meeting place that the user set, or else the one that the source derived.
Address meeting_place(const Variables& variables, const Found& found) {
  if (const auto given = variables.text("ECHELON_RENDEZVOUS")) {
    try {
      return parse_address(*given);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format(
          "the environment variable ECHELON_RENDEZVOUS is \"{}\"; it must be HOST:PORT ({})",
          *given, error.what()));
    }
  }
  const std::string host = variables.text("MASTER_ADDR").value_or(found.host);
  if (host.empty())
    throw InvalidArgument(
        fmt::format("{} started this job of {} ranks but does not say where they can meet; set "
                    "ECHELON_RENDEZVOUS=HOST:PORT on every rank, with a host of rank 0 and a port "
                    "that is free there",
                    found.job.source, found.job.world));
  auto port = found.port;
  if (const auto given = variables.number("MASTER_PORT", 1, 65535)) {
    port = static_cast<int>(*given);
    // torchrun's agent itself listens at the port.
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") *port += *port < 65535 ? 1 : -1;
  }
  if (!port)
    throw InvalidArgument(fmt::format(
        "the ranks are to meet at {}, but MASTER_PORT is not set; set it to a port that "
        "is free there, or ECHELON_RENDEZVOUS=HOST:PORT",
        host));
  return {host, static_cast<std::uint16_t>(*port)};
}

}  // namespace

JobEnvironment read_environment(const Lookup& lookup,
                                const std::function<std::string()>& full_host_name) {
  const Variables variables(lookup);
  auto found = from_plain_variables(variables);
  if (!found) found = from_open_mpi(variables);
  if (!found) found = from_mpich(variables);
  if (!found) found = from_pmix(variables);
  if (!found) found = from_slurm(variables);
  if (!found) found = from_kubernetes(variables, full_host_name);
  if (!found) {
    if (variables.world("WORLD_SIZE") > 1) missing("WORLD_SIZE", variables, "RANK");
    JobEnvironment alone;
    alone.not_a_rank = slurm_without_srun(variables);
    return alone;
  }
  JobEnvironment& job = found->job;
  if (job.world == 1) return job;
  const Address place = meeting_place(variables, *found);
  job.rendezvous = place.text();
  if (!found->local_known && is_here(place.host)) {
    job.local_rank = job.rank;
    job.local_world = job.world;
  }
  if (const auto given = variables.text("ECHELON_JOB_ID")) job.identity.job = *given;
  job.identity.job.resize(std::min(job.identity.job.size(), JobIdentity::longest));
  job.identity.launch = variables.text("ECHELON_LAUNCH_ID").value_or("");
  job.identity.launch.resize(std::min(job.identity.launch.size(), JobIdentity::longest));
  job.identity.first_rank = std::max(0, job.rank - job.local_rank);
  job.identity.command = variables.text("ECHELON_LAUNCH_COMMAND").value_or("");
  job.identity.command.resize(std::min(job.identity.command.size(), JobIdentity::longest));
  return job;
}

JobEnvironment read_environment() {
  return read_environment(
      [](const char* name) -> std::optional<std::string> {
        const char* value = std::getenv(name);
        if (!value) return std::nullopt;
        return value;
      },
      full_host_name);
}

}  // namespace echelon
