// The driver of a job. Every rank runs the same script, so every collective call is written once.
// Job::run() is its table of contents. What only the first rank does, printing and writing, is
// behind `reporter_`, which the others do not have.
#include "echelon/job/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/log.h"
#include "echelon/base/process_memory.h"
#include "echelon/comm/job_ledger.h"
#include "echelon/comm/texts.h"
#include "echelon/job/async_phases.h"
#include "echelon/job/best_validation.h"
#include "echelon/job/data.h"
#include "echelon/job/data_check.h"
#include "echelon/job/exchange_table.h"
#include "echelon/job/pipeline_trace.h"
#include "echelon/job/report.h"
#include "echelon/job/reporter.h"
#include "echelon/job/resolve.h"
#include "echelon/job/run_directory.h"
#include "echelon/job/server_job.h"
#include "echelon/job/sync_trace.h"
#include "echelon/job/tokenizer_files.h"
#include "echelon/launch/environment.h"
#include "echelon/models/family.h"
#include "echelon/models/frozen_values.h"
#include "echelon/models/lora.h"
#include "echelon/models/weights_folder.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/launcher_report.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/train/best_so_far.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

constexpr int columns = 80;                // of a pipeline's drawing
constexpr const char* best_note = "best";  // of a state: BestSoFar::text

// The run to resume, which the first rank locks; if it cannot, every rank throws. Nothing on other
// ranks, and for a new run.
std::optional<RunDirectory> lock_former_run(const JobRequest& request) {
  std::optional<RunDirectory> run;
  if (request.resume.empty()) return run;
  std::string objection;
  if (!request.ranks || request.ranks->rank() == 0) {
    run.emplace(RunDirectory::open(request.resume));
    try {
      run->lock();
    } catch (const InvalidArgument& in_use) {
      objection = in_use.what();
    }
  }
  require_no_objection(objection, request.ranks.get());
  return run;
}

// The form that a state keeps: two runs on the same data have the same state, wherever the files
// are.
std::string data_note(DataFingerprint data) {
  data.source.clear();
  return to_json(data);
}

FormerData former_data(const std::optional<RunDirectory>& run) {
  if (!run) return {};
  return {run->path().string(), fingerprint_of(saved_note(run->state(), "data"))};
}

std::string listening_address(const JobOptions& options) {
  return Endpoint::listening_address(read_environment(), options.net);
}

class Job {
 public:
  Job(JobRequest request, const std::atomic<bool>& stop)
      : request_(std::move(request)),
        stop_(stop),
        rank_(request_.ranks ? request_.ranks->rank() : 0),
        ranks_(request_.ranks ? request_.ranks->size() : 1),
        local_ranks_(read_environment().local_world) {}

  JobEnd run() {
    agree_on_options();
    open_data_and_model();
    if (!request_.join.empty()) return visit();
    start_servers();
    if (servers_ && !servers_->works()) return serve();
    make_trainer();
    choose_how_to_synchronise();
    restore();
    watch_validations();
    begin();
    train();
    return finish();
  }

 private:
  void agree_on_options();
  void open_data_and_model();
  JobEnd visit();
  void start_servers();
  JobEnd serve();
  void make_trainer();
  void load_given_weights();
  void load_saved_frozen();
  void choose_how_to_synchronise();
  void start_traces();
  void restore();
  void watch_validations();
  bool best_is_kept();
  void begin();
  void show_exchanges();
  void train();
  JobEnd finish();

  void run_until(std::int64_t step) {
    phases_ ? phases_->run_until(step, &stop_) : trainer_->run_until(step, &stop_);
  }
  void validate();
  void keep_best();
  void save();
  void write_weights_folder(const std::filesystem::path& folder);
  void leave_servers();
  std::string gather_ledger();
  std::vector<RankMemory> gather_memory();

