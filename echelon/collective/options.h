#pragma once

#include <string>

#include "echelon/base/options.h"
#include "echelon/collective/algorithm.h"
#include "echelon/net/options.h"

namespace echelon {

enum class Backend { native, mpi, nccl };
constexpr auto names_of(Backend) { return names("native", "mpi", "nccl"); }

enum class Wire { same, fp32 };
constexpr auto names_of(Wire) { return names("same", "fp32"); }

enum class MeasureLinks { automatic, always };
constexpr auto names_of(MeasureLinks) { return names("auto", "always"); }

struct CommOptions {
  Backend backend = Backend::native;
  Algorithm algorithm = Algorithm::automatic;
  Wire wire = Wire::same;
  double timeout = 300;
  Switch single_copy = Switch::automatic;
  MeasureLinks measure = MeasureLinks::automatic;
  std::string plan = "";

  void fields(Fields& f) {
    f.add("backend", backend, "library that moves the bytes");
    f.add("algorithm", algorithm,
          "algorithm of every all_reduce; auto: the cheapest by the measured links",
          {.choices = {"auto", "direct", "ring", "bidirectional_ring", "recursive_doubling",
                       "rabenseifner", "server", "hierarchical", "shared_direct", "shared"}});
    f.add("wire", wire, "type of partial sums of fp16 and bf16 between hops");
    f.add("timeout", timeout, "deadline of an operation",
          {.minimum = 0, .above_minimum = true, .unit = "s"});
    f.add(
        "single_copy", single_copy,
        "read large private buffers of ranks on the same host in place; auto: where the system allows it and it was measured to be faster");
    f.add(
        "measure", measure,
        "measure alpha and beta of the links; auto: reuse those of several hosts for a day if they were steady and the links are the same; always: at every start");
    f.add("plan", plan, "plan.json whose figures and choices replace the measurement");
  }
};

// What a rank needs to join a job and to exchange in it.
struct RankOptions {
  NetOptions net;
  CommOptions comm;

  void fields(Fields& f) {
    f.section("net", net);
    f.section("comm", comm);
  }
};

}  // namespace echelon
