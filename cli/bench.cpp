#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/numbers.h"
#include "cli/ranks.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/collective/benchmark.h"
#include "echelon/collective/group.h"
#include "echelon/collective/server_exchange.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon bench collectives --world 2                              all-reduce from 64 B to 64 MiB
  echelon bench collectives --world 4 --buffers registered         on memory from the communicator
  echelon bench collectives --world 2 --set net.shared_memory=false --sizes 1Ki,1Mi
  echelon bench collectives --world 4 --op all_gather --json out.jsonl

Times are measured on rank 0, from a barrier to the end of the operation. bus is a bandwidth: the bytes that the busiest
link of a rank must carry, 2((p-1)/p) n for all_reduce, divided by the median time. floor is a lower bound for all_reduce
on one host: the time in which all ranks copy a vector at once, which reads and writes as many bytes and exchanges none.
Sizes are rounded down to whole elements, and to equal parts if the operation splits the vector. Before and after the
timed part every rank checks the result for seeded values; a wrong result is an error.)";

struct Arguments {
  int world = 2;
  std::string operation = "all_reduce", type = "fp32", buffers = "private", algorithm = "auto",
              json;
  std::string sizes = "64,4Ki,64Ki,1Mi,16Mi,64Mi";
  double seconds = 1;
  std::vector<std::string> set;
};

Operation parse_operation(const std::string& text) {
  for (int i = 0; i <= int(Operation::send); ++i)
    if (text == name(Operation(i))) return Operation(i);
  throw InvalidArgument(fmt::format(
      "there is no collective \"{}\"; there are all_reduce, reduce_scatter, all_gather, "
      "broadcast, reduce, gather, scatter, all_to_all, barrier, send",
      text));
}

void report(Group& group, const Arguments& arguments, const std::vector<BenchmarkResult>& results) {
  std::string lines;
  fmt::print("{} of {}, world {} on {} host{}, {} buffers\n", arguments.operation, arguments.type,
             group.size(), group.shape().hosts, group.shape().hosts > 1 ? "s" : "",
             arguments.buffers);
  constexpr const char* row = "{:>9} {:>18} {:>9} {:>9} {:>10} {:>9} {:>9}\n";
  const auto time = [](double seconds) { return seconds > 0 ? human_seconds(seconds) : ""; };
  fmt::print(row, "size", "algorithm", "median", "p99", "bus", "predicted", "floor");
  for (const auto& result : results) {
    fmt::print(row, human_bytes(result.bytes), name(result.algorithm), time(result.median),
               time(result.p99), human_rate(result.bus_bandwidth), time(result.predicted),
               time(result.floor));
    lines +=
        nlohmann::ordered_json{
            {"op", arguments.operation},     {"world", group.size()},
            {"bytes", result.bytes},         {"algorithm", name(result.algorithm)},
            {"buffers", arguments.buffers},  {"median_us", result.median * 1e6},
            {"p99_us", result.p99 * 1e6},    {"bus_gbps", result.bus_bandwidth / 1e9},
            {"type", arguments.type},        {"predicted_us", result.predicted * 1e6},
            {"floor_us", result.floor * 1e6}}
            .dump() +
        "\n";
  }
  if (!arguments.json.empty()) write_file(arguments.json, lines);
}

struct ServerArguments {
  int workers = 4, extra = 0, repeat = 5;
  double mib = 4;
  std::string json;
  std::vector<std::string> set;
};

std::vector<std::size_t> bounds_by(const std::vector<double>& weights, std::size_t elements) {
  std::vector<std::size_t> bounds = {0};
  double share = 0;
  for (const double weight : weights)
    bounds.push_back(std::size_t((share += weight) * double(elements) + 0.5));
  return bounds;
}