  JobOptions& options() { return request_.options; }
  const TrainOptions& steps() const { return request_.options.train; }
  bool first() const { return rank_ == 0; }
  bool resumes() const { return !request_.resume.empty(); }
  // Workers of parameter servers each have the whole model. Only the first pushes the initial
  // values, validates and saves; the others run to the end without a stop.
  bool has_part_in_all() const { return !servers_ || first(); }
  bool validates() const { return data_.validation && has_part_in_all(); }
  bool has_frozen() const {
    return std::ranges::any_of(stack_->parameters(), [](const auto& p) { return !p.trainable; });
  }
  bool is_finished() const {
    return trainer_->step() >= steps().steps || (best_ && best_->is_exhausted());
  }
  bool saves() const { return first() || trainer_->saves_together(); }
  // Workers of parameter servers that do not wait for each other may have left by the end.
  bool others_may_be_gone() const {
    return servers_ && request_.options.server.mode != ServerMode::sync;
  }
  const MemoryAccount& account() const { return memory_here_ ? *memory_here_ : trainer_->memory(); }
  // A file of the run; empty on ranks that write none.
  std::filesystem::path file(std::string_view name) const {
    return reporter_ ? reporter_->run().path() / name : std::filesystem::path();
  }

  JobRequest request_;
  const std::atomic<bool>& stop_;
  const int rank_, ranks_, local_ranks_;
  std::optional<RunDirectory> former_;
  JobData data_;
  std::uint64_t start_ = 0;  // memory of the process before the model
  std::optional<PeakMemory> peak_;
  std::optional<Stack> stack_;
  std::optional<MemoryAccount> memory_here_;  // of the trainer and the server in this process
  std::optional<MemoryCounting> counting_here_;
  std::optional<ServerJob> servers_;
  std::optional<Trainer> trainer_;
  std::optional<AsyncPhases> phases_;
  std::optional<BestSoFar> best_;  // if validations are compared
  std::optional<SyncTrace> trace_;
  std::optional<ExchangeTable> table_;  // on the first rank
  std::optional<PipelineTrace> drawing_;
  std::string timelines_;                   // of the drawing
  std::vector<RankMemory> servers_memory_;  // requested while the servers run
  std::unique_ptr<Reporter> reporter_;      // of the first rank
};

void Job::agree_on_options() {
  check_job(request_, ranks_);
  if (!resumes()) resolve_options(options(), request_.given);
  options().split = family_of(options().model).split(options().model);
  if (request_.ranks) require_same_options(options(), *request_.ranks);
  if (auto run = lock_former_run(request_)) former_.emplace(std::move(*run));
}

void Job::open_data_and_model() {
  data_ = open_data(options());
  options().sample_tokens = length_divisor(*data_.training, steps().pad_to);
  // Before all data is read, which may take a while.
  if (request_.join.empty())
    require_memory(options(), ranks_, local_ranks_);
  else  // the job will tell how many workers split a batch
    require_memory(options(), 0, local_ranks_, Role::guest);
  require_same_data(data_, former_data(former_), request_.ranks.get(),
                    options().train.allow_other_data);
  start_ = own_bytes();
  peak_.emplace();
  stack_.emplace(family_of(options().model).build(options().model));
}

// A worker that joins the servers of a running job.
JobEnd Job::visit() {
  Ledger ledger;
  trainer_.emplace(*stack_, *data_.training, options());
  load_given_weights();
  fmt::print("connecting  to {}\n", request_.join);
  std::fflush(stdout);
  join_servers(request_.join, options(), data_.fingerprint, *trainer_, *stack_, ledger);
  // This trainer has already allocated its part of the free memory: only a fixed limit can be
  // compared.
  if (options().train.memory_mib > 0)
    require_memory(options(), trainer_->batch_parts(), 1, Role::guest);
  request_.training_begins();
  fmt::print("joined      {}\n", request_.join);
  std::fflush(stdout);
  // Until the job ends.
  trainer_->run_until(std::numeric_limits<std::int64_t>::max(), &stop_);
  fmt::print("left        after step {}, {}\n", trainer_->step(),
             stop_.load() ? "since it was told to" : "the job's last");
  trainer_.reset();  // which holds the ledger
  return JobEnd::finished;
}

