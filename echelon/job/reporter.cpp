#include "echelon/job/reporter.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "echelon/base/build_config.h"
#include "echelon/base/bytes.h"
#include "echelon/base/file.h"
#include "echelon/base/log.h"
#include "echelon/job/resume_command.h"
#include "echelon/job/whole_paths.h"
#include "echelon/launch/environment.h"
#include "echelon/models/family.h"
#include "echelon/models/lora.h"
#include "echelon/models/weights_folder.h"

namespace echelon {
namespace {

void print(const std::string& text) { fmt::print("{}", text); }

std::string stop_reason(const BestSoFar& best, std::int64_t step, std::int64_t steps) {
  const std::string than =
      best.best() ? fmt::format("a better {} than {:.4f}, of step {}", best.score_name(),
                                best.best()->score, best.best()->step)
                  : fmt::format("a {} that is a number", best.score_name());
  return fmt::format("after step {} of {}: {} validation{} in a row without {}", step, steps,
                     best.since_best(), best.since_best() == 1 ? "" : "s", than);
}

}  // namespace

Reporter::Reporter(Job job, RunDirectory run) : job_(std::move(job)), run_(std::move(run)) {
  const JobOptions& options = job_.request.options;
  Trainer& trainer = job_.trainer;
  if (!job_.request.resume.empty()) run_.rewind_metrics(trainer.step());
  JobOptions kept = with_whole_paths(options);
  write_file(run_.config(), to_toml(fields_of(kept), Comments::no));
  run_.write_plan(plan_of(options, job_.data, trainer, job_.request.ranks.get()));
  log::open(run_.log());
  log::info(fmt::format("echelon {} ({}), torch {}, {} parameters, step {} of {}", ECHELON_VERSION,
                        ECHELON_COMMIT, ECHELON_TORCH_VERSION, job_.stack.parameter_count(),
                        trainer.step(), options.train.steps));
  if (options.sync.adapt)
    log::info(fmt::format("reducing begins by {}", name(trainer.executor().reduces_by())));
  show_beginning();
  JobOptions laid_out = options;  // with the stages that were chosen
  if (trainer.layout().pipeline.ranks > 1)
    laid_out.pipeline.stages = stages_text(trainer.layout().stages);
  forecast_ = forecast_memory(laid_out, job_.ranks, job_.local_ranks);
  print(memory_text(forecast_, job_.ranks, {}));
  trainer.on_event(
      [this](const Event& event) { std::visit([this](const auto& one) { hear(one); }, event); });
}

void Reporter::show_beginning() const {
  const JobOptions& options = job_.request.options;
  const Trainer& trainer = job_.trainer;
  const bool resuming = !job_.request.resume.empty();
  const auto say_line = [](std::string_view label, const std::string& text) {
    print(report_line(label, text));
  };
  say_line("model", model_text(options, job_.stack.parameter_count(), job_.ranks));
  // A resumed run has its heads from the state, and model.init may be gone.
  if (const auto heads = resuming ? "" : new_heads_text(options.model, job_.stack); !heads.empty())
    say_line("head", heads);
  for (const auto& text : job_.left_behind)
    if (!text.empty())
      log::warn(fmt::format("{}. {}", text,
                            resuming ? fmt::format("What was saved after step {} is whole, and the "
                                                   "run goes on from there",
                                                   trainer.step())
                                     : std::string("This run begins anew")));
  print(layout_text(options, trainer, job_.stack));
  const auto& layout = trainer.layout();
  if (const auto warning = one_micro_batch_warning(options.pipeline.schedule, layout.pipeline,
                                                   options.train.batch / layout.mesh.shape.data);
      !warning.empty())
    log::warn(warning);
  if (!trainer.scatter_choice().empty())
    say_line("gradients", "go to their owners " + trainer.scatter_choice());
  say_line("data", job_.data.description);
  say_line("run", run_.path().string());
  if (job_.servers) {
    print(servers_text(options.server, job_.servers->roles().workers()));
    if (options.server.mode != ServerMode::sync)
      print(fmt::format(
          "join        {}\n",
          std::getenv("ECHELON_TOKEN_MADE")
              ? std::string("start the job with ECHELON_TOKEN set to let workers come later")
              : fmt::format("ECHELON_TOKEN=… echelon train {} --join {}", run_.config().string(),
                            job_.servers->addresses())));
  }
  if (resuming) say_line("resumed", fmt::format("after step {}", trainer.step()));
  if (const Tier* tier = trainer.tier()) say_line("offload", tier->description() + " a rank");
  if (options.optim.warmup >= options.train.steps)
    log::warn(fmt::format(
        "optim.warmup = {} is not below train.steps = {}: the rate never reaches its peak; set a "
        "shorter warm-up",
        options.optim.warmup, options.train.steps));
}

void Reporter::training_begins() {
  began_ = std::chrono::steady_clock::now();
  progress_.emplace(job_.trainer.step(), job_.request.options.train.steps, job_.data.units,
                    job_.request.progress);
  if (table_) progress_->table(table_);
}

void Reporter::training_ends() {
  progress_->remove_table();  // what was drawn may be cut, and lacks the last step
  progress_.reset();
  if (table_) print(table_());
}

void Reporter::say(const std::string& line) {
  if (progress_) progress_->say(line);
}

void Reporter::compares(const BestSoFar& best) {
  outcome_.best_score = best.score_name();
  outcome_.best = best.best();
  if (best.is_exhausted())
    outcome_.stopped = stop_reason(best, job_.trainer.step(), job_.request.options.train.steps);
}

void Reporter::validated(const BestSoFar& best) {
  compares(best);
  const auto step = job_.trainer.step();
  if (best.best() && best.best()->step == step)
    run_.add_best(step, best.score_name(), best.best()->score);
  if (outcome_.stopped.empty()) return;
  run_.add_stop(step, outcome_.stopped);
  log::info(outcome_.stopped);
}

void Reporter::last_validation_follows() { is_last_validation_ = true; }

void Reporter::hear(const StepReport& step) {
  run_.add_step(step, job_.data.units.bits_per_byte);
  if (progress_) progress_->step(step);
  outcome_.add(step);
}

void Reporter::hear(const ValidationReport& validation) {
  const auto steps = job_.request.options.train.steps;
  const auto scores = scores_of(validation, job_.data.units);
  run_.add_validation(validation.step, validation.loss, scores);
  if (!is_last_validation_)
    return say(fmt::format("step {:>{}}  validation {}", validation.step,
                           fmt::format("{}", steps).size(),
                           scores_text(validation.loss, scores, job_.data.units)));
  outcome_.validation_loss = validation.loss;
  outcome_.scores = scores;
  outcome_.validated = true;
}

void Reporter::hear(const DecisionReport& decision) {
  log::info(decision.text);
  ++outcome_.decisions;
}

void Reporter::hear(const FaultReport& fault) {
  if (fault.kind == FaultReport::Kind::worker_lost)
    outcome_.lost_workers.push_back(fault.text);
  else
    log::info(fault.text);
}

void Reporter::peer_lost() const noexcept {
  // The lost rank is the error to report, whatever is wrong with the state.
  try {
    if (std::filesystem::exists(run_.state()))
      fmt::print(stderr, "the state after step {} is kept; go on with: {}\n",
                 saved_step(run_.state()), resume_command(run_.path(), read_environment()));
    else
      fmt::print(stderr, "no state was saved: with train.save_every=N one is kept every N steps\n");
  } catch (const std::exception&) {
  }
}

Error Reporter::not_finite(const NotFinite& error) const {
  if (error.before_any_update) return Error(error.what());  // another rate would end the same way
  return Error(
      fmt::format("{}. Go on from there with: {}", error.what(),
                  resume_command(run_.path(), read_environment(), "--set optim.rate=...")));
}

void Reporter::show_lost_workers() const {
  print(lost_workers_text(outcome_, job_.servers ? job_.servers->roles().workers() : 0));
}

void Reporter::interrupted() {
  const auto step = job_.trainer.step();
  log::info(fmt::format("interrupted after step {}", step));
  show_lost_workers();
  print(fmt::format("interrupted after step {}; go on with: {}\n", step,
                    resume_command(run_.path(), read_environment())));
}

void Reporter::show_sample() const {
  const ModelOptions& model = job_.request.options.model;
  if (!job_.data.units.bits_per_byte) return;
  if (!job_.trainer.is_sharded()) return print(sample_text(job_.stack, model.context));
  if (!job_.request.options.train.save_last) return;
  // No rank has the whole model: uses the weights that were written.
  const ModelOptions written = read_model_options(run_.weights());
  Stack whole = family_of(written).build(written);
  whole.allocate(at::kCPU, at::kFloat, Gradients::no);
  whole.load(read_weights(run_.weights(), written, whole));
  print(sample_text(whole, model.context));
}

void Reporter::finished(const std::vector<RankMemory>& memory, std::uint64_t peak,
                        const std::string& timelines) {
  const JobOptions& options = job_.request.options;
  const std::string path = run_.path().string();
  run_.write_memory(forecast_, memory);
  const auto summary = summary_of(options, outcome_, job_.stack.parameter_count(), job_.data.units,
                                  job_.start, peak, run_);
  if (!job_.request.summary.empty()) write_file(job_.request.summary, summary.dump(2) + "\n");
  log::info(summary.dump());

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  const auto steps = outcome_.step_seconds.size();
  print(fmt::format("trained     {} step{}, {} {}/s; {:.0f} s in all\n", steps,
                    steps == 1 ? "" : "s", human_count(summary["tokens_per_s"].get<double>()),
                    job_.data.units.counts, seconds));
  print(synchronisation_text(outcome_, run_));
  show_lost_workers();
  print(loss_scale_text(outcome_));
  if (job_.request.trace_sync)
    print(fmt::format("trace       {}/trace.json opens in Perfetto\n", path));
  if (job_.request.trace_pipeline)
    print(fmt::format("{}the same as a picture: {}/pipeline.svg\n", timelines, path));
  print(best_text(outcome_, run_, options.train.keep_best));
  print(validation_text(outcome_, job_.data, options.model.context));
  print(memory_text(forecast_, int(memory.size()), memory));
  show_sample();
  if (options.train.save_last)
    print(
        fmt::format("run         {}: weights/ opens in {}\n{}", path,
                    is_adapter(run_.weights()) ? "PEFT" : "transformers",
                    task_of(options.model) == ModelTask::causal
                        ? fmt::format("try         echelon generate {}\n", run_.weights().string())
                        : std::string()));
  else
    print(report_line(
        "run", fmt::format("{}; train.save_last=false: nothing of the model was written", path)));
}

}  // namespace echelon
