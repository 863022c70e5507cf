// How layers and micro-batches go over the ranks of a pipeline.
#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/options.h"

namespace echelon {

struct PipelineOptions {
  std::string schedule = "1f1b";
  std::int64_t chunks = 1;
  std::string balance = "time";
  std::string stages;

  void fields(Fields& f) {
    f.add(
        "schedule", schedule,
        "the order in which a rank of parallel.pipeline runs forwards and backwards of micro-batches; "
        "interleaved: train.micro_batches must be a multiple of parallel.pipeline",
        {.choices = {"gpipe", "1f1b", "interleaved", "zero-bubble"}});
    f.add("chunks", chunks, "stages of each rank; more than one with pipeline.schedule=interleaved",
          {.minimum = 1, .maximum = 64});
    f.add("balance", balance,
          "what is to be as even as can be over the stages: measured time, memory, or the count of "
          "layers",
          {.choices = {"time", "memory", "count"}});
    f.add("stages", stages,
          "layers of each stage, as in \"4,3,3\": the same bits every time; empty: by "
          "pipeline.balance");
  }
};

}  // namespace echelon
