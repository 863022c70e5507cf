// What the ranks of a pipeline did in a step, beside what its schedule was predicted to do: on the
// screen as lines of text, and as a picture, pipeline.svg.
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

// What this rank did in the last step of a tracing executor, by seconds since `start`.
std::vector<TimedSlot> slots_of(const Executor& executor, const MeshLayout& layout,
                                const PipelineOptions& options,
                                std::chrono::steady_clock::time_point start = {});

// The ranks of this rank's pipeline, as its drawings call them: "stage 1 (rank 2)", and with
// several chunks "stages 0,2 (rank 0)".
std::vector<std::string> pipeline_rows(const MeshLayout& layout);

// What "idle" and "bubble" of the drawings are, in lines, with the closed forms beside what came
// out.
std::string bubble_note(const PipelineOptions& options, const PipelineShape& shape,
                        const Timeline& predicted, const Timeline& measured);

class PipelineTrace {
 public:
  // Collective: all ranks' times count from here.
  PipelineTrace(const MeshLayout& layout, const PipelineOptions& options);

  // Keeps the last step of a tracing executor.
  void keep(const Executor& executor);

  // Collective; rank 0 writes. Gives both timelines of the last step that was kept, for a terminal
  // of `width` columns: as its slots were, and as the simulator has them from what they cost.
  std::string write(const std::filesystem::path& svg, int width);

 private:
  const MeshLayout& layout_;
  PipelineOptions options_;
  std::chrono::steady_clock::time_point start_;
  std::vector<TimedSlot> slots_;  // of this rank
};

}  // namespace echelon
