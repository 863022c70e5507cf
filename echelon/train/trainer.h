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
//   trainer.gather();                          // `net` itself holds the trained parameters now
//
// On a GPU no step waits for the host: numbers are reported a few steps late. Same options, same
// data, same bits (on the CPU; with one number of threads).
//
// Several ranks: Trainer(stack, data, options, Communicator::world()). Their sums are rounded in
// another order than one process's, so the parameters agree to rounding, not to the bit. Where
// they share the model out (is_sharded()), a user's modules are empty until gather(): to call or to
// save them throws InvalidArgument.
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
#include <optional>
#include <string>

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
#include "echelon/train/events.h"

namespace echelon {

// The loss or a gradient stopped being finite; in fp16, whatever the loss scale.
class NotFinite : public Error {
 public:
  using Error::Error;
  bool before_any_update = false;  // of this trainer: optim.rate has had no effect
};

// A worker of parameter servers: the first brings the parameters, sees every step and can save; a
// rank of the job computes, and is asked to stop with it; a guest comes and goes.
enum class ServerPart { first, rank, guest };

class Trainer {
 public:
  // Gives the stack its memory. InvalidArgument where the options do not fit the machine, the stack
  // or the data. All that is referred to must outlive the trainer.
  // Several ranks make a mesh (parallel.pipeline, data, tensor), and every rank makes the same
  // trainer, with the whole dataset, and the same calls. Along data, each trains on its part of the
  // global batch and all keep the same parameters, to the bit. They begin with the first one's, and
  // have its buffers (running statistics) whenever run() returns. Should they differ all the same
  // (a bad memory, a layer that draws its own random numbers), run() throws Error that names the
  // ranks, at the next step that train.check_every divides. Along pipeline, each has some of the
  // layers; along tensor, its part of the matrices that `split` names.
  Trainer(Stack& stack, const Dataset& data, const TrainerOptions& options = {},
          std::shared_ptr<Communicator> ranks = nullptr);
  ~Trainer();

  // Lays the model out over other ranks: builds all that depends on them, the mesh, the memory, the
  // slices and the table of a step, as the constructor does for its own. A trainer whose job has
  // lost ranks, or been given some, goes on with
  //
  //   trainer.save(state);                   // on all ranks that there were
  //   trainer.lay_out(ranks->split(…));      // on those that there are
  //   trainer.restore(state);
  //
  // It begins as a new trainer does: step() is 0, and parameters have their first values. Options,
  // data, observers, notes, the probe and the account of memory stay; split_batch(), reduce_by()
  // and adapt() were chosen for the ranks before, and are forgotten. Every rank of `ranks` calls it
  // (null: one process), and those before need not be there any more. InvalidArgument where servers
  // are used, or the options are not for so many ranks: all is then as before. After any other
  // error the trainer can only be laid out again.
  void lay_out(std::shared_ptr<Communicator> ranks);

  // Hands gradients to parameter servers, which own parameters and optimiser state, in place of
  // updating here: before run(). A step's batch is cut into shares, which workers take as they
  // come.
  // A trainer of several ranks does so for a time: all use the servers, run to the same step and
  // leave, which brings parameters and state back, and then reduce among themselves again.
  void use_servers(ServerWorker::Setup setup, const NetOptions& net, const Token& token,
                   ServerPart part, Ledger& ledger);
  void leave_servers();  // says goodbye to them
  void drop_servers();   // likewise, and brings nothing back: what they have is lost
  void stop_servers();   // no step is begun any more; run_until() returns after those that are
  // By server, what its process took of memory so far; for the first worker.
  std::vector<std::string> memory_of_servers() { return servers_->memory_reports(); }
  // Shares that a batch is cut into: ranks, or workers of parameter servers.
  int batch_parts() const { return static_cast<int>(batch_parts_); }
  // Why ranks that use servers for a time had to stop: a gradient that was not finite. Nothing of
  // its step was applied. Empty where all is well.
  const std::string& failure() const { return failure_; }
  // Workers that died or that the servers dropped, and why, as the servers told the first of them.
  const std::vector<std::string>& lost_workers() const { return lost_workers_; }

  // How gradients are reduced from the next step on, and how many samples each rank takes of a
  // batch (by rank; together all): every rank says the same.
  void reduce_by(Algorithm algorithm);
  void split_batch(std::vector<std::int64_t> samples);

  // Chooses how gradients are reduced again while it runs.
  void adapt(const SyncOptions& options);

  // Sees gradients on their way; several ranks only.
  void probe(Executor::Probe probe);

