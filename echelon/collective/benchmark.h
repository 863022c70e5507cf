// How fast the collectives of a group are: the measurement behind `echelon bench collectives`.
//
// Each repetition begins at a barrier; its time is from there to the end of the operation on rank
// 0. Before and after those that are timed, every rank checks what the operation gives for values
// that are known (seeded_values.h).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "echelon/collective/call.h"

namespace echelon {

class Group;

struct BenchmarkOptions {
  Operation operation = Operation::all_reduce;
  DataType type = DataType::f32;
  std::vector<std::size_t> sizes = {64, 4096, 65536, 1 << 20, 1 << 24, 1 << 26};  // bytes
  bool registered = false;  // buffers from Group::allocate
  Algorithm algorithm = Algorithm::automatic;
  double seconds = 1;  // for each size
};

struct BenchmarkResult {
  std::size_t bytes;
  Algorithm algorithm;
  double median, p99;  // seconds
  // Bytes that the slowest way in or out of a rank must carry, over the time: 2((p-1)/p) n for
  // all_reduce, ((p-1)/p) n for reduce_scatter, all_gather and all_to_all, n for the rest.
  double bus_bandwidth;
  double predicted;  // seconds by the cost model
  // All_reduce on one host: seconds in which all ranks, at the same time, copy a vector each, the
  // fastest of several. They read and write as many bytes as an all_reduce must, and exchange none.
  double floor;
};

// The operation that is measured, on buffers of `bytes` each; where it works in place, `in` has its
// result. Tests give one that is wrong.
using BenchmarkCall = std::function<void(std::byte* in, std::byte* out, std::size_t bytes)>;

// Collective; what it gives counts on rank 0. Throws Error where an operation gives a wrong value.
// Without `call` it is options.operation of the group.
std::vector<BenchmarkResult> run_benchmark(Group& group, const BenchmarkOptions& options,
                                           const BenchmarkCall& call = {});

}  // namespace echelon
