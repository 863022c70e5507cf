// The state of a run as one safetensors file. Every trainable parameter has "master/NAME" and one
// tensor for each optimiser state ("exp_avg/NAME", ...). Frozen parameters and buffers are
// "fixed/NAME". The metadata has the number of steps and updates, in fp16 also the loss scale and
// its number of good steps, and the notes (the data's fingerprint). The sampler is a function of
// the step, so nothing is saved for it.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <span>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/comm/texts.h"
#include "echelon/nn/split.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/optim/state_slices.h"
#include "echelon/train/in_flight.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

template <class T>
T number(const safetensors::Reader& reader, const std::string& key) {
  const auto it = reader.header().metadata.find(key);
  T value = -1;
  if (it != reader.header().metadata.end()) {
    const auto& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) value = -1;
  }
  if (!(value >= 0))  // rejects NaN too
    throw Corrupt(fmt::format("{} is no state of a run: its metadata has no {}",
                              reader.path().string(), key));
  return value;
}

// Distinguishes states without reading them completely: hashes the name, the size and the first
// bytes of every tensor.
std::uint64_t digest_of(const safetensors::Reader& reader) {
  constexpr std::size_t beginning = 4096;
  std::uint64_t sum = 0;
  for (const auto& entry : reader.header().entries) {
    const auto size = entry.end - entry.begin;
    std::vector<std::byte> bytes(std::min<std::uint64_t>(beginning, size));
    reader.read(entry, bytes);
    sum = sum * 31 + checksum(std::as_bytes(std::span(entry.name)));
    sum = sum * 31 + size;
    sum = sum * 31 + checksum(bytes);
  }
  return sum;
}

}  // namespace

// One tensor of the state: how to get it and how to restore it.
struct Trainer::StateItem {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType type;
  std::function<at::Tensor()> get;
  std::function<void(const at::Tensor&)> put;
};

// In the order of the file. If the state is sharded, get() is collective.
std::vector<Trainer::StateItem> Trainer::state_items() const {
  std::vector<StateItem> all;
  for (const auto& kind : owner().kinds())
    for (const auto& parameter : stack_.parameters()) {
      if (!parameter.trainable) continue;
      const Parameter* const p = &parameter;
      all.push_back({kind + "/" + p->name, p->whole_shape(), master_type(stack_.type()),
                     [this, kind, p] { return whole_state(kind, *p); },
                     [this, kind, p](const at::Tensor& value) {
                       if (p->here) state_index().put(kind, *p, part_of(value, p->split));
                     }});
    }
  for (const auto& parameter : stack_.parameters()) {
    if (parameter.trainable) continue;
    const Parameter* const p = &parameter;
    all.push_back({"fixed/" + p->name, p->whole_shape(), stack_.type(),
                   [this, p] { return everywhere(p->value, *p); },
                   [p](const at::Tensor& value) {
                     if (p->here) at::Tensor(p->value).copy_(part_of(value, p->split));
                   }});
  }
  for (int l = 0; l < stack_.size(); ++l)
    for (const auto& [name, buffer] : stack_.layer(l).buffers())
      all.push_back(
          {"fixed/" + name, buffer.sizes().vec(), buffer.scalar_type(),
           [this, l, buffer = buffer] { return from_layer(l, buffer); },
           [buffer = buffer](const at::Tensor& value) { at::Tensor(buffer).copy_(value); }});
  return all;
}

const StateIndex& Trainer::state_index() const {
  if (!state_index_) state_index_ = std::make_unique<StateIndex>(owner());
  return *state_index_;
}

at::Tensor Trainer::whole_state(const std::string& kind, const Parameter& parameter) const {
  const at::Tensor mine = parameter.here ? state_index().whole(kind, parameter)
                                         : at::empty({0}, owner().state_options());
  return everywhere(mine, parameter);
}

at::Tensor Trainer::everywhere(const at::Tensor& mine, const Parameter& parameter) const {
  const at::TensorOptions options =
      mine.defined() ? mine.options() : at::TensorOptions(device_).dtype(stack_.type());
  at::Tensor whole = parameter.here ? mine : at::empty(parameter.whole_shape(), options);
  if (parameter.here && parameter.split.is_part())
    whole = assemble(stack_.tensor_group()->gather(mine.contiguous()), parameter.split);
  return from_layer(stack_.declared_in(parameter), whole);
}

// Sends a tensor from the rank that has this layer to all ranks of its pipeline.
at::Tensor Trainer::from_layer(int layer, const at::Tensor& tensor) const {
  if (!layout_.mesh.pipeline) return tensor;
  const at::Tensor copy = tensor.to(device_).contiguous().clone();
  const int root = layout_.neighbours().owner[std::size_t(layer)];
  layout_.mesh.pipeline->broadcast(copy, root, {.tag = "whole parameters", .blocking = true})
      .wait();
  return copy;
}

std::int64_t saved_step(const std::filesystem::path& state) {
  return saved_step(safetensors::Reader(state));
}

std::int64_t saved_step(const safetensors::Reader& state) {
  return number<std::int64_t>(state, "step");
}

