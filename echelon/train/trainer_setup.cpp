// How a trainer is set up: the mesh, the model's memory, and the table of a step.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/options_section.h"
#include "echelon/net/host.h"
#include "echelon/nn/batch_ranks.h"
#include "echelon/optim/optimizer.h"
#include "echelon/optim/schedule.h"
#include "echelon/parallel/data/batch_split.h"
#include "echelon/parallel/data/bucket.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/plan/compute_type.h"
#include "echelon/plan/layer_costs.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/plan/rules.h"
#include "echelon/plan/train_device.h"
#include "echelon/plan/tuning.h"
#include "echelon/train/in_flight.h"
#include "echelon/train/same_dataset.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

constexpr double mebibyte = 1024 * 1024;

}  // namespace

Trainer::Trainer(Stack& stack, const Dataset& data, const TrainerOptions& options,
                 std::shared_ptr<Communicator> ranks)
    : stack_(stack),
      data_(data),
      options_(options),
      train_(options.train),
      optim_(options.optim),
      device_(device_of(options.train)),
      sampler_(static_cast<std::uint64_t>(options.train.seed), data, options.train.batch,
               options.train.sort_batches),
      memory_(std::make_unique<MemoryAccount>()),
      in_flight_(std::make_unique<InFlight>()) {
  // Otherwise its layers would silently restart from their initial values, and another trainer's
  // parameters would be lost.
  if (!stack.groups().empty())
    throw InvalidArgument(
        "this Stack has its memory already, from another Trainer or Stack::allocate: make a new "
        "Stack; layers that are made of modules then begin with what the modules hold (where ranks "
        "share the model out, call gather() first)");
  const auto& [train, optim, parallel, zero, pipeline, split] = options_;
  check_section("train", train);
  check_section("optim", optim);
  check_section("parallel", parallel);
  check_section("zero", zero);
  check_section("pipeline", pipeline);
  optim_.rate = peak_rate(optim_, train.batch);
  if (data.size() < 1)
    throw InvalidArgument("there is no sample to train on: the dataset is empty");
  if (device_.is_cuda()) in_flight_->stream.emplace();
  tune(stack_, train_, optim_);
  lay_out(std::move(ranks));
}

void Trainer::lay_out(std::shared_ptr<Communicator> ranks) {
  const auto& [train, optim, parallel, zero, pipeline, split] = options_;
  if (servers_)
    throw InvalidArgument(
        "this trainer uses parameter servers, which know it by its place among their workers: call "
        "leave_servers() before lay_out()");
  if (ranks && ranks->size() == 1 && !parallel.exchange_alone && zero.offload == Offload::none)
    ranks = nullptr;
  require_can_run(options_, ranks ? ranks->size() : 1);
  mesh_of(parallel, ranks ? ranks->size() : 1);
  if (train.graph == Switch::on && !stack_.capturable()) {
    throw InvalidArgument(
        "train.graph=on, but a layer of the model runs through autograd, which is not recorded; use auto or off");
  }
  if (train.graph == Switch::on && ranks && !ranks->recordable())
    throw InvalidArgument(no_graph_over(ranks->backend()));
  if (!ranks && (zero.offload != Offload::none || zero.shard != ShardOver::all))
    throw InvalidArgument(
        "zero.offload and zero.shard are for state that is sharded over ranks: give the trainer a "
        "communicator");
  check_threads(train);
  if (train.threads > 0) at::set_num_threads(static_cast<int>(train.threads));
  const OnThread on_thread(*this);
  PartsInUse parts(stack_);
  parts.forget_whole();
  forget_layout();
  try {
    build_layout(std::move(ranks));
  } catch (...) {
    executor_.reset();  // so that calls say that the model is not laid out
    batch_ranks_.reset();
    throw;
  }
}

// Everything that depends on the ranks.
void Trainer::build_layout(std::shared_ptr<Communicator> ranks) {
  const auto& [train, optim, parallel, zero, pipeline, split] = options_;
  all_ = std::move(ranks);
  exchange_->set_ledger(all_ ? &all_->ledger() : nullptr);
  if (all_) require_same_dataset(data_, *all_, train.allow_other_data);
  layout_ =
      lay_over(stack_, all_, parallel, pipeline, split, static_cast<int>(train.micro_batches),
               tokens_of_samples(), [this](int data_ranks) { return costs_of_layers(data_ranks); });
  ranks_ = layout_.mesh.over(batch_dimensions);
  if (ranks_) batch_ranks_ = std::make_shared<BatchRanks>(ranks_);
  stack_.share_batch(batch_ranks_);
  // Offloaded state is owned by ranks, even if there is only one.
  if (all_ && !ranks_ && zero.offload != Offload::none) ranks_ = all_->split(all_->rank(), 0);
  batch_parts_ = layout_.mesh.shape.data;
  batch_split_ = even_split(train.batch, layout_.mesh.shape.data);
  by_speed_ = ranks_ && parallel.shares == BatchSplit::speed;
  split_every_ = parallel.shares_every;
  const bool recordable = !all_ || (all_->recordable() && layout_.pipeline.ranks == 1);
  if (train.graph == Switch::on && !recordable)
    throw InvalidArgument(no_graph_over(all_->backend()));
  graph_wanted_ =
      device_.is_cuda() && train.graph != Switch::off && stack_.capturable() && recordable;
  if (!ranks_ && (zero.offload != Offload::none || zero.shard != ShardOver::all))
    throw InvalidArgument(
        "zero.offload and zero.shard are for state that is sharded over data ranks, and this mesh "
        "has one: give the trainer more ranks");
  give_memory();
  executor_->slow_down(slowness_);
  executor_->probe(probe_);
  executor_->trace(tracing_);
  load(random_values(static_cast<std::uint64_t>(train.seed)));
  report_ = at::zeros({reported}, at::TensorOptions(device_).dtype(at::kDouble));
  make_reader();
}

