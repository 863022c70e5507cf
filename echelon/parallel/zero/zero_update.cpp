#include "echelon/parallel/zero/zero_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>

#include "echelon/nn/memory.h"
#include "echelon/optim/flat_norm.h"
#include "echelon/optim/optimizer.h"

namespace echelon {

// Pinned memory for pieces of gradients on their way from a GPU and for pieces of values on their
// way to it, two of each at a time.
class ZeroUpdate::Staging {
 public:
  Staging(at::Device device, at::ScalarType grads, at::ScalarType values, std::int64_t numel)
      : guard_(device.type()), device_(device) {
    MemoryScope scope(MemoryKind::workspace);
    for (std::size_t i = 0; i < slots_.size(); ++i)
      slots_[i].memory = at::empty(
          {numel}, at::TensorOptions(i < first_value ? grads : values).pinned_memory(true));
  }

  // Starts to copy the gradients of a piece to the host.
  void bring(std::size_t piece, const at::Tensor& grads) {
    at::Tensor(slot(piece, 0).memory.narrow(0, 0, grads.numel())).copy_(grads, true);
    mark(slot(piece, 0));
  }
  at::Tensor brought(std::size_t piece, std::int64_t numel) {
    slot(piece, 0).done->synchronize();
    return slot(piece, 0).memory.narrow(0, 0, numel);
  }
  // Casts masters to the model's type and starts to copy them to the GPU.
  void send(std::size_t piece, const at::Tensor& masters, at::Tensor values) {
    Slot& one = slot(piece, first_value);
    if (one.done) one.done->synchronize();
    at::Tensor here = one.memory.narrow(0, 0, masters.numel());
    here.copy_(masters);
    values.copy_(here, true);
    mark(one);
  }

 private:
  struct Slot {
    at::Tensor memory;
    std::optional<c10::Event> done;
  };
  static constexpr std::size_t first_value = 2;
  Slot& slot(std::size_t piece, std::size_t first) { return slots_[first + piece % 2]; }
  void mark(Slot& one) {
    if (!one.done) one.done.emplace(device_.type());
    one.done->record(guard_.getStream(device_));
  }

