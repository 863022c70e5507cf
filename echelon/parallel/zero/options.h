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

// ZeRO, beside parallel.zero: docs/zero.md.
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
          "stage 3: parameters that may be brought together ahead of their use; the next group "
          "always is",
          {.minimum = 0, .maximum = 1e9, .unit = "MiB"});
    f.add("group", group,
          "layers that are smaller are shared out, gathered and reduced together with their "
          "neighbours",
          {.minimum = 0, .maximum = 1e6, .unit = "MiB"});
    f.add("shard", shard,
          "over whom: all ranks, or those of a host, while every host has a copy of everything");
    f.add("offload", offload,
          "where the optimiser's state, the masters and in stage 3 the slices of parameters and "
          "gradients are kept");
    f.add("offload_path", offload_path, "folder for offload=disk: on a fast disk, with room");
    f.add(
        "scatter", scatter,
        "stages 2 and 3 with several micro-batches: gradients go to their owners after each, which "
        "needs the least memory, or once a step, which sends the least; auto: once a step in a "
        "pipeline, where memory allows");
    f.add("piece", piece, "offload: what is updated at a time, of each kind of state",
          {.minimum = 0.02, .maximum = 1024, .unit = "MiB"});
  }
};

}  // namespace echelon