  // Keeps what happens in every step (sync_trace.h).
  void trace(bool on);
  const Executor& executor() const { return *executor_; }

  // This rank computes so many times slower than it could (chaos.slow).
  void slow_down(double factor);

  // First values: by default each parameter's own Init with the seed. Before use_servers().
  void load(const ValueSource& source);

  // Gets everything that happens from now on (events.h), as those that came before it do.
  void on_event(std::function<void(const Event&)> observer) {
    observers_.push_back(std::move(observer));
  }
  // The steps among it. Of the workers of parameter servers, only the first sees them.
  void on_step(std::function<void(const StepReport&)> observer) {
    on_event([observer = std::move(observer)](const Event& event) {
      if (const auto* step = std::get_if<StepReport>(&event)) observer(*step);
    });
  }
  // Puts an event on the stream: what runs the trainer may have something to say too.
  void tell(const Event& event) const;

  // Runs the steps that are left. Returns early, after a whole step, once `stop` is set. Throws
  // NotFinite, naming the step, when the loss or a gradient stops being finite; the parameters are
  // then those before that step. In fp16 steps whose gradients are not finite are skipped, and it
  // throws once the loss scale would fall below 1. Validating and saving on the way are the
  // caller's, with run_until: validate_every and save_every are for the job behind `echelon train`.
  void run(const std::atomic<bool>* stop = nullptr);

  // Runs up to and including step `until`; run() is run_until(options.steps).
  void run_until(std::int64_t until, const std::atomic<bool>* stop = nullptr);

  // Mean loss over the first `samples` of a dataset. Where no rank has all parameters every rank
  // calls it.
  double evaluate(const Dataset& data, std::int64_t samples);
  // The same, sooner: every rank calls it, and those that split a batch split the samples. The
  // result is the same on all. A worker of parameter servers has all of them to itself.
  double evaluate_together(const Dataset& data, std::int64_t samples);
  // Whether no rank has all parameters: parallel.zero=3, parallel.pipeline or parallel.tensor.
  bool is_sharded() const { return layout_.splits_model() || placement_.values.sliced; }
  // Whether every rank calls save() and master().
  bool saves_together() const { return layout_.splits_model() || placement_.is_sharded(); }

  // The model's output for an input, without the loss. Where no rank has all parameters every rank
  // calls it and gets the output: those of one pipeline and tensor group give the same input, those
  // that split the batch may give inputs of their own.
  at::Tensor infer(const at::Tensor& input);

  // Gives every layer its whole parameters and buffers, on every rank: afterwards a user's modules
  // can be called and saved, and Stack::infer asks nothing of other ranks. Every rank calls it and
  // needs memory for the whole model. They are copies where the ranks share the model out: the next
  // run, load or restore drops them and goes on with the parts (call it again afterwards), what a
  // user changes in them is lost; all else leaves them.
  void gather();

  // All parameters (in the masters' precision) and buffers by name, whole, as one safetensors file,
  // written whole or not at all. Every rank calls it and rank 0 writes; where it cannot, every rank
  // throws. No rank ever holds more than one of them beside its own. With parameter servers the
  // first worker writes, the others need not call it: the masters of one version. That is the one
  // after step() updates, unless server.mode lets the others go on meanwhile: then the newest.
  void save_weights(const std::filesystem::path& path);

  // Everything that a run needs to go on bit for bit (one safetensors file, written whole or not at
  // all). Where the ranks share the state out, every rank calls it and the first writes; no rank
  // ever holds the whole of it. A state fits any number of ranks, any mesh and any stage.
  void save(const std::filesystem::path& path);
  void restore(const std::filesystem::path& path);
  // Goes into the metadata of states that are saved from now on.
  void note(const std::string& key, std::string value) { notes_[key] = std::move(value); }

