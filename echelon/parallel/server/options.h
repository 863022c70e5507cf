// Options of the parameter servers (docs/parameter-server.md).
#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

enum class ServerPlace { colocated, separate };
constexpr auto names_of(ServerPlace) { return names("colocated", "separate"); }

enum class ServerMode { sync, bounded, async };
constexpr auto names_of(ServerMode) { return names("sync", "bounded", "async"); }

struct ServerOptions {
  std::int64_t count = 0;
  ServerPlace place = ServerPlace::colocated;
  ServerMode mode = ServerMode::sync;
  std::int64_t staleness = 3;
  bool aware_rate = false;
  double compensate = 0;
  double fresh_wait = 0.5;
  double patience = 60;

  void fields(Fields& f) {
    f.add("count", count, "parameter servers; 0: none, ranks all-reduce",
          {.minimum = 0, .maximum = 1024});
    f.add("place", place,
          "colocated: the first ranks are also servers; separate: the last ranks are only servers");
    f.add(
        "mode", mode,
        "sync: a step begins when the previous one is applied; bounded: gradients may be up to server.staleness updates old; async: any staleness");
    f.add("staleness", staleness, "bounded: largest staleness of a gradient, in updates",
          {.minimum = 0, .maximum = 1000});
    f.add("aware_rate", aware_rate, "a gradient of age a counts 1/max(1, a)");
    f.add(
        "compensate", compensate,
        "delay compensation: factor on gradient squared times the drift of the parameters; 0: off",
        {.minimum = 0, .maximum = 1e3});
    f.add(
        "fresh_wait", fresh_wait,
        "bounded, async: how long a worker waits for the newest parameters, as a share of the time of a share of the batch; 0: never",
        {.minimum = 0, .maximum = 100});
    f.add("patience", patience,
          "how long a worker may be silent before its share goes to another (sync: the job ends)",
          {.minimum = 0, .above_minimum = true, .unit = "s"});
  }

  // The largest staleness of a gradient, in updates; the largest integer if unbounded.
  std::int64_t bound() const;
  // How many steps may be begun but not yet applied.
  std::int64_t most_begun() const;
  // The most gradients, each of the server's whole range, that can wait on a server in a job with
  // this many workers. A step is applied when all its shares have arrived, so a slow worker makes
  // many gradients wait.
  std::int64_t most_waiting(int workers) const;
};

}  // namespace echelon