  c10::impl::VirtualGuardImpl guard_;
  at::Device device_;
  std::array<Slot, 4> slots_;
};

std::vector<Tier::Array> ZeroUpdate::arrays(const OptimOptions& options, at::ScalarType type,
                                            at::ScalarType sums, const Placement& placement,
                                            at::Device device) {
  const auto wide = master_type(type);
  const bool sliced = placement.values.sliced, separate = wide != type;
  std::vector<Tier::Array> all;
  if (sliced || separate || device.is_cuda())
    all.push_back({"master", wide,
                   sliced && !separate ? MemoryKind::parameters : MemoryKind::optimizer,
                   sliced && !separate});
  for (const auto& name : make_optimizer(options)->state_names())
    all.push_back({name, wide, MemoryKind::optimizer, false});
  if (sliced && separate) all.push_back({"value", type, MemoryKind::parameters, true});
  if (sliced) all.push_back({"grad", sums, MemoryKind::gradients, true});
  return all;
}

ZeroUpdate::ZeroUpdate(Stack& stack, ZeroShards& shards, const OptimOptions& options, Tier* tier,
                       std::int64_t piece, const std::optional<LossScale::Setup>& scaling,
                       PartSums part_sums)
    : stack_(stack),
      shards_(shards),
      tier_(tier),
      part_sums_(std::move(part_sums)),
      kinds_{"master"} {
  for (const auto& name : make_optimizer(options)->state_names()) kinds_.push_back(name);
  const auto type = stack.type();
  const auto wide = at::TensorOptions(tier ? at::kCPU : stack.device()).dtype(master_type(type));
  const int groups = int(stack.groups().size());
  const auto ranges = [&](int g) {
    const auto begin = shards.slice_begin(g), numel = shards.slice_numel(g);
    return ranges_within(stack.units(), begin, begin + numel, shards.sum_type(), grain_of(options));
  };
  const auto sum_norms = [this](at::Tensor sums) {
    const bool here = !tier_ || stack_.device().is_cpu();
    const at::Tensor there = here ? sums : sums.to(stack_.device());
    sum_over_owners(there);
    if (part_sums_.parameters) part_sums_.parameters(there);
    if (!here) sums.copy_(there);
  };
  norm_ = at::zeros({}, wide);
  if (tier) {
    piece = std::max(Tier::grain, piece / Tier::grain * Tier::grain);
    std::vector<std::vector<UpdateRange>> all;
    std::int64_t longest = 0;
    for (int g = 0; g < groups; ++g) {
      all.push_back(ranges(g));
      for (std::int64_t at = 0; at < shards.slice_numel(g); at += piece) {
        pieces_.push_back({g, at, std::min(piece, shards.slice_numel(g) - at)});
        longest = std::max(longest, pieces_.back().numel);
      }
    }
    if (stack.device().is_cuda() && !shards.placement().values.sliced)
      staging_ = std::make_unique<Staging>(stack.device(), shards.sum_type(), type, longest);
    slices_ = std::make_unique<SliceUpdate>(
        std::move(all), longest,
        [this](bool values_change, const auto& visit) { walk(values_change, visit); },
        shards.sum_type(), options, parameters_of(stack.units()), sum_norms, scaling);
    return;
  }
  if (master_type(type) != type) {
    MemoryScope scope(MemoryKind::optimizer);
    std::int64_t all = 0;
    for (int g = 0; g < groups; ++g) all += shards.slice_numel(g);
    masters_ = at::zeros({all}, wide);
  }
  std::vector<SliceUpdate::Part> parts;
  std::int64_t first = 0;
  for (int g = 0; g < groups; ++g) {
    const auto numel = shards.slice_numel(g);
    parts.push_back(
        {masters_.defined() ? masters_.narrow(0, first, numel) : shards.values(g), ranges(g)});
    first += numel;
  }
  slices_ =
      std::make_unique<SliceUpdate>(std::move(parts), stack.device(), shards.sum_type(), options,
                                    parameters_of(stack.units()), sum_norms, scaling);
}

ZeroUpdate::~ZeroUpdate() = default;

// `rows` has one row per trainable parameter of this rank, in the order of segments. Sums each row
// over the owners of that parameter's slices.
void ZeroUpdate::sum_over_owners(at::Tensor rows) const {
  const CommCall call{.tag = "norms", .blocking = true};
  if (shards_.have_same_owners())
    return shards_.ranks().all_reduce(rows, ReduceOp::sum, call).follow();
  std::map<Communicator*, std::vector<std::int64_t>> by_owners;
  std::vector<Communicator*> order;  // the same on all ranks
  std::int64_t row = 0;
  for (const auto& unit : stack_.units()) {
    if (!unit.trainable) continue;
    for (const auto& segment : unit.segments) {
      Communicator* const ranks = owners(*stack_.find(segment.name));
      if (!by_owners.contains(ranks)) order.push_back(ranks);
      by_owners[ranks].push_back(row++);
    }
  }
  for (Communicator* const ranks : order) {
    if (!ranks) continue;
    const at::Tensor index = at::tensor(by_owners[ranks], at::kLong).to(rows.device());
    const at::Tensor theirs = rows.index_select(0, index);
    ranks->all_reduce(theirs, ReduceOp::sum, call).follow();
    rows.index_copy_(0, index, theirs);
  }
}

// The runs of a piece: masters if the tier stores them, state, and gradients.
std::vector<Tier::Run> ZeroUpdate::kept(const Piece& piece, bool with_grads) const {
  std::vector<Tier::Run> runs;
  const auto add = [&](const std::string& name) {
    if (const int array = tier_->find(name); array >= 0)
      runs.push_back({array, piece.group, piece.begin, piece.numel});
  };
  for (const auto& kind : kinds_) add(kind);
  if (with_grads) add("grad");
  return runs;
}

void ZeroUpdate::walk(bool values_change,
                      const std::function<void(const SliceUpdate::Run&)>& visit) {
  const bool grads_kept = tier_->find("grad") >= 0, masters_kept = tier_->find("master") >= 0;
  const auto grads_of = [&](const Piece& piece) {
    return shards_.grads(piece.group).narrow(0, piece.begin, piece.numel);
  };
  const auto ahead = [&](std::size_t i) {
    if (i >= pieces_.size()) return;
    for (const auto& run : kept(pieces_[i], true)) tier_->want(run);
    if (staging_) staging_->bring(i, grads_of(pieces_[i]));
  };
  ahead(0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    ahead(i + 1);
    const Piece& piece = pieces_[i];
    SliceUpdate::Run run{std::size_t(piece.group), piece.begin, {}, {}, {}};
    const auto runs = kept(piece, true);
    for (const auto& one : runs) {
      const std::string& name = tier_->arrays()[std::size_t(one.array)].name;
      const at::Tensor here = tier_->take(one);
      if (name == "master")
        run.master = here;
      else if (name == "grad")
        run.grad = here;
      else
        run.state.push_back(here);
    }
    if (!masters_kept) run.master = shards_.values(piece.group).narrow(0, piece.begin, piece.numel);
    if (!grads_kept) run.grad = staging_ ? staging_->brought(i, piece.numel) : grads_of(piece);
    visit(run);
    if (values_change) put_values(i, run.master);
    for (const auto& one : runs) {
      const std::string& name = tier_->arrays()[std::size_t(one.array)].name;
      tier_->give_back(one, name != "grad" && (values_change || name != "master"));
    }
    if (values_change && !shards_.placement().values.sliced &&
        (i + 1 == pieces_.size() || pieces_[i + 1].group != piece.group))
      shards_.publish(piece.group);
  }
}

// Writes the new values of a piece, cast from its masters, to where a step reads them.
void ZeroUpdate::put_values(std::size_t i, const at::Tensor& masters) {
  const Piece& piece = pieces_[i];
  if (const int array = tier_->find("value"); array >= 0) {
    const Tier::Run run{array, piece.group, piece.begin, piece.numel};
    tier_->blank(run).copy_(masters);
    tier_->give_back(run, true);
  } else if (!shards_.placement().values.sliced && tier_->find("master") >= 0) {
    at::Tensor values = shards_.values(piece.group).narrow(0, piece.begin, piece.numel);
    staging_ ? staging_->send(i, masters, values) : void(values.copy_(masters));
  }
}

at::TensorOptions ZeroUpdate::state_options() const {
  return at::TensorOptions(stack_.device()).dtype(master_type(stack_.type()));
}

std::vector<std::size_t> ZeroUpdate::owned_by(const Parameter& parameter) const {
  const int group = stack_.group_of(parameter);
  const auto numel = shards_.slice_numel(group);
  const auto first = parameter.begin - stack_.groups()[std::size_t(group)].begin,
             end = first + parameter.numel();
  std::vector<std::size_t> owned;
  for (int r = 0; r < shards_.owner_count(group); ++r)
    owned.push_back(std::size_t(
        std::max<std::int64_t>(0, std::min(end, (r + 1) * numel) - std::max(first, r * numel))));
  return owned;
}

// Splits at the pieces of the tier, or returns whole slices.
std::vector<StateSlice> ZeroUpdate::slices() const {
  std::vector<Piece> whole;
  for (int g = 0; g < int(stack_.groups().size()); ++g)
    whole.push_back({g, 0, shards_.slice_numel(g)});
  std::vector<std::vector<std::size_t>> of_group(stack_.groups().size());
  std::vector<StateSlice> all;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    const int array = tier_ ? tier_->find(kinds_[kind]) : -1;
    const auto& pieces = array >= 0 ? pieces_ : whole;
    for (auto& one : of_group) one.clear();
    for (std::size_t i = 0; i < pieces.size(); ++i)
      of_group[std::size_t(pieces[i].group)].push_back(i);
    for (const auto& parameter : stack_.parameters()) {
      if (!parameter.trainable || !parameter.here) continue;
      for (const std::size_t i : of_group[std::size_t(stack_.group_of(parameter))]) {
        const Piece piece = pieces[i];
        const auto begin = shards_.slice_begin(piece.group) + piece.begin;
        const auto from = std::max(begin, parameter.begin),
                   to = std::min(begin + piece.numel, parameter.begin + parameter.numel());
        if (from >= to) continue;
        const auto part = [from, to, begin](const at::Tensor& of) {
          return of.narrow(0, from - begin, to - from);
        };
        StateSlice slice{kinds_[kind], &parameter, from - parameter.begin, to - from, {}};
        if (array >= 0)
          slice.access = [this, part,
                          run = Tier::Run{array, piece.group, piece.begin, piece.numel}](
                             bool changes, const auto& use) {
            if (changes) tier_->begin_update(static_cast<std::int64_t>(slices_->updates()));
            use(part(tier_->take(run)));
            tier_->give_back(run, changes);
          };
        else
          slice.access = [this, part, kind, group = piece.group](bool, const auto& use) {
            use(part(tier_ ? shards_.values(group)
                           : slices_->parted_state()[kind].parts[std::size_t(group)]));
          };
        all.push_back(std::move(slice));
      }
    }
  }
  return all;
}

