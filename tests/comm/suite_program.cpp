// comm_suite BACKEND: runs the suite on the world that the environment describes. Exits with 0 if
// all checks pass; otherwise prints the failures and exits with 1.
//
//   mpirun -np 4 comm_suite mpi
//   echelon launch --nproc 2 -- comm_suite nccl
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tests/comm/suite.h"

namespace echelon {
namespace {

int report(const std::vector<std::string>& failures) {
  for (const auto& failure : failures) std::fprintf(stderr, "%s\n", failure.c_str());
  return failures.empty() ? 0 : 1;
}

int run(const std::string& backend) {
  at::set_num_threads(1);
  const bool nccl = backend == "nccl";
  if (nccl && !at::hasCUDA()) {
    std::fprintf(stderr, "SKIPPED: there is no CUDA device here\n");
    return 77;
  }
  // NCCL refuses two ranks of one host on one device. It takes ranks with different host names for
  // ranks on different hosts.
  if (const char* const rank = std::getenv("RANK"); nccl && rank)
    setenv("NCCL_HOSTID", (std::string("suite-") + rank).c_str(), 0);
  CommOptions options;
  options.backend = from_name<Backend>(backend);
  options.timeout = 60;
  const auto world = Communicator::world(options);
  if (world->backend() != backend)
    return report({"asked for " + backend + ", got " + world->backend()});
  const int failed = report(
      CommSuite(world, nccl ? at::Device(at::kCUDA) : at::Device(at::kCPU), {.free_order = !nccl})
          .run());
  if (!failed && world->rank() == 0)
    std::printf("%s: the suite passed on %d ranks\n", backend.c_str(), world->size());
  return failed;
}

}  // namespace
}  // namespace echelon

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: comm_suite native|mpi|nccl\n");
    return 2;
  }
  try {
    return echelon::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_suite: %s\n", error.what());
    return 1;
  }
}