// Drops everything that depends on the ranks, before it is rebuilt for others.
void Trainer::forget_layout() {
  if (!std::exchange(is_laid_out_, true)) return;
  try {
    if (shards_) shards_->wait_for_values();
  } catch (const Error&) {  // of ranks that are gone: no one will read them
  }
  reader_.reset();
  executor_.reset();
  aside_.reset();
  controller_.reset();
  state_index_.reset();
  zero_.reset();
  update_.reset();
  shards_.reset();
  tier_.reset();
  stack_.forget_layout();
  layout_ = {};
  placement_ = {};
  batch_ranks_.reset();
  ranks_.reset();
  all_.reset();
  scatter_choice_.clear();
  in_flight_->pending.clear();
  in_flight_->free.clear();
  in_flight_->graph.reset();
  in_flight_->recorded.clear();
  in_flight_->eager_steps_done = 0;
  batch_ = {};
  divisor_.reset();
  report_.reset();
  step_ = stop_at_ = lag_ = 0;
  mixed_ = replicas_in_sync_ = begun_ = stop_told_ = false;
  digest_ = 0;
  began_at_ = skipped_ = 0;
  first_done_.reset();
  last_done_.reset();
  busy_seconds_ = 0;
  busy_samples_ = 0;
  scales_.clear();
  told_.clear();
  out_of_step_.clear();
  failure_.clear();
  lost_workers_.clear();
}

void Trainer::require_laid_out() const {
  if (!executor_)
    throw Error("the model is not laid out over any ranks, since lay_out() failed: call it again");
}

std::vector<LayerCost> Trainer::costs_of_layers(int data_ranks) {
  const auto samples = std::max<std::int64_t>(1, train_.batch / data_ranks / train_.micro_batches);
  std::vector<std::int64_t> indices(std::size_t(std::min(samples, data_.size())));
  std::iota(indices.begin(), indices.end(), 0);
  const Batch batch = [&] {
    const auto lock = reading(data_);
    return batch_of(data_, indices, train_.pad_to);
  }();
  const auto type = compute_type(train_), wide = master_type(type);
  const auto states = std::int64_t(make_optimizer(optim_)->state_names().size());
  const auto state_bytes = std::int64_t(2 * at::elementSize(type)) +
                           (states + (wide != type)) * std::int64_t(at::elementSize(wide));
  // Only this rank measures, so layers that depend on the other ranks' samples cannot ask for them.
  const auto stand_in = std::make_shared<BatchRanks>(data_ranks);
  stack_.share_batch(stand_in);
  return measure_layers(stack_, batch.to(device_, type), device_, type, state_bytes);
}

StepShape Trainer::step_shape() const {
  return echelon::step_shape(stack_, static_cast<int>(train_.micro_batches), layout_.own);
}

// Owners of slices of the same parameters communicate in one order, so they must choose alike.
Scatter Trainer::when_to_scatter(const ZeroOptions& zero) {
  const bool adds_up = placement_.gradients.sliced && train_.micro_batches > 1;
  if (!adds_up) return Scatter::micro_batch;
  if (zero.scatter == ScatterOption::step) return Scatter::step;
  if (zero.scatter == ScatterOption::micro_batch || layout_.pipeline.ranks == 1)
    return Scatter::micro_batch;
  if (sums_in_fp32(train_)) {
    scatter_choice_ =
        "as soon as no micro-batch is half-way, since train.reduce=fp32 keeps 4 more bytes a "
        "parameter until then";
    return Scatter::micro_batch;
  }
  const auto& hosts = layout_.mesh.hosts;
  const auto local = std::count(hosts.begin(), hosts.end(), all_->host());
  const ScatterRoom room = scatter_room(stack_, train_, optim_, zero, placement_, int(local));
  const at::Tensor fits = at::zeros({1}, at::TensorOptions(device_).dtype(at::kLong));
  fits.fill_(room.once_a_step() ? 1 : 0);
  ranks_->all_reduce(fits, ReduceOp::min, {.tag = "setup", .blocking = true}).wait();
  const bool once = fits.item<std::int64_t>() == 1;
  scatter_choice_ = fmt::format(
      "{}: {} of gradients for {} {} kept meanwhile, of {} that a rank may take beside the "
      "model's state",
      once ? "once a step" : "after each micro-batch", human_bytes(room.gradients),
      layout_.own.empty() ? "all layers" : "this rank's layers", once ? "are" : "would be",
      human_bytes(room.left));
  return once ? Scatter::step : Scatter::micro_batch;
}

