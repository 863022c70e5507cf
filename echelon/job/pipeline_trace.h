// Draws what the ranks of a pipeline did in a step, next to the prediction for its schedule: as
// lines of text, and as a picture, pipeline.svg.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "echelon/parallel/pipeline/options.h"
#include "echelon/parallel/pipeline/timeline.h"
#include "echelon/plan/mesh_layout.h"
#include "echelon/step/executor.h"

namespace echelon {

// The slots of this rank in the last step of a tracing executor, in seconds since `start`.
std::vector<TimedSlot> slots_of(const Executor& executor, const MeshLayout& layout,
                                std::chrono::steady_clock::time_point start = {});

// The labels of the ranks of this rank's pipeline in drawings: "stage 1 (rank 2)", and with several
// chunks "stages 0,2 (rank 0)".
std::vector<std::string> pipeline_rows(const MeshLayout& layout);

// Lines that explain "idle" and "bubble" of the drawings, with the closed forms next to the
// results.
std::string bubble_note(const PipelineOptions& options, const PipelineShape& shape,
                        const Timeline& predicted, const Timeline& measured);

class PipelineTrace {
 public:
  // Collective: the times of all ranks start here.
  PipelineTrace(const MeshLayout& layout, const PipelineOptions& options);

  // Keeps the last step of a tracing executor.
  void keep(const Executor& executor);

  // Collective; rank 0 writes. Returns both timelines of the last step for a terminal of `width`
  // columns: as it ran, and as the simulator predicts it from the costs of its slots.
  std::string write(const std::filesystem::path& svg, int width);

 private:
  const MeshLayout& layout_;
  PipelineOptions options_;
  std::chrono::steady_clock::time_point start_;
  std::vector<TimedSlot> slots_;  // of this rank
};

}  // namespace echelon