// Materialises one whole parameter at a time and keeps only the own slices.
void ZeroUpdate::load(const ValueSource& source) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : stack_.parameters())
    if (parameter.here && !parameter.trainable) source(parameter, parameter.value);
  const Parameter* made = nullptr;
  at::Tensor whole;
  for (const auto& slice : slices()) {
    if (slice.kind != kinds_.front()) break;
    slice.access(/*changes=*/true, [&](at::Tensor mine) {
      if (made != slice.parameter) {
        made = slice.parameter;
        whole.reset();
        MemoryScope scope(MemoryKind::workspace);
        whole = at::empty(made->shape, mine.options());
        source(*made, whole);
      }
      mine.copy_(whole.view({-1}).narrow(0, slice.begin, slice.numel));
    });
  }
  publish();
}

void ZeroUpdate::apply(const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  const int groups = int(stack_.groups().size());
  const bool grads_kept = tier_ && tier_->find("grad") >= 0;
  std::vector<at::Tensor> grads, norms;
  for (int g = 0; g < groups; ++g) {
    norms.push_back(grads_kept
                        ? shards_.norm(g)
                        : counted_norm(shards_.grads(g), stack_.units(), shards_.slice_begin(g)));
    if (!tier_) grads.push_back(shards_.grads(g));
  }
  // A pipeline rank may have no parameters. Groups that are summed over fewer ranks than others
  // hold different parameters on each rank, so every rank's slices count.
  const at::Tensor square =
      norms.empty() ? at::zeros({}, at::TensorOptions(stack_.device()).dtype(at::kDouble))
                    : norm_of_norms(norms).to(at::kDouble).square();
  shards_.ranks().all_reduce(square, ReduceOp::sum, {.tag = "norm", .blocking = true}).follow();
  if (part_sums_.all) part_sums_.all(square);
  norm_.copy_(slices_->without_scale(square.sqrt()));
  if (!tier_) {
    slices_->apply(grads, norm_, loss);
    return publish();
  }
  const auto start = std::chrono::steady_clock::now();
  const auto before = static_cast<std::int64_t>(slices_->updates());
  tier_->begin_update(before);
  slices_->apply({}, norm_, loss.cpu());
  tier_->end_update(static_cast<std::int64_t>(slices_->updates()));
  host_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ZeroUpdate::publish() {
  const at::NoGradGuard no_grad;
  if (tier_) {
    const int masters = tier_->find("master");
    for (std::size_t i = 0; i < pieces_.size() && masters >= 0; ++i) {
      const Tier::Run run{masters, pieces_[i].group, pieces_[i].begin, pieces_[i].numel};
      put_values(i, tier_->take(run));
      tier_->give_back(run, false);
    }
    tier_->end_update(static_cast<std::int64_t>(slices_->updates()));
  } else if (masters_.defined()) {
    const auto masters = slices_->parted_state().front().parts;
    for (int g = 0; g < int(masters.size()); ++g) shards_.values(g).copy_(masters[std::size_t(g)]);
  }
  if (!shards_.placement().values.sliced) shards_.publish();
}

}  // namespace echelon
