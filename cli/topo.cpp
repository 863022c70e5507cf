#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
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
#include "echelon/collective/schedule.h"
#include "echelon/comm/mesh.h"
#include "echelon/net/environment.h"
#include "echelon/net/host.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon topo --nproc 2                              two ranks on this machine
  echelon topo --nproc 4 --set net.shared_memory=false    as if each were on a machine of its own
  srun -n 8 echelon topo                              the ranks of a cluster job
  echelon topo --nproc 8 --mesh 2x2x2                 which of them pipeline x data x tensor puts where
  echelon topo --nproc 8 --mesh 2x2x2 --json FILE     the mesh for scripts: "shape" has pipeline, data and tensor,
                                                      "ranks" of each its rank, host, machine and place along them

alpha is the time of a message (in shared memory: of a barrier), beta that of a byte, gamma that of reducing a byte.
An algorithm's column has the predicted time and the measured one; * marks the one that is chosen for the size.)";

struct Arguments {
  int nproc = 2;
  std::string sizes = "64,4Ki,64Ki,1Mi,16Mi", json, mesh;
  std::vector<std::string> set;
};

void print_hosts(Group& group) {
  std::map<std::string, std::vector<int>> hosts;
  for (const int rank : group.members()) hosts[group.endpoint().card(rank).host].push_back(rank);
  fmt::print("{} rank{} on {} host{}\n", group.size(), group.size() > 1 ? "s" : "", hosts.size(),
             hosts.size() > 1 ? "s" : "");
  for (const auto& [host, ranks] : hosts) {
    std::string list;
    for (const int rank : ranks)
      list += fmt::format("{}{} (pid {})", list.empty() ? "" : ", ", rank,
                          group.endpoint().card(rank).process);
    fmt::print("  {:16} at {:15}  ranks {}\n", group.endpoint().card(ranks[0]).machine,
               group.endpoint().card(ranks[0]).address.host, list);
  }
  CpuList every(std::size_t(sysconf(_SC_NPROCESSORS_CONF)));  // this rank has only some
  std::iota(every.begin(), every.end(), 0);
  const int cores = group.endpoint().cores(group.members());
  const std::size_t nodes = numa_nodes(every).size();
  fmt::print("this machine: {} core{}, {} NUMA node{}\n\n", cores, cores > 1 ? "s" : "", nodes,
             nodes > 1 ? "s" : "");
  const Figures& figures = group.figures();
  const auto link = [](const char* kind, const LinkFigures& one) {
    fmt::print("  {:14} alpha {:8.2f} us   beta {:8.3f} ns/KiB ({:.1f} GB/s)\n", kind,
               one.alpha * 1e6, one.beta * 1024e9, 1 / one.beta / 1e9);
  };
  fmt::print("links\n");
  if (group.shape().local > 1 || group.shape().hosts == 1) link("shared memory", figures.shared);
  if (group.shape().hosts > 1) link("TCP", figures.tcp);
  fmt::print("  reducing       gamma {:7.3f} ns/KiB ({:.1f} GB/s)\n\n", figures.gamma * 1024e9,
             1 / figures.gamma / 1e9);
}

void show(Group& group, const Arguments& arguments, const std::vector<std::size_t>& sizes) {
  auto algorithms = candidates(Operation::all_reduce, group.shape());
  if (group.shape().hosts == 1)
    for (const auto one : message_algorithms(Operation::all_reduce)) algorithms.push_back(one);
  if (group.rank() == 0) print_hosts(group);
  BenchmarkOptions options;
  options.sizes = sizes;
  options.seconds = 0.05;
  std::map<Algorithm, std::vector<BenchmarkResult>> measured;
  for (const auto algorithm : algorithms) {
    options.algorithm = algorithm;
    measured[algorithm] = run_benchmark(group, options);
  }
  if (group.rank() != 0) return;
  nlohmann::ordered_json all = nlohmann::ordered_json::parse(group.plan().json());
  fmt::print("all_reduce of fp32, private buffers: predicted / measured, us\n{:>10}", "size");
  for (const auto algorithm : algorithms) fmt::print(" {:>21}", name(algorithm));
  fmt::print("\n");
  for (std::size_t i = 0; i < options.sizes.size(); ++i) {
    fmt::print("{:>10}", human_bytes(options.sizes[i]));
    const Algorithm chosen = group.algorithm(Operation::all_reduce, options.sizes[i]);
    for (const auto algorithm : algorithms) {
      const auto& result = measured[algorithm][i];
      fmt::print(" {:>21}", fmt::format("{:.1f} / {:.1f}{}", result.predicted * 1e6,
                                        result.median * 1e6, algorithm == chosen ? "*" : " "));
      all["all_reduce"].push_back({{"bytes", result.bytes},
                                   {"algorithm", name(algorithm)},
                                   {"predicted_us", result.predicted * 1e6},
                                   {"measured_us", result.median * 1e6},
                                   {"chosen", algorithm == chosen}});
    }
    fmt::print("\n");
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
  return mesh_shape(ranks, pipeline, data, tensor);
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
    const auto& card = group.endpoint().card(rank);
    const MeshPlace& place = places[std::size_t(rank)];
    all["ranks"].push_back({{"rank", rank},
                            {"host", card.host},
                            {"machine", card.machine},
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
  for (const int rank : group.members()) hosts.push_back(group.endpoint().card(rank).host);
  fmt::print("{}", draw_mesh(shape, hosts));
  if (!arguments.json.empty())
    write_file(arguments.json, mesh_json(group, shape, mesh_order(hosts)).dump(2) + "\n");
}

}  // namespace

void add_topo(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("topo", "Show hosts, links and which algorithm wins at which size");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--nproc", arguments->nproc,
                   "Ranks to start here; ignored where a launcher has started them")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--sizes", arguments->sizes, "Bytes of the vector, as in 64,4Ki,1Mi")
      ->type_name("LIST")
      ->capture_default_str();
  command
      ->add_option("--mesh", arguments->mesh,
                   "Draw how ranks make a mesh, and measure nothing: pipeline x data x tensor")
      ->type_name("PxDxT");
  command
      ->add_option(
          "--json", arguments->json,
          "The same, to FILE: links and times; with --mesh the shape and every rank's place")
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
    // Before there are ranks that would all say it; those that a launcher started do, and it says
    // once what they say alike.
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
