// The cost of connecting the ranks of a job, without torch and without a model.
//
// Each rank connects and writes FOLDER/RANK.json:
//   echelon launch --nproc 8 -- start_up join FOLDER [shared|tcp]
// Counts what WORLD ranks, LOCAL of them on each host, would need:
//   start_up count WORLD LOCAL
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "echelon/launch/environment.h"
#include "echelon/net/control_network.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/file_limit.h"
#include "echelon/net/peer_pages.h"
#include "echelon/net/peer_relay.h"

namespace {

using namespace echelon;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// KiB of this program only: getrusage also counts the process before exec.
long peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::atol(line.c_str() + 6);
  return 0;
}

int join(const std::filesystem::path& folder, bool shared) {
  const auto start = std::chrono::steady_clock::now();
  const JobEnvironment environment = read_environment();
  NetOptions net;
  net.shared_memory = shared;
  const auto endpoint = Endpoint::join(environment, net);
  const double joined = seconds_since(start);
  std::ofstream(folder / fmt::format("{}.json", environment.rank))
      << fmt::format("{{\"seconds\": {:.6f}, \"rss_kib\": {}, \"controls\": {}, \"files\": {}}}\n",
                     joined, peak_memory(), endpoint->control_connections(), open_files());
  return 0;
}

// The peer info that ranks of a cluster would send, `local` of them on a host.
std::vector<std::string> infos_of(int world, int local) {
  std::vector<std::string> all;
  for (int r = 0; r < world; ++r) {
    const int host = r / local;
    PeerInfo info;
    info.host = fmt::format("{:032x}-4026531840", host * 0x9e3779b97f4a7c15);
    info.machine = fmt::format("node{:04}.cluster.example", host);
    info.kernel = fmt::format("{:032x}", host * 0x9e3779b97f4a7c15);
    for (int cpu = 0; cpu < 64; ++cpu) info.cpus.push_back(cpu);
    info.options = "net.connections=2 net.tls=false";
    info.address = {fmt::format("10.0.{}.{}", host / 256, host % 256), std::uint16_t(40000 + r)};
    info.local = fmt::format("echelon-{:032x}", (r + 1) * 0x9e3779b97f4a7c15);
    info.process = std::uint64_t(100000 + r);
    info.job = (std::uint64_t(r) + 1) * 0x9e3779b97f4a7c15;
    all.push_back(encode(info));
  }
  return all;
}

int count(int world, int local) {
  const int mesh = int(NetOptions().control_mesh);
  const auto infos = infos_of(world, local);
  std::size_t plain = 0, bytes = 0, most = 0, fewest = std::size_t(world);
  for (const auto& one : infos) plain += 4 + one.size();
  const auto pages = peer_pages(infos, 0);
  for (const auto& page : pages) bytes += Frame::header_size + page.payload.size();
  // Rank 0 sends every rank its route, and the pages to its children in the tree.
  const PeerTree tree{.world = world};
  const PeerRoute route{.parent = 1,
                        .who = "pid 100000 on node0000.cluster.example",
                        .relay = {"10.0.255.255", 40000}};
  const std::size_t by_rank_0 =
      std::size_t(world - 1) * encode(route.frame()).size() + tree.children(0).size() * bytes;
  for (int a = 0; a < std::min(world, 2 * local); ++a) {  // all hosts are the same
    std::size_t controls = 0;
    for (int b = 0; b < world; ++b)
      controls += a != b && (a / local == b / local || ControlNetwork::linked(a, b, world, mesh));
    most = std::max(most, controls);
    fewest = std::min(fewest, controls);
  }
  std::puts(
      fmt::format(
          "{{\"world\": {}, \"local\": {}, \"pages\": {}, \"bytes\": {}, "
          "\"bytes_by_rank_0\": {}, \"hops\": {}, \"bytes_in_one_frame\": {}, "
          "\"fits_one_frame\": {}, \"fewest_controls\": {}, \"most_controls\": {}, \"controls_of_a_mesh\": {}}}",
          world, local, pages.size(), bytes, by_rank_0, tree.hops(world - 1), plain,
          plain <= Frame::max_payload, fewest, most, world - 1)
          .c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() >= 2 && arguments[0] == "join")
      return join(arguments[1], arguments.size() < 3 || arguments[2] == "shared");
    if (arguments.size() == 3 && arguments[0] == "count")
      return count(std::atoi(arguments[1].c_str()), std::max(1, std::atoi(arguments[2].c_str())));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fputs("start_up join FOLDER [shared|tcp] | start_up count WORLD LOCAL\n", stderr);
  return 2;
}