void Job::load_given_weights() {
  const ModelOptions& model = options().model;
  if (model.init.empty()) return;
  trainer_->load(initial_values(model, *stack_, std::uint64_t(steps().seed)));
}

// Of a worker that does not restore the state: what is frozen is that of the state, as for the
// first worker. model.init may have other weights by now.
void Job::load_saved_frozen() {
  if (!has_frozen()) return;
  const auto state =
      std::make_shared<const safetensors::Reader>(RunDirectory::open(request_.resume).state());
  const ValueSource random = random_values(std::uint64_t(steps().seed));
  trainer_->load([state, random](const Parameter& parameter, const at::Tensor& out) {
    if (parameter.trainable) return random(parameter, out);
    const auto* entry = state->find("fixed/" + parameter.name);
    if (!entry || entry->shape != parameter.shape)
      throw InvalidArgument(fmt::format("{} does not fit this job: it has no fixed/{} of [{}]",
                                        state->path().string(), parameter.name,
                                        fmt::join(parameter.shape, ", ")));
    out.copy_(tensor_of(*state, *entry));
  });
}

void Job::start_servers() {
  if (options().server.count == 0) return;
  memory_here_.emplace(MemoryExtent::with_inner);
  counting_here_.emplace(*memory_here_);
  servers_.emplace(options(), *request_.ranks, listening_address(options()), Token::find(),
                   data_.fingerprint);
  servers_->report_memory([this] {
    return memory_words({memory_here_->at_peak(), start_, peak_->bytes()});
  });
}

// A rank that is only a server.
JobEnd Job::serve() {
  request_.training_begins();
  servers_->all_have_come();
  servers_->serve(stop_);
  const bool finished = servers_->server()->version() >= steps().steps;
  gather_ledger();
  if (finished) gather_memory();
  return finished ? JobEnd::finished : JobEnd::interrupted;
}

void Job::make_trainer() {
  trainer_.emplace(*stack_, *data_.training, options(), servers_ ? nullptr : request_.ranks);
  trainer_->note("data", data_note(data_.fingerprint));
  // Servers bring workers what trains, and nothing else.
  if (!resumes() && (has_part_in_all() || has_frozen())) load_given_weights();
  if (resumes() && !has_part_in_all()) load_saved_frozen();
  for (const auto& metric : metrics_of(options().model)) trainer_->add_metric(metric);
  if (servers_) {
    servers_->attach(*trainer_, *stack_);
    request_
        .training_begins();  // on all ranks before any continues: no rank waits for one that ended
    servers_->all_have_come();
  }
  trainer_->slow_down(options().chaos.slowness(rank_, ranks_));
}

void Job::choose_how_to_synchronise() {
  if (options().sync.adapt) trainer_->adapt(options().sync);
  if (options().sync.allow_staleness > 0)
    phases_.emplace(options(), *trainer_, *stack_, request_.ranks, listening_address(options()),
                    Token::find(), [this](const std::string& decision) {
                      trainer_->tell(DecisionReport{trainer_->step(), decision});
                    });
  start_traces();
}

void Job::start_traces() {
  if (request_.trace_sync) trace_.emplace(request_.ranks);
  if (request_.trace_pipeline) drawing_.emplace(trainer_->layout(), options().pipeline);
  if (trace_ || drawing_ || request_.trace_buckets) trainer_->trace(true);
}

void Job::restore() {
  if (resumes() && has_part_in_all())
    trainer_->restore(RunDirectory::open(request_.resume).state());
}

void Job::watch_validations() {
  const bool keeps = steps().keep_best;
  if (steps().patience == 0 && !keeps) return;
  if (!data_.validation)
    throw InvalidArgument(
        "train.patience and train.keep_best compare validations, and this job has no data for "
        "them: set data.validation, or train.patience=0 and train.keep_best=false");
  best_.emplace(watch_best(steps(), *trainer_, data_.units));
  if (!resumes()) return;
  best_->restore(saved_note(RunDirectory::open(request_.resume).state(), best_note));
  if (keeps && !best_->is_exhausted() && !best_is_kept()) best_->forget_best();
  trainer_->note(best_note, best_->text());
}

