#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/commands.h"
#include "cli/ranks.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/collective/benchmark.h"
#include "echelon/collective/group.h"
#include "echelon/collective/link_cache.h"
#include "echelon/collective/schedule.h"
#include "echelon/comm/mesh.h"
#include "echelon/launch/environment.h"
#include "echelon/net/host.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon topo --nproc 2                              two ranks on this machine
  echelon topo --nproc 4 --set net.shared_memory=false    as if each were on its own machine
  srun -n 8 echelon topo                              the ranks of a cluster job
  srun -n 8 echelon topo --measure                    measure the links again
  echelon topo --nproc 8 --mesh 2x2x2                 which rank has which place in pipeline x data x tensor
  echelon topo --nproc 8 --mesh 2x2x2 --json FILE     the mesh for scripts: "shape" has pipeline, data and tensor;
                                                      "ranks" has the rank, host, machine and place of each rank

alpha is the latency of a message (in shared memory: of a barrier), beta the time per byte sent, gamma the time per
byte reduced. The table shows the predicted and the measured time of each algorithm and size; * marks the algorithm
that a job chooses. Figures of several hosts may come from an earlier job: topo shows their age. It measures again
with --measure, or if they do not predict what it sees.)";

constexpr int narrowest = 60, usual = 100;

// The width of the terminal; ranks that this process started inherit it.
int columns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::max<int>(narrowest, size.ws_col);
  const char* inherited = std::getenv("COLUMNS");
  const int number = inherited ? std::atoi(inherited) : 0;
  return number > 0 ? std::max(narrowest, number) : usual;
}

struct Arguments {
  int nproc = 2;
  std::string sizes = "64,4Ki,64Ki,1Mi,16Mi", json, mesh;
  bool measure = false;
  std::vector<std::string> set;
};

std::string when_measured(const Figures& figures) {
  std::string text = figures.reused
                         ? fmt::format("measured {} ago by an earlier job (--measure: again)",
                                       human_age(figures.age()))
                         : "measured now";
  if (figures.spread > LinkCache::steady)
    text +=
        fmt::format("; busy: some messages took {:.1f} times as long as others", figures.spread);
  return text;
}

void print_links(Group& group) {
  const Figures& figures = group.figures();
  const auto link = [](const char* kind, const LinkFigures& one) {
    fmt::print("  {:14} alpha {:>8}   beta {:>8} a KiB ({})\n", kind, human_seconds(one.alpha),
               human_seconds(one.beta * 1024), human_rate(1 / one.beta));
  };
  fmt::print("links, {}\n", when_measured(figures));
  if (group.shape().local > 1 || group.shape().hosts == 1) link("shared memory", figures.shared);
  if (group.shape().hosts > 1) link("TCP", figures.tcp);
  fmt::print("  {:14} gamma {:>8} a KiB ({})\n\n", "reducing", human_seconds(figures.gamma * 1024),
             human_rate(1 / figures.gamma));
}

void print_hosts(Group& group) {
  std::map<std::string, std::vector<int>> hosts;
  for (const int rank : group.members())
    hosts[group.endpoint().peer_info(rank).host].push_back(rank);
  fmt::print("{} rank{} on {} host{}\n", group.size(), group.size() > 1 ? "s" : "", hosts.size(),
             hosts.size() > 1 ? "s" : "");
  for (const auto& [host, ranks] : hosts) {
    const std::string first =
        fmt::format("  {} at {}: ranks ", group.endpoint().peer_info(ranks[0]).machine,
                    group.endpoint().peer_info(ranks[0]).address.host);
    std::string lines = first;
    std::size_t begin = 0;  // of the last line
    for (const int rank : ranks) {
      const std::string one =
          fmt::format("{} (pid {}){}", rank, group.endpoint().peer_info(rank).process,
                      rank == ranks.back() ? "" : ", ");
      if (lines.size() - begin + one.size() > std::size_t(columns())) {
        lines += '\n';
        begin = lines.size();
        lines += "    ";
      }
      lines += one;
    }
    fmt::print("{}\n", lines);
  }
  CpuList every(std::size_t(sysconf(_SC_NPROCESSORS_CONF)));  // this rank has only some
  std::iota(every.begin(), every.end(), 0);
  const int cores = group.endpoint().cores(group.members());
  const std::size_t nodes = numa_nodes(every).size();
  fmt::print("this machine: {} core{}, {} NUMA node{}\n\n", cores, cores > 1 ? "s" : "", nodes,
             nodes > 1 ? "s" : "");
  print_links(group);
}

