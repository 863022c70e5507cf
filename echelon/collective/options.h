#pragma once

#include <string>

#include "echelon/base/options.h"
#include "echelon/net/options.h"

namespace echelon {

struct CommOptions {
  std::string backend = "native";
  std::string algorithm = "auto";
  std::string wire = "same";
  double timeout = 300;
  std::string single_copy = "auto";
  std::string measure = "auto";
  std::string plan = "";

  void fields(Fields& f) {
    f.add("backend", backend, "who moves the bytes", {.choices = {"native", "mpi", "nccl"}});
    f.add("algorithm", algorithm, "of every all_reduce; auto: the cheapest by what was measured",
          {.choices = {"auto", "direct", "ring", "bidirectional_ring", "recursive_doubling",
                       "rabenseifner", "server", "hierarchical", "shared_direct", "shared"}});
    f.add("wire", wire,
          "type in which partial sums of fp16 and bf16 travel where an algorithm hands them on",
          {.choices = {"same", "fp32"}});
    f.add("timeout", timeout, "how long an operation may take, from its call to its end",
          {.minimum = 0, .above_minimum = true, .unit = "s"});
    f.add(
        "single_copy", single_copy,
        "read large private buffers of ranks on the same host in place; auto: where the system allows it and it was measured to be faster",
        {.choices = {"auto", "on", "off"}});
    f.add(
        "measure", measure,
        "alpha and beta of the links; auto: those of several hosts are reused for a day, where they were steady and machines, addresses and interfaces are the same; always: measured when the job starts",
        {.choices = {"auto", "always"}});
    f.add("plan", plan, "a plan.json whose figures and choices are taken instead of measuring");
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