// Whether best/ of the run to resume has the weights of the best validation. The state may be older
// than the folder, or of a job that kept none.
bool Job::best_is_kept() {
  if (!best_->best()) return true;
  std::string kept;
  if (former_) kept = is_kept(former_->best(), best_->score_name(), *best_->best()) ? "yes" : "no";
  return (request_.ranks ? gather_texts(*request_.ranks, kept, "setup").front() : kept) == "yes";
}

void Job::begin() {
  std::vector<std::string> left_behind;  // files of killed ranks
  if (trainer_->tier() && request_.ranks)
    left_behind = gather_texts(*request_.ranks, trainer_->tier()->left_behind(), "offload");
  if (request_.ranks && is_expendable(options(), rank_, ranks_))
    LauncherReport(rank_, ranks_).expendable();
  if (first())
    reporter_ = std::make_unique<Reporter>(
        Reporter::Job{request_, data_, *stack_, *trainer_, servers_ ? &*servers_ : nullptr,
                      std::move(left_behind), start_, ranks_, local_ranks_},
        former_ ? std::move(*former_) : RunDirectory::create(request_.runs, request_.name));
  if (reporter_ && best_) reporter_->compares(*best_);
  if (reporter_ && request_.trace_buckets) show_exchanges();
  if (trace_ || drawing_)
    trainer_->on_event([this](const Event& event) {
      const auto* exchanges = std::get_if<ExchangeReport>(&event);
      if (!exchanges) return;
      if (drawing_) drawing_->keep(trainer_->executor());
      if (!trace_) return;
      const std::string lines = trace_->step(*exchanges, trainer_->executor());
      if (reporter_) reporter_->say(lines);
    });
  request_.training_begins();
  if (reporter_) reporter_->training_begins();
}

void Job::show_exchanges() {
  table_.emplace(request_.ranks);
  trainer_->on_event([this](const Event& event) {
    if (const auto* step = std::get_if<StepReport>(&event)) table_->add(*step);
    if (const auto* exchanges = std::get_if<ExchangeReport>(&event)) table_->add(*exchanges);
  });
  reporter_->shows([this] { return table_->text(); });
}

void Job::train() {
  const auto next = [&](std::int64_t every) {
    return every > 0 ? (trainer_->step() / every + 1) * every : steps().steps;
  };
  try {
    while (!is_finished()) {
      const auto until =
          has_part_in_all()
              ? std::min({next(steps().validate_every), next(steps().save_every), steps().steps})
              : steps().steps;
      run_until(until);
      // Also if interrupted here: a resumed run would not come back to it.
      if (trainer_->step() < until) break;
      // After the last step all samples are validated, in finish().
      if (validates() && (until < steps().steps || best_) && until % steps().validate_every == 0)
        validate();
      if (steps().save_every > 0 && until % steps().save_every == 0) save();
    }
  } catch (const PeerLost&) {
    if (reporter_) reporter_->peer_lost();
    throw;
  } catch (const NotFinite& error) {
    save();
    if (reporter_) throw reporter_->not_finite(error);
    throw;
  }
  if (reporter_) reporter_->training_ends();
}

// All ranks decide by the same score: keep_best() is collective.
void Job::validate() {
  const auto seen = trainer_->measure(*data_.validation, steps().validate_samples);
  if (!best_) return;
  double score = score_of(seen, data_.units, best_->score_name());
  if (ranks_ > 1) score = score_of_first(score, *request_.ranks);
  const bool better = best_->add(trainer_->step(), score);
  trainer_->note(best_note, best_->text());
  if (better && steps().keep_best) keep_best();
  if (reporter_) reporter_->validated(*best_);
}

void Job::keep_best() {
  const auto folder = file("best");
  if (reporter_) forget_kept(folder);
  write_weights_folder(folder);
  if (reporter_) note_kept(folder, best_->score_name(), *best_->best());
}

