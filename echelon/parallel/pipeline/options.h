// How layers and micro-batches are split over the ranks of a pipeline.
#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/options.h"

namespace echelon {

enum class PipelineOrder { gpipe, one_f_one_b, interleaved, zero_bubble };
constexpr auto names_of(PipelineOrder) {
  return names("gpipe", "1f1b", "interleaved", "zero-bubble");
}

enum class BalanceBy { time, memory, count };
constexpr auto names_of(BalanceBy) { return names("time", "memory", "count"); }

struct PipelineOptions {
  PipelineOrder schedule = PipelineOrder::one_f_one_b;
  std::int64_t chunks = 1;
  BalanceBy balance = BalanceBy::time;
  std::string stages;

  void fields(Fields& f) {
    f.add(
        "schedule", schedule,
        "order of forwards and backwards of micro-batches; interleaved: train.micro_batches must be a multiple of parallel.pipeline");
    f.add("chunks", chunks,
          "stages per rank; more than one only with pipeline.schedule=interleaved",
          {.minimum = 1, .maximum = 64});
    f.add("balance", balance,
          "what to balance over the stages: measured time, memory, or the number of layers");
    f.add("stages", stages, "layers per stage, for example \"4,3,3\"; empty: by pipeline.balance");
  }
};

}  // namespace echelon
