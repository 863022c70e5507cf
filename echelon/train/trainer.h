// Trains a Stack on a Dataset.
//
//   Stack stack;
//   stack.add(module_layer("body", net)).add(loss_layer(mse));
//   TensorDataset data(inputs, targets);
//   Trainer trainer(stack, data, {.train = {.steps = 500, .batch = 64}, .optim = {.rate = 1e-2}});
//   trainer.on_step([](const StepReport& r) { std::printf("%ld %f\n", r.step, r.loss); });
//   trainer.run();
//
//   trainer.save_weights("net.safetensors");
//   at::Tensor y = trainer.infer(x);
//   trainer.gather();                          // `net` itself now holds the trained parameters
//
// On a GPU no step waits for the host, so numbers are reported a few steps late. The same options
// and data give the same bits (on the CPU; with the same number of threads).
//
// While a step runs, the batches of the next train.ahead steps are read on another thread, or on
// several if the dataset is concurrent(). Between calls of the trainer nothing is read.
//
// Several ranks: Trainer(stack, data, options, Communicator::world()). Their sums are rounded in
// another order than in one process, so the parameters agree to rounding, not to the bit. If the
// model is sharded (is_sharded()), a user's modules are empty until gather(): calling or saving
// them throws InvalidArgument.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"
#include "echelon/data/dataset.h"
#include "echelon/data/sampler.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/stack.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/data/controller.h"
#include "echelon/parallel/data/sync_options.h"
#include "echelon/parallel/options.h"
#include "echelon/parallel/pipeline/options.h"
#include "echelon/parallel/server/worker.h"
#include "echelon/parallel/zero/options.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/parallel/zero/zero_update.h"
#include "echelon/plan/mesh_layout.h"
#include "echelon/plan/options.h"
#include "echelon/step/executor.h"
#include "echelon/train/batch_reader.h"
#include "echelon/train/best_so_far.h"
#include "echelon/train/evaluation.h"
#include "echelon/train/events.h"

namespace echelon {

// The loss or a gradient is not finite. In fp16: not finite at any loss scale.
class NotFinite : public Error {
 public:
  using Error::Error;
  bool before_any_update = false;  // by this trainer: optim.rate had no effect yet
};

// The part of a worker of parameter servers. The first worker provides the parameters, sees every
// step and can save. A rank of the job computes, and stops with the job. A guest joins and leaves
// at any time.
enum class ServerPart { first, rank, guest };

class Trainer {
 public:
  // Allocates the stack. Throws InvalidArgument if the options do not fit the machine, the stack or
  // the data. The stack and the data must outlive the trainer.
  //
  // Several ranks form a mesh (parallel.pipeline, data, tensor). Every rank constructs the same
  // trainer with the whole dataset and makes the same calls. Along data, each rank trains on its
  // part of the global batch, and all ranks keep bitwise equal parameters. They take rank 0's
  // parameters and buffers (running statistics) at the first run() or measure(), and its buffers
  // again whenever run() returns. If parameters still differ (faulty memory, a layer that draws its
  // own random numbers), run() throws an Error that names the ranks, at the next step that is a
  // multiple of train.check_every. Along pipeline, each rank has some of the layers; along tensor,
  // its part of the matrices that `split` names.
  Trainer(Stack& stack, const Dataset& data, const TrainerOptions& options = {},
          std::shared_ptr<Communicator> ranks = nullptr);
  ~Trainer();

  // Lays the model out over other ranks: rebuilds the mesh, the memory, the slices and the step
  // table, as the constructor does. A job that has lost or gained ranks continues with
  //
  //   trainer.save(state);                   // on all previous ranks
  //   trainer.lay_out(ranks->split(…));      // on all new ranks
  //   trainer.restore(state);
  //
  // The trainer starts like a new one: step() is 0, and parameters have their initial values.
  // Options, data, observers, notes, the probe and the memory account stay. split_batch(),
  // reduce_by() and adapt() were chosen for the previous ranks and are reset. Every rank of `ranks`
  // calls it (null: one process); previous ranks need not exist any more. Throws InvalidArgument
  // and leaves the trainer unchanged if parameter servers are in use or the options do not fit this
  // number of ranks or its backend. After any later error (ranks with other data, hosts with
  // different numbers of ranks under zero.shard=host) the only valid call is lay_out() again.
  void lay_out(std::shared_ptr<Communicator> ranks);

