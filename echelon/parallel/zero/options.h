#pragma once

#include <string>

#include "echelon/base/options.h"

namespace echelon {

enum class ShardOver { all, host };
constexpr auto names_of(ShardOver) { return names("all", "host"); }

enum class Offload { none, host, disk };
constexpr auto names_of(Offload) { return names("none", "host", "disk"); }

enum class ScatterOption { automatic, micro_batch, step };
constexpr auto names_of(ScatterOption) { return names("auto", "micro_batch", "step"); }

// Options of ZeRO besides parallel.zero (docs/zero.md).
struct ZeroOptions {
  double prefetch = 64;
  double group = 0.25;
  ShardOver shard = ShardOver::all;
  Offload offload = Offload::none;
  std::string offload_path = {};
  double piece = 4;
  ScatterOption scatter = ScatterOption::automatic;

  void fields(Fields& f) {
    f.add("prefetch", prefetch,
          "stage 3: parameters that may be gathered ahead of their use; the next group always is",
          {.minimum = 0, .maximum = 1e9, .unit = "MiB"});
    f.add(
        "group", group,
        "layers smaller than this are sharded, gathered and reduced together with their neighbours",
        {.minimum = 0, .maximum = 1e6, .unit = "MiB"});
    f.add("shard", shard,
          "shard over all ranks, or over the ranks of a host with one copy per host");
    f.add(
        "offload", offload,
        "where masters and optimiser state, and in stage 3 the slices of parameters and gradients, are kept");
    f.add("offload_path", offload_path,
          "folder for offload=disk, on a fast disk with enough space");
    f.add(
        "scatter", scatter,
        "stages 2 and 3: reduce gradients to their owners after each micro-batch (least memory) or once per step (fewest bytes); auto: once per step in a pipeline, if memory allows");
    f.add("piece", piece,
          "offload: size of the chunks that are updated one at a time, per kind of state",
          {.minimum = 0.02, .maximum = 1024, .unit = "MiB"});
  }
};

}  // namespace echelon