void measure_servers(Group& group, const ServerArguments& arguments) {
  const auto elements = std::size_t(arguments.mib * (1 << 20) / sizeof(float));
  ServerExchange exchange(
      group.shared_from_this(), arguments.workers,
      bounds_by(balanced_weights(arguments.workers, arguments.extra), elements));
  std::vector<float> data(elements);
  std::vector<double> seconds;
  for (int i = 0; i <= arguments.repeat; ++i) {
    std::fill(data.begin(), data.end(), 1.f);
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    exchange.run(group.rank() < arguments.workers ? data.data() : nullptr);
    group.barrier();
    if (i > 0)
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (const float value : data)
      if (group.rank() < arguments.workers && value != float(arguments.workers))
        throw Error(fmt::format("a sum over {} workers came to {}", arguments.workers, value));
  }
  if (group.rank() != 0) return;
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2],
               law = vectors_a_link(arguments.workers, arguments.extra);
  const double bytes = double(elements * sizeof(float));
  fmt::print(
      "{} workers, {} extra servers, {:.1f} MiB: {:.1f} ms; {:.2f} vectors over each link by "
      "the formula, so {:.1f} MB/s per link\n",
      arguments.workers, arguments.extra, arguments.mib, median * 1e3, law,
      law * bytes / median / 1e6);
  if (!arguments.json.empty())
    write_file(arguments.json, nlohmann::ordered_json{{"workers", arguments.workers},
                                                      {"extra", arguments.extra},
                                                      {"bytes", bytes},
                                                      {"median_ms", median * 1e3},
                                                      {"law", law}}
                                       .dump() +
                                   "\n");
}

void add_servers(CLI::App& bench, int& exit_code) {
  auto* command =
      bench.add_subcommand("servers", "Measure how fast workers sum a vector through servers");
  auto arguments = std::make_shared<ServerArguments>();
  command
      ->add_option("--workers", arguments->workers,
                   "Ranks that push and pull, and also serve a slice")
      ->check(CLI::Range(2, 64))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--extra", arguments->extra, "Ranks that only serve; at most as many as workers")
      ->check(CLI::Range(0, 64))
      ->type_name("K")
      ->capture_default_str();
  command->add_option("--mib", arguments->mib, "Size of the vector in MiB")
      ->check(number_from(0.001, 4096))
      ->type_name("M")
      ->capture_default_str();
  command->add_option("--repeat", arguments->repeat, "Number of measurements; the median is shown")
      ->check(CLI::Range(1, 1000))
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--json", arguments->json, "Write the result to FILE")->type_name("FILE");
  command->add_option("--set", arguments->set, "Set one option of net or comm")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->callback([arguments, &exit_code] {
    if (arguments->extra > arguments->workers)
      throw InvalidArgument(
          fmt::format("--extra {} is more than --workers {}: further servers would not help",
                      arguments->extra, arguments->workers));
    require_place_for(arguments->json, "--json");
    exit_code = run_as_ranks(arguments->workers + arguments->extra, arguments->set,
                             [&](Group& group) { measure_servers(group, *arguments); });
  });
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto* bench = app.add_subcommand("bench", "Measure parts of Echelon on this machine");
  bench->require_subcommand(1);
  auto* command = bench->add_subcommand("collectives", "Measure all-reduce and other collectives");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--world,--nproc", arguments->world,
                   "Number of ranks; ignored if a launcher has started them")
      ->check(CLI::Range(2, 1024))
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--op", arguments->operation, "Collective to measure")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--sizes", arguments->sizes,
                   "Sizes of the vector in bytes, for example 64,4Ki,1Mi")
      ->type_name("LIST")
      ->delimiter('\0')
      ->capture_default_str();
  command
      ->add_option("--buffers", arguments->buffers,
                   "private: ordinary memory; registered: memory of the communicator")
      ->check(CLI::IsMember({"private", "registered"}))
      ->type_name("KIND")
      ->capture_default_str();
  command->add_option("--type", arguments->type, "Type of the elements")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--algorithm", arguments->algorithm, "auto: the algorithm that a job would use")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--seconds", arguments->seconds, "Duration for each size")
      ->check(number_from(0.001, 600))
      ->type_name("S")
      ->capture_default_str();
  command->add_option("--json", arguments->json, "Write one JSON line per size to FILE")
      ->type_name("FILE");
  command
      ->add_option("--set", arguments->set,
                   "Set one option of net or comm; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->footer(examples);
  command->callback([arguments, &exit_code] {
    BenchmarkOptions options;
    options.operation = parse_operation(arguments->operation);
    options.type = parse_data_type(arguments->type);
    options.sizes = parse_sizes(arguments->sizes);
    options.registered = arguments->buffers == "registered";
    options.algorithm = from_name<Algorithm>(arguments->algorithm);
    options.seconds = arguments->seconds;
    require_place_for(arguments->json, "--json");
    exit_code = run_as_ranks(arguments->world, arguments->set, [&](Group& group) {
      const auto results = run_benchmark(group, options);
      if (group.rank() == 0) report(group, *arguments, results);
    });
  });
  add_servers(*bench, exit_code);
}

}  // namespace echelon::cli