  // Pushes gradients to parameter servers, which own parameters and optimiser state, instead of
  // updating here. Call it before run(). The batch of a step is cut into shares; workers take the
  // next share when they are free.
  //
  // A trainer of several ranks uses servers for an asynchronous phase: all ranks call
  // use_servers(), run to the same step and call leave_servers(), which brings parameters and state
  // back. Then the ranks all-reduce again.
  void use_servers(ServerWorker::Setup setup, const NetOptions& net, const Token& token,
                   ServerPart part, Ledger& ledger);
  void leave_servers();  // says goodbye to the servers
  void drop_servers();   // the same, but brings nothing back: the servers' state is lost
  void stop_servers();   // begins no new step; run_until() returns after the begun steps
  // The memory use of each server's process so far, by server. First worker only.
  std::vector<std::string> memory_of_servers() { return servers_->memory_reports(); }
  // Parts that a batch is cut into: one per rank, or per worker of parameter servers.
  int batch_parts() const { return static_cast<int>(batch_parts_); }
  // Why ranks had to end an asynchronous phase: a gradient was not finite. Its step was not
  // applied. Empty: no failure.
  const std::string& failure() const { return failure_; }
  // Workers that died or that the servers dropped, with reasons, as the servers told the first
  // worker.
  const std::vector<std::string>& lost_workers() const { return lost_workers_; }

  // From the next step on: the all-reduce algorithm for gradients, and the number of samples per
  // rank (by rank; the sum is the batch). Every rank passes the same.
  void reduce_by(Algorithm algorithm);
  void split_batch(std::vector<std::int64_t> samples);

  // Adapts the all-reduce algorithm while the trainer runs.
  void adapt(const SyncOptions& options);

  // Observes gradients before they are reduced and before the update. Several ranks only.
  void probe(Executor::Probe probe);

  // Records the actions of every step (sync_trace.h).
  void trace(bool on);
  const Executor& executor() const {
    require_laid_out();
    return *executor_;
  }

  // Makes this rank compute slower by this factor (chaos.slow).
  void slow_down(double factor);

  // Sets the initial values. By default, each parameter uses its own Init with the seed. Call it
  // before use_servers().
  void load(const ValueSource& source);

  // Adds an observer of all events from now on (events.h). Earlier observers stay.
  void on_event(std::function<void(const Event&)> observer) {
    observers_.push_back(std::move(observer));
  }
  // Observes only the steps. With parameter servers, only the first worker sees them.
  void on_step(std::function<void(const StepReport&)> observer) {
    on_event([observer = std::move(observer)](const Event& event) {
      if (const auto* step = std::get_if<StepReport>(&event)) observer(*step);
    });
  }
  // Puts an event on the stream, for programs around the trainer that have something to report.
  void tell(const Event& event) const;

  // Runs the remaining steps. Returns early, after a whole step, once `stop` is set. Throws
  // NotFinite naming the step if the loss or a gradient is not finite; the parameters are then
  // those before that step. In fp16, steps whose gradients are not finite are skipped, and run()
  // throws once the loss scale would fall below 1. It neither validates nor saves: callers do that
  // between calls of run_until(). validate_every and save_every are for the job behind `echelon
  // train`.
  void run(const std::atomic<bool>* stop = nullptr);

  // Runs up to and including step `until`; run() is run_until(options.steps).
  void run_until(std::int64_t until, const std::atomic<bool>* stop = nullptr);

  // Mean loss over `samples` samples of a dataset (evaluation_order says which). If no rank has all
  // parameters, every rank calls it.
  double evaluate(const Dataset& data, std::int64_t samples);
  // The same, faster: every rank calls it, and ranks that split a batch split the samples. The
  // result is the same on all ranks. A worker of parameter servers evaluates all samples itself.
  double evaluate_together(const Dataset& data, std::int64_t samples);
  // The same with the scores of all metrics.
  Evaluation measure(const Dataset& data, std::int64_t samples);
  // Adds a metric to every evaluation from now on. Every rank adds the same.
  void add_metric(std::shared_ptr<const Metric> metric) { metrics_.push_back(std::move(metric)); }
  // The names of the scores of an evaluation: "loss", and those of the metrics.
  std::vector<std::string> score_names() const;
  // In which direction one of them gets better (Metric::more_is_better); less of the loss.
  Better better(std::string_view score) const;
  // Whether no rank has all parameters: parallel.zero=3, parallel.pipeline or parallel.tensor.
  bool is_sharded() const { return layout_.splits_model() || placement_.values.sliced; }
  // Whether save() and master() are collective.
  bool saves_together() const { return layout_.splits_model() || placement_.is_sharded(); }

  // The model's output for a batch, without the loss; its target is not used. If no rank has all
  // parameters, every rank calls it and gets the output. Ranks of the same pipeline and tensor
  // group must pass the same input; ranks that split the batch may pass different inputs.
  at::Tensor infer(const Batch& batch);
  at::Tensor infer(const at::Tensor& input) { return infer(Batch{input, {}}); }