using Results = std::map<Algorithm, std::vector<BenchmarkResult>>;

// Whether the time of the largest exchange differs from the prediction of an earlier job's figures.
// The same on all ranks.
bool figures_are_outdated(Group& group, const Results& measured) {
  std::uint8_t outdated = 0;
  if (group.rank() == 0 && group.figures().reused) {
    const auto& results = measured.begin()->second;
    const auto largest = std::size_t(
        std::ranges::max_element(results, {}, &BenchmarkResult::bytes) - results.begin());
    const Algorithm chosen = group.algorithm(Operation::all_reduce, results[largest].bytes);
    const BenchmarkResult& one = measured.at(chosen)[largest];
    outdated = one.median > 3 * one.predicted || one.predicted > 3 * one.median;
  }
  group.broadcast(DataType::u8, &outdated, 1, 0);
  return outdated != 0;
}

// One row per algorithm, with as many sizes side by side as fit.
void print_times(Group& group, const std::vector<Algorithm>& algorithms,
                 const std::vector<std::size_t>& sizes, const Results& measured) {
  constexpr int label = 18, cell = 20;
  const std::size_t beside = std::size_t(std::max(1, (columns() - label) / cell));
  fmt::print("all_reduce of fp32, private buffers: predicted / measured\n");
  for (std::size_t first = 0; first < sizes.size(); first += beside) {
    const std::size_t end = std::min(sizes.size(), first + beside);
    fmt::print("{}{:{}}", first ? "\n" : "", "", label);
    for (std::size_t i = first; i < end; ++i)
      fmt::print("{:>{}} ", human_bytes(sizes[i]), cell - 1);
    fmt::print("\n");
    for (const auto algorithm : algorithms) {
      fmt::print("{:{}}", name(algorithm), label);
      for (std::size_t i = first; i < end; ++i) {
        const auto& one = measured.at(algorithm)[i];
        const bool chosen = algorithm == group.algorithm(Operation::all_reduce, sizes[i]);
        fmt::print("{:>{}}{}",
                   fmt::format("{} / {}", human_seconds(one.predicted), human_seconds(one.median)),
                   cell - 1, chosen ? "*" : " ");
      }
      fmt::print("\n");
    }
  }
}

void show(Group& group, const Arguments& arguments, const std::vector<std::size_t>& sizes) {
  auto algorithms = candidates(Operation::all_reduce, group.shape());
  if (group.shape().hosts == 1)
    for (const auto one : message_algorithms(Operation::all_reduce)) algorithms.push_back(one);
  if (group.rank() == 0) print_hosts(group);
  BenchmarkOptions options;
  options.sizes = sizes;
  options.seconds = 0.05;
  Results measured;
  for (const auto algorithm : algorithms) {
    options.algorithm = algorithm;
    measured[algorithm] = run_benchmark(group, options);
  }
  if (figures_are_outdated(group, measured)) {
    group.measure_again();
    for (auto& [algorithm, results] : measured)
      for (auto& one : results)
        one.predicted =
            cost(Operation::all_reduce, algorithm, one.bytes, group.shape(), group.figures());
    if (group.rank() == 0) {
      fmt::print("the links have changed since then: measured again\n");
      print_links(group);
    }
  }
  if (group.rank() != 0) return;
  print_times(group, algorithms, sizes, measured);
  nlohmann::ordered_json all = nlohmann::ordered_json::parse(group.plan().json());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Algorithm chosen = group.algorithm(Operation::all_reduce, sizes[i]);
    for (const auto algorithm : algorithms) {
      const auto& result = measured[algorithm][i];
      all["all_reduce"].push_back({{"bytes", result.bytes},
                                   {"algorithm", name(algorithm)},
                                   {"predicted_us", result.predicted * 1e6},
                                   {"measured_us", result.median * 1e6},
                                   {"chosen", algorithm == chosen}});
    }
  }
  if (!arguments.json.empty()) write_file(arguments.json, all.dump(2) + "\n");
}

