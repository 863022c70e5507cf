// What `echelon train` writes down and shows of a job.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/stack.h"
#include "echelon/train/job_data.h"
#include "echelon/train/memory_forecast.h"
#include "echelon/train/options.h"
#include "echelon/train/run_directory.h"
#include "echelon/train/trainer.h"

namespace echelon {

// What the numbers at the end are made of.
struct JobOutcome {
  std::vector<double> step_seconds;
  std::int64_t tokens_a_step = 0;
  double final_loss = 0;
  double validation_loss = 0;
  bool validated = false;
  std::map<std::int64_t, std::int64_t> ages = {};  // how many gradients were so many updates old
  int decisions = 0;                               // on how ranks synchronise
  double loss_scale = 0;                           // fp16: of the last step
  std::int64_t skipped = 0;                        // fp16: steps
};

std::string precision_name(at::ScalarType type);

nlohmann::ordered_json summary_of(const JobOptions& options, const JobOutcome& outcome,
                                  std::int64_t parameters, bool bytes, std::uint64_t start,
                                  std::uint64_t peak, const RunDirectory& run);
// How the job is laid out, as JSON.
std::string plan_of(const JobOptions& options, const Trainer& trainer, const Communicator* ranks);

// One entry of the report, "label       text": lines that would pass 100 columns go on below, under
// the text. No line ends in blanks.
std::string report_line(std::string_view label, std::string_view text);
// What is trained, and on what.
std::string model_text(const JobOptions& options, std::int64_t parameters, int ranks);
// How the ranks lie, where they have different parts of the model.
void show_layout(const JobOptions& options, const Trainer& trainer, const Stack& stack);
// Of a pipeline that a batch goes through in one piece: what that costs, and what to set. `samples`
// are those of a step that go through it. Empty where there are several micro-batches.
std::string one_micro_batch_warning(std::string_view schedule, const PipelineShape& shape,
                                    std::int64_t samples);

// What each rank took. Every rank calls it; where parameter servers are used ranks come and go, and
// it is of this one alone.
std::vector<RankMemory> memory_of_ranks(Communicator* ranks, const MemoryUse& peak,
                                        std::uint64_t start, std::uint64_t peak_process,
                                        bool this_one_alone);
void show_memory(const MemoryForecast& forecast, const std::vector<RankMemory>& ranks);
void show_servers(const ServerOptions& servers, int workers);
void show_synchronisation(const JobOutcome& outcome, const RunDirectory& run);
void show_loss_scale(const JobOutcome& outcome);
void show_validation(const JobOutcome& outcome, const JobData& data, std::int64_t context);
void show_sample(Stack& stack, std::int64_t context);

}  // namespace echelon
