// All options of `echelon train`.
#pragma once

#include "echelon/base/options.h"
#include "echelon/collective/options.h"
#include "echelon/data/options.h"
#include "echelon/job/chaos.h"
#include "echelon/net/options.h"
#include "echelon/plan/options.h"

namespace echelon {

struct JobOptions : PlanOptions {
  DataOptions data;
  CommOptions comm;
  NetOptions net;
  ChaosOptions chaos;

  void fields(Fields& f) {
    f.section("model", model);
    f.section("task", model.task);
    f.section("data", data);
    f.section("train", train);
    f.section("optim", optim);
    f.section("parallel", parallel);
    f.section("pipeline", pipeline);
    f.section("zero", zero);
    f.section("server", server);
    f.section("sync", sync);
    f.section("comm", comm);
    f.section("net", net);
    f.section("chaos", chaos);
  }
};

}  // namespace echelon