  // Gives every layer its whole parameters and buffers on every rank. Afterwards a user's modules
  // can be called and saved, and Stack::infer needs no other rank. Every rank calls it and needs
  // memory for the whole model. If the model is sharded, these are copies: the next run, load or
  // restore drops them and continues with the shards, and changes that a user made to them are
  // lost. Call gather() again afterwards. All other calls keep the copies.
  void gather();

  // Saves all parameters (in the precision of the masters) and buffers, unsharded and by name, as
  // one safetensors file. The file is written completely or not at all. Every rank calls it and
  // rank 0 writes; if rank 0 cannot, every rank throws. No rank ever holds more than one whole
  // tensor besides its own shards. With parameter servers, the first worker writes the masters of
  // one version, and the others need not call it. That version is the one after step() updates, or
  // the newest if server.mode lets the other workers continue meanwhile.
  void save_weights(const std::filesystem::path& path);

  // Saves everything that a run needs to continue bit for bit, as one safetensors file that is
  // written completely or not at all. If the state is sharded, every rank calls it and the first
  // rank writes; no rank ever holds the whole state. A state can be restored on any number of
  // ranks, with any mesh and any ZeRO stage.
  void save(const std::filesystem::path& path);
  void restore(const std::filesystem::path& path);
  // Adds to the metadata of states that are saved from now on.
  void note(const std::string& key, std::string value) { notes_[key] = std::move(value); }

  std::int64_t step() const { return step_; }  // steps done so far
  // A parameter in full precision. If the state is sharded, every rank calls it. With parameter
  // servers, only the first worker may, and gets the version that save_weights() would write.
  at::Tensor master(const Parameter& parameter);
  bool uses_graph() const { return graph_wanted_; }
  const std::vector<Bucket>& buckets() const { return executor().shape().buckets; }
  const MeshLayout& layout() const { return layout_; }
  // When gradients are reduce-scattered, and why; empty if there is no choice.
  const std::string& scatter_choice() const { return scatter_choice_; }
  const MemoryAccount& memory() const { return *memory_; }
  const Tier* tier() const { return tier_.get(); }  // where state is stored; null: with the model

 private:
  struct InFlight;
  class OnThread;
  class AtWork;
  struct StateItem;
  std::vector<StateItem> state_items() const;
  std::vector<LayerCost> costs_of_layers(int data_ranks);
  void forget_layout();
  void give_memory();
  void require_laid_out() const;
  void build_layout(std::shared_ptr<Communicator> ranks);
  StepShape step_shape() const;
  Scatter when_to_scatter(const ZeroOptions& zero);
  // A parameter's tensor that this rank may have, on all ranks: collective if ranks have parts.
  at::Tensor everywhere(const at::Tensor& mine, const Parameter& parameter) const;
  at::Tensor from_layer(int layer, const at::Tensor& tensor) const;
  at::Tensor whole_value(const Parameter& parameter) const;  // in the model's type; likewise
  at::Tensor find_master(const Parameter& parameter);
  void refresh_values();  // pulls the newest values, or waits for published ones
  void write_together(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) const;
  void require_written(const std::exception_ptr& failure) const;
  at::Tensor compute_output(const Batch& batch, const Observe& observe = {});
  void require_in_step() const;
  // The whole state of one kind, on all ranks: collective likewise.
  at::Tensor whole_state(const std::string& kind, const Parameter& parameter) const;
  const StateIndex& state_index() const;  // of owner()
  void drop_update() {                    // the servers have the state
    state_index_.reset();
    update_.reset();
  }
  std::unique_ptr<Tier> make_tier(const ZeroOptions& zero, const Owners& owners) const;
  Update& owner() const {
    if (!zero_ && !update_)
      throw InvalidArgument(
          "the parameter servers have the parameters and the optimiser's state, not this trainer: "
          "load and restore before use_servers(), save before leave_servers()");
    return zero_ ? static_cast<Update&>(*zero_) : *update_;
  }
  void issue(std::int64_t step, bool stop);
  Work vote(bool stop);
  std::int64_t first_sample() const;  // of this rank's part of a batch
  void compute();
  void collect(std::size_t leave);
  bool stopped(const std::atomic<bool>* stop);
  bool no_update_yet() const { return step_ == began_at_ + skipped_; }
  std::string likely_cause(std::int64_t step) const;
  [[noreturn]] void halt(std::int64_t step, double loss, double norm);
  void begin_alike();
  void check_same_parameters() const;
  bool sum_alike(int pipeline_stage, int other) const;
  void look_at_speeds();
  // The batch of places [begin, end) of a step's global batch, and the targets of all of it.
  BatchReader::Prepared take_batch(std::int64_t step, std::int64_t begin, std::int64_t end);
  BatchReader::Prepared read_batch(const BatchReader::Request& request) const;
  std::int64_t tokens_of_samples() const;
  std::unique_lock<std::mutex> reading(const Dataset& data) const;
  StepTimes times_with_data(const StepTimes& times) const;
  void make_reader();
  Evaluation measure(const Dataset& data, std::int64_t samples, bool together);
  void run_with_servers(std::int64_t until, const std::atomic<bool>* stop);
  void compute_share(const Task& task);
  void fetch_state();
  bool servers_have_masters() const { return servers_ && begun_ && !ranks_; }
  at::Tensor served_master(const Task& pinned, const Parameter& parameter);
  void tell_of(const std::vector<ParameterServer::Applied>& all);