  std::int64_t step() const { return step_; }  // done so far
  // In full precision; where it is shared out every rank calls it. From parameter servers the first
  // worker gets it, of the version that save_weights() would write.
  at::Tensor master(const Parameter& parameter);
  bool uses_graph() const { return graph_wanted_; }
  const std::vector<Bucket>& buckets() const { return executor_->shape().buckets; }
  const MeshLayout& layout() const { return layout_; }
  // When gradients go to their owners, and why so; empty where there is no choice.
  const std::string& scatter_choice() const { return scatter_choice_; }
  const MemoryAccount& memory() const { return *memory_; }
  const Tier* tier() const { return tier_.get(); }  // where state is kept; null: with the model

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
  StepShape step_shape() const;
  Scatter when_to_scatter(const ZeroOptions& zero);
  // A tensor of a parameter that this rank may have, on all: collective where ranks have parts.
  at::Tensor everywhere(const at::Tensor& mine, const Parameter& parameter) const;
  at::Tensor from_layer(int layer, const at::Tensor& tensor) const;
  at::Tensor whole_value(const Parameter& parameter) const;  // in the model's type, likewise
  at::Tensor find_master(const Parameter& parameter);
  void refresh_values();  // those that are on their way here
  void write_together(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) const;
  void require_written(const std::exception_ptr& failure) const;
  at::Tensor compute_output(const at::Tensor& input, const at::Tensor& target);
  void require_in_step() const;
  // Of one kind, whole, on all ranks: collective likewise.
  at::Tensor whole_state(const std::string& kind, const Parameter& parameter) const;
  const StateIndex& state_index() const;  // of owner()
  void drop_update() {                    // the servers have it
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
  std::int64_t first_sample() const;  // of this rank's share of a batch
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
  Batch batch_of(std::int64_t step, std::int64_t first, std::int64_t end) const;
  double mean_loss(const Dataset& data, std::int64_t samples, bool together);
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
  std::shared_ptr<Communicator> ranks_;  // that split the batch; nullptr: this one has all of it
  bool is_laid_out_ = false;             // or was, at least once
  std::string scatter_choice_;
  Sampler sampler_;
  std::unique_ptr<MemoryAccount> memory_;
  std::unique_ptr<MasterUpdate> update_;             // null where the ranks share it out
  mutable std::unique_ptr<StateIndex> state_index_;  // null: not asked for since update_ changed
  std::shared_ptr<Exchange> exchange_ = plain_exchange();
  std::unique_ptr<Tier> tier_;  // null where nothing is kept elsewhere
  std::unique_ptr<ZeroShards> shards_;
  std::unique_ptr<ZeroUpdate> zero_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> aside_;  // that for ranks, while servers are used
  std::vector<std::function<void(const Event&)>> observers_;
  double slowness_ = 1;
  Executor::Probe probe_;
  bool tracing_ = false;
  std::int64_t step_ = 0;
  std::int64_t began_at_ = 0;                         // the step of the state that was restored
  std::int64_t skipped_ = 0;                          // steps since then that changed nothing
  std::optional<StepReport> first_done_, last_done_;  // since then
  std::map<std::string, std::string> notes_;          // in the metadata of a state
  at::Tensor input_, target_;                         // of the step being computed, on the device
  at::Tensor report_;  // the numbers of a step (see Reported in trainer.cpp)
  std::deque<std::pair<std::int64_t, double>>
      scales_;                             // fp16: steps and loss scales, as it changed
  std::int64_t stop_at_ = 0, lag_ = 0;     // the step to stop after; how much later than the vote
  bool mixed_ = false;                     // some ranks are on GPUs and some on CPUs
  bool replicas_in_sync_ = false;          // all ranks began with the same parameters
  std::uint64_t digest_ = 0;               // of the state that was restored
  std::vector<std::int64_t> batch_split_;  // samples of each rank
  std::int64_t batch_parts_ = 1;  // ranks, or workers of parameter servers, that share a batch
  bool by_speed_ = false;
  std::int64_t split_every_ = 0;
  double busy_seconds_ = 0;  // of computing, since the speeds were last looked at
  std::int64_t busy_samples_ = 0;
  std::unique_ptr<SyncController> controller_;
  std::unique_ptr<ServerWorker> servers_;
  std::int64_t targets_a_step_ = 0;
  std::chrono::steady_clock::time_point last_applied_ = std::chrono::steady_clock::now();
  ServerPart part_ = ServerPart::first;
  StepTimes share_times_;  // of the last share that was computed here
  std::deque<std::pair<ParameterServer::Applied, double>> told_;  // updates not yet reported
  bool begun_ = false, stop_told_ = false;
  std::string out_of_step_;  // how this rank failed while others of its pipeline waited for it
  std::string failure_;
  std::vector<std::string> lost_workers_;
  bool graph_wanted_ = false;
  std::unique_ptr<InFlight> in_flight_;
};

// The step after which a state was saved.
std::int64_t saved_step(const std::filesystem::path& state);
std::int64_t saved_step(const safetensors::Reader& state);
// What was noted in it (Trainer::note); empty: nothing.
std::string saved_note(const std::filesystem::path& state, const std::string& key);

}  // namespace echelon