// One rank exchanges nothing.
void show_one(Group& group, const Arguments& arguments) {
  print_hosts(group);
  if (!arguments.json.empty()) write_file(arguments.json, group.plan().json());
}

// "2x4x1": pipeline x data x tensor; 0 for data is what the others leave.
MeshShape parse_mesh(const std::string& text, int ranks) {
  int pipeline = 0, data = 0, tensor = 0, end = 0;
  if (std::sscanf(text.c_str(), "%9dx%9dx%9d%n", &pipeline, &data, &tensor, &end) != 3 ||
      end != int(text.size()))
    throw InvalidArgument(fmt::format(
        "--mesh {}: give pipeline x data x tensor, as in 2x2x1; 0 for data is what the others leave",
        text));
  return mesh_shape(ranks, {.pipeline = pipeline, .data = data, .tensor = tensor});
}

nlohmann::ordered_json mesh_json(Group& group, const MeshShape& shape,
                                 const std::vector<int>& order) {
  std::vector<MeshPlace> places(order.size());  // by rank
  for (std::size_t position = 0; position < order.size(); ++position)
    places[std::size_t(order[position])] = place_at(shape, int(position));
  nlohmann::ordered_json all = {
      {"shape", {{"pipeline", shape.pipeline}, {"data", shape.data}, {"tensor", shape.tensor}}},
      {"ranks", nlohmann::ordered_json::array()}};
  for (const int rank : group.members()) {
    const auto& peer = group.endpoint().peer_info(rank);
    const MeshPlace& place = places[std::size_t(rank)];
    all["ranks"].push_back({{"rank", rank},
                            {"host", peer.host},
                            {"machine", peer.machine},
                            {"pipeline", place.pipeline},
                            {"data", place.data},
                            {"tensor", place.tensor}});
  }
  return all;
}

void show_mesh(Group& group, const Arguments& arguments) {
  if (group.rank() != 0) return;
  const MeshShape shape = parse_mesh(arguments.mesh, group.size());
  std::vector<std::string> hosts;
  for (const int rank : group.members()) hosts.push_back(group.endpoint().peer_info(rank).host);
  fmt::print("{}", draw_mesh(shape, hosts));
  if (!arguments.json.empty())
    write_file(arguments.json, mesh_json(group, shape, mesh_order(hosts)).dump(2) + "\n");
}

}  // namespace

void add_topo(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("topo", "Show hosts, links and the fastest algorithm for each size");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--nproc", arguments->nproc,
                   "Ranks to start; ignored if a launcher has started them")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--sizes", arguments->sizes,
                   "Sizes of the vector in bytes, for example 64,4Ki,1Mi")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_flag("--measure", arguments->measure,
                    "Measure the links even if an earlier job did");
  command
      ->add_option("--mesh", arguments->mesh,
                   "Only draw the mesh of ranks: pipeline x data x tensor")
      ->type_name("PxDxT");
  command
      ->add_option(
          "--json", arguments->json,
          "Write links and times to FILE; with --mesh, the shape and the place of every rank")
      ->type_name("FILE");
  command
      ->add_option("--set", arguments->set,
                   "Set one option of net or comm; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->footer(examples);
  command->callback([arguments, &exit_code] {
    const auto sizes = parse_sizes(arguments->sizes);
    require_place_for(arguments->json, "--json");
    if (arguments->measure) arguments->set.push_back("comm.measure=always");
    if (isatty(STDOUT_FILENO)) setenv("COLUMNS", std::to_string(columns()).c_str(), 1);
    // Refused here, before there are ranks that would all refuse it. A launcher merges the same
    // message of its ranks into one.
    if (!arguments->mesh.empty()) {
      const int world = read_environment().world;
      parse_mesh(arguments->mesh, world > 1 ? world : arguments->nproc);
    }
    exit_code = run_as_ranks(arguments->nproc, arguments->set, [&](Group& group) {
      if (!arguments->mesh.empty())
        show_mesh(group, *arguments);
      else if (group.size() == 1)
        show_one(group, *arguments);
      else
        show(group, *arguments, sizes);
    });
  });
}

}  // namespace echelon::cli