std::string saved_note(const std::filesystem::path& state, const std::string& key) {
  const safetensors::Reader reader(state);
  const auto it = reader.header().metadata.find(key);
  return it == reader.header().metadata.end() ? "" : it->second;
}

// If ranks have parts, one rank writes and the others send their parts. If the writer fails for any
// reason, it still takes part in the remaining exchanges, so that no rank waits for it, and throws
// at the end. After an exchange that failed half-way it throws at once, because the ranks are then
// no longer at the same point.
void Trainer::write_together(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata) const {
  std::size_t made = 0;
  bool making = false;
  for (auto& tensor : tensors)
    tensor.make = [&made, &making, make = std::move(tensor.make)] {
      making = true;
      const at::Tensor tensor_made = make();
      making = false;
      ++made;
      return tensor_made;
    };
  const auto make_rest = [&] {
    while (made < tensors.size()) tensors[made].make();
  };
  if (!saves_together()) return write_tensors(path, tensors, metadata);
  std::exception_ptr failure;
  if (all_->rank() != 0) {
    make_rest();
  } else {
    try {
      write_tensors(path, tensors, metadata);
    } catch (...) {
      if (making) throw;  // an exchange failed half-way
      failure = std::current_exception();
      make_rest();
    }
  }
  require_written(failure);
}

// Tells all ranks whether the first rank has written the file. Collective.
void Trainer::require_written(const std::exception_ptr& failure) const {
  std::string why;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    why = error.what();
  }
  const std::string first = gather_texts(*all_, why, "save").front();
  if (failure) std::rethrow_exception(failure);
  // PeerLost, because another rank failed, not this one: the launcher then blames the right rank.
  if (!first.empty()) throw PeerLost("rank 0 has not saved it: " + first);
}

void Trainer::save(const std::filesystem::path& path) {
  if (servers_ && ranks_)
    throw InvalidArgument("a state is saved between asynchronous phases, not within one");
  const AtWork at_work(*this);
  const PartsInUse parts(stack_);
  if (servers_) fetch_state();
  owner();  // throws if the state stayed with servers that were left
  std::vector<NamedTensor> tensors;
  for (const auto& item : state_items())
    tensors.push_back({item.name, item.shape, item.type, item.get});
  std::map<std::string, std::string> metadata = {
      {"format", "pt"},
      {"step", std::to_string(step_)},
      {"updates", std::to_string(static_cast<std::int64_t>(owner().updates()))}};
  if (const auto* scaling = owner().loss_scale()) {
    const auto [scale, good_steps] = scaling->state();
    metadata["loss_scale"] = fmt::format("{}", scale);
    metadata["good_steps"] = std::to_string(good_steps);
  }
  metadata.insert(notes_.begin(), notes_.end());
  write_together(path, std::move(tensors), metadata);
  if (servers_) {
    servers_->saved(step_);
    if (begun_) drop_update();
  }
  if (!saves_together() || all_->rank() == 0) tell(SaveReport{step_, path});
}

void Trainer::restore(const std::filesystem::path& path) {
  at::NoGradGuard no_grad;
  const AtWork at_work(*this);
  PartsInUse parts(stack_);
  parts.forget_whole();
  const safetensors::Reader reader(path);
  const auto step = number<std::int64_t>(reader, "step"),
             updates = number<std::int64_t>(reader, "updates");
  // A state saved in another precision has no loss scale. The scale then starts afresh.
  LossScale* scaling = owner().loss_scale();
  if (scaling && !reader.header().metadata.contains("loss_scale")) scaling = nullptr;
  LossScale::State scale;
  if (scaling)
    scale = {number<double>(reader, "loss_scale"), number<std::int64_t>(reader, "good_steps")};
  const auto wanted = state_items();
  for (const auto& item : wanted) {
    const auto* entry = reader.find(item.name);
    if (entry == nullptr || entry->shape != item.shape || type_of(reader, *entry) != item.type) {
      throw InvalidArgument(fmt::format(
          "{} does not fit this job: it has {}, and the job wants {} [{}]; set the model, "
          "train.freeze, train.precision, optim.name and optim.momentum that it was saved with",
          path.string(),
          entry == nullptr ? "no " + item.name
                           : fmt::format("{} as {} [{}]", item.name, entry->dtype,
                                         fmt::join(entry->shape, ", ")),
          name_of_type(item.type), fmt::join(item.shape, ", ")));
    }
  }
  for (const auto& entry : reader.header().entries) {
    const bool known = std::any_of(wanted.begin(), wanted.end(),
                                   [&](const StateItem& item) { return item.name == entry.name; });
    if (!known)
      throw InvalidArgument(
          fmt::format("{} does not fit this job: it has {}, which this job has not; set the model, "
                      "train.freeze, train.precision, optim.name and optim.momentum that it was "
                      "saved with",
                      path.string(), entry.name));
  }
  for (const auto& item : wanted) item.put(tensor_of(reader, *reader.find(item.name)));
  owner().restart(static_cast<double>(updates));
  if (scaling) scaling->restore(scale);
  scales_.clear();
  owner().publish();
  replicas_in_sync_ = false;
  digest_ = digest_of(reader);
  step_ = began_at_ = step;
  skipped_ = 0;
  first_done_.reset();
  last_done_.reset();
}

}  // namespace echelon