  Stack& stack_;
  const Dataset& data_;
  const TrainerOptions options_;
  TrainOptions train_;
  OptimOptions optim_;
  std::shared_ptr<Communicator> all_;  // nullptr: one process
  at::Device device_;
  MeshLayout layout_;
  Placement placement_;
  std::shared_ptr<Communicator> ranks_;  // the ranks that split the batch; nullptr: no other rank
  std::shared_ptr<BatchRanks> batch_ranks_;  // the same, for layers
  bool is_laid_out_ = false;                 // the model is laid out, or was at least once
  std::string scatter_choice_;
  Sampler sampler_;
  std::unique_ptr<MemoryAccount> memory_;
  std::unique_ptr<MasterUpdate> update_;             // null if the optimiser state is sharded
  mutable std::unique_ptr<StateIndex> state_index_;  // null: not requested since update_ changed
  std::shared_ptr<Exchange> exchange_ = plain_exchange();
  std::unique_ptr<Tier> tier_;  // null if nothing is offloaded
  std::unique_ptr<ZeroShards> shards_;
  std::unique_ptr<ZeroUpdate> zero_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> aside_;  // the ranks' executor, while servers are used
  std::vector<std::function<void(const Event&)>> observers_;
  Metrics metrics_;
  double slowness_ = 1;
  Executor::Probe probe_;
  bool tracing_ = false;
  std::int64_t step_ = 0;
  std::int64_t began_at_ = 0;  // the step at which the restored state was saved
  std::int64_t skipped_ = 0;   // steps since then that changed nothing
  std::optional<StepReport> first_done_, last_done_;  // since then
  std::map<std::string, std::string> notes_;          // go into the metadata of a state
  Batch batch_;                                       // of the current step, on the device
  at::Tensor divisor_;  // targets of all its ranks, likewise; undefined: samples have equally many
  at::Tensor report_;   // the numbers of a step (see Reported in in_flight.h)
  std::deque<std::pair<std::int64_t, double>>
      scales_;                             // fp16: steps and loss scales, as it changed
  std::int64_t stop_at_ = 0, lag_ = 0;     // the step to stop after; its distance from the vote
  bool mixed_ = false;                     // some ranks are on GPUs and some on CPUs
  bool replicas_in_sync_ = false;          // all ranks started with the same parameters
  std::uint64_t digest_ = 0;               // of the restored state
  std::vector<std::int64_t> batch_split_;  // samples per rank
  std::int64_t batch_parts_ = 1;  // ranks, or workers of parameter servers, that split a batch
  bool by_speed_ = false;
  std::int64_t split_every_ = 0;
  double busy_seconds_ = 0;  // compute time since the speeds were last compared
  std::int64_t busy_samples_ = 0;
  std::unique_ptr<SyncController> controller_;
  std::unique_ptr<ServerWorker> servers_;
  std::int64_t targets_a_step_ = 0;
  std::chrono::steady_clock::time_point last_applied_ = std::chrono::steady_clock::now();
  ServerPart part_ = ServerPart::first;
  StepTimes share_times_;                                         // of the last share computed here
  std::deque<std::pair<ParameterServer::Applied, double>> told_;  // updates not yet reported
  bool begun_ = false, stop_told_ = false;
  std::string out_of_step_;  // how this rank failed while other ranks of its pipeline waited for it
  std::string failure_;
  std::vector<std::string> lost_workers_;
  bool graph_wanted_ = false;
  std::unique_ptr<InFlight> in_flight_;
  mutable std::mutex data_mutex_;        // held while a dataset is read, unless it is concurrent()
  std::unique_ptr<BatchReader> reader_;  // last: its threads use the members above
};

// The step at which a state was saved.
std::int64_t saved_step(const std::filesystem::path& state);
std::int64_t saved_step(const safetensors::Reader& state);
// A note in the state (Trainer::note); empty: none.
std::string saved_note(const std::filesystem::path& state, const std::string& key);

}  // namespace echelon