void Trainer::give_memory() {
  const auto& parallel = options_.parallel;
  const auto& zero = options_.zero;
  const auto& pipeline = options_.pipeline;
  Stack& stack = stack_;
  SumRanks sums = layout_.sum_ranks(stack);
  if (sums.batch() != ranks_) sums = ranks_;  // a single owner
  const bool fp32_sums = sums_in_fp32(train_);
  Stack::Allocation allocation;
  Owners owners;
  if (ranks_ && parallel.zero > 0) {
    owners = owners_of(sums, zero.shard == ShardOver::host);
    placement_ = placement_of(parallel.zero, zero, owners.shards.batch()->size(),
                              owners.replicas != nullptr, fp32_sums);
    allocation = ZeroShards::allocation(placement_, owners.shards, device_,
                                        smallest_group(zero, compute_type(train_)));
  } else if (ranks_ && device_.is_cpu())
    allocation.gradients = [this](std::int64_t numel, at::ScalarType type) {
      return ranks_->allocate({numel}, type).zero_();
    };
  stack.allocate(device_, compute_type(train_), fp32_sums ? Gradients::fp32_sums : Gradients::yes,
                 allocation);
  std::optional<LossScale::Setup> scaling;
  if (stack.type() == at::kHalf) scaling = {train_.loss_scale, train_.scale_growth};
  StepShape shape = step_shape();
  Table table = one_process(shape);
  if (layout_.pipeline.ranks > 1)
    table = pipeline_table(make_schedule(pipeline.schedule, layout_.pipeline), layout_.pipeline,
                           layout_.mesh.place.pipeline, layout_.stages, shape);
  if (placement_.is_sharded()) {
    if (placement_.offloads()) graph_wanted_ = false;  // the host takes part in every step
    tier_ = make_tier(zero, owners);
    shards_ = std::make_unique<ZeroShards>(stack, owners, placement_, tier_.get(), exchange_);
    zero_ = std::make_unique<ZeroUpdate>(stack, *shards_, optim_, tier_.get(),
                                         static_cast<std::int64_t>(zero.piece * mebibyte / 4),
                                         scaling, layout_.part_sums(stack));
    const auto bytes = describe_groups(shape, stack, placement_, stack.type());
    table = with_shards(table, shape, bytes, static_cast<std::int64_t>(zero.prefetch * mebibyte),
                        when_to_scatter(zero));
  } else {
    update_ = std::make_unique<MasterUpdate>(stack, optim_, scaling, layout_.part_sums(stack));
    if (ranks_) {
      const auto element = static_cast<std::int64_t>(stack.sums().element_size());
      shape.buckets =
          cut_buckets(stack.units(), bucket_sizes(ranks_->link(), element, parallel.bucket_mib));
    }
    if (all_) table = with_reductions(table, shape);
  }
  executor_ = std::make_unique<Executor>(stack, &owner(), table, shape,
                                         Executor::Links{.ranks = sums,
                                                         .shards = shards_.get(),
                                                         .neighbours = layout_.neighbours(),
                                                         .exchange = exchange_});
  executor_->seed(static_cast<std::uint64_t>(train_.seed));
}

Trainer::~Trainer() = default;

std::unique_ptr<Tier> Trainer::make_tier(const ZeroOptions& zero, const Owners& owners) const {
  if (!placement_.offloads()) return nullptr;
  auto arrays =
      ZeroUpdate::arrays(optim_, stack_.type(), sums_in_fp32(train_) ? at::kFloat : stack_.type(),
                         placement_, device_);
  std::vector<std::int64_t> numels;
  const auto ranks = owners.shards.batch();
  for (const auto& group : stack_.groups()) numels.push_back(group.numel / ranks->size());
  const ByteMemory memory = [ranks, gpu = device_.is_cuda()](std::int64_t bytes, bool travels) {
    if (travels && !gpu) return ranks->allocate({bytes}, at::kByte).zero_();
    return at::zeros({bytes}, at::TensorOptions(at::kByte).pinned_memory(travels));
  };
  if (placement_.state.store == Placement::Store::host)
    return host_tier(std::move(arrays), std::move(numels), memory);
  return disk_tier(zero.offload_path, all_->rank(), all_->size(), std::move(arrays),
                   std::move(numels), memory);
}

}  // namespace echelon
