// How layers and micro-batches go over the ranks of a pipeline.
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
        "the order in which a rank of parallel.pipeline runs forwards and backwards of micro-batches; "
        "interleaved: train.micro_batches must be a multiple of parallel.pipeline");
    f.add("chunks", chunks, "stages of each rank; more than one with pipeline.schedule=interleaved",
          {.minimum = 1, .maximum = 64});
    f.add("balance", balance,
          "what is to be as even as can be over the stages: measured time, memory, or the count of "
          "layers");
    f.add("stages", stages,
          "layers of each stage, as in \"4,3,3\": the same bits every time; empty: by "
          "pipeline.balance");
  }
};

}  // namespace echelon