JobEnd Job::finish() {
  const bool finished = is_finished();
  // So that a finished run can be given more steps. With save_every, the last of its own states
  // stays, unless training stopped early: resumed from an older state, it would go on.
  const bool stopped = best_ && best_->is_exhausted();
  if (!finished || ((steps().save_every == 0 || stopped) && steps().save_last)) save();
  if (finished && steps().save_last) write_weights_folder(file("weights"));
  leave_servers();
  const std::string ledger = gather_ledger();
  if (reporter_) reporter_->run().write_ledger(ledger);
  if (table_) write_file(file(name_of(RunFile::exchanges)), table_->json());
  if (trace_) trace_->write(file(name_of(RunFile::trace)));
  if (drawing_) timelines_ = drawing_->write(file(name_of(RunFile::pipeline)), columns);
  if (!finished) {
    if (reporter_) reporter_->interrupted();
    return JobEnd::interrupted;
  }
  const std::uint64_t peak = peak_->bytes();
  const auto memory = gather_memory();
  if (reporter_) reporter_->last_validation_follows();
  if (validates()) trainer_->evaluate_together(*data_.validation, data_.validation->size());
  if (reporter_) reporter_->finished(memory, peak, timelines_);
  return JobEnd::finished;
}

// If ranks shard the state, all take part and the first writes; otherwise the first has all of it.
void Job::save() {
  if (saves()) trainer_->save(reporter_ ? reporter_->run().state() : std::filesystem::path());
}

// The same: all ranks gather each parameter, in the order of the stack, in which the writer asks
// for them.
void Job::write_weights_folder(const std::filesystem::path& folder) {
  if (!saves()) return;
  FrozenValues frozen(options().model, *stack_, std::uint64_t(steps().seed));
  const auto value = [&](const Parameter& parameter) {
    const at::Tensor held = trainer_->master(parameter);
    return reporter_ ? frozen.exact(parameter, held) : held;
  };
  const bool adapter_only = options().model.lora.rank > 0 && !options().model.lora.merge;
  if (!reporter_)
    for (const auto& parameter : stack_->parameters()) {
      if (!adapter_only || is_in_adapter(options().model, parameter)) value(parameter);
    }
  else if (adapter_only)
    write_adapter(folder, options().model, *stack_, master_type(stack_->type()), value);
  else
    write_weights(folder, options().model, *stack_, master_type(stack_->type()), value,
                  token_notes(data_.tokenizer.get(), tokens_are_bytes(options().data)));
  if (!frozen.warning().empty())
    log::warn(fmt::format("{}: {}", folder.string(), frozen.warning()));
  if (reporter_ && data_.tokenizer) copy_tokenizer(*data_.tokenizer, folder);
}

void Job::leave_servers() {
  if (!servers_) return;
  if (first() && others_may_be_gone()) {
    const auto words = trainer_->memory_of_servers();
    for (std::size_t i = 0; i < words.size(); ++i)
      if (const int rank = servers_->roles().rank_of(int(i)); rank != 0)
        servers_memory_.push_back(memory_from(words[i], rank));
  }
  trainer_->leave_servers();
  servers_->wait();
}

// The bytes that all ranks sent; only those of this rank if others may have left.
std::string Job::gather_ledger() {
  return job_ledger(request_.ranks.get(),
                    others_may_be_gone() ? Extent::this_rank : Extent::all_ranks);
}

// The memory of each rank; only that of this rank and the servers if others may have left.
std::vector<RankMemory> Job::gather_memory() {
  auto all = memory_of_ranks(request_.ranks.get(), account().at_peak(), start_, peak_->bytes(),
                             others_may_be_gone());
  all.insert(all.end(), servers_memory_.begin(), servers_memory_.end());
  return all;
}

}  // namespace

JobEnd run_job(JobRequest request, const std::atomic<bool>& stop) {
  return Job(std::move(request), stop).run();
}

}  // namespace echelon
