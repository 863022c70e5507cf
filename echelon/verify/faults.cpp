#include "echelon/verify/faults.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/nn/memory.h"
#include "echelon/plan/mesh_layout.h"
#include "echelon/step/exchange.h"

namespace echelon {
namespace {

using Kind = Transfer::Kind;

// Selects exchanges. A traced step numbers the parts: "gradients 0".
bool is_for(const Transfer& e, std::string_view purpose) { return without_part(e.tag) == purpose; }
bool gradients(const Transfer& e) { return is_for(e, "gradients"); }
bool owners_sums(const Transfer& e) { return gradients(e) && e.kind == Kind::reduce_scatter; }
bool parameters(const Transfer& e) { return is_for(e, "parameters") && e.kind == Kind::all_gather; }
bool tied_gradients(const Transfer& e) { return e.tag == "tied gradients"; }
bool norm(const Transfer& e) { return e.tag == "norm"; }
bool norms(const Transfer& e) { return e.tag == "norms"; }
bool adaptations(const Transfer& e) { return e.tag == "lora"; }
bool products(const Transfer& e) { return e.tag == "tensor" && e.kind != Kind::all_gather; }
// The final gather of parameters has one dimension more.
bool rows(const Transfer& e) {
  return e.tag == "tensor" && e.kind == Kind::all_gather && e.output.dim() == e.input.dim();
}
bool activations(const Transfer& e) { return is_for(e, "activations"); }
bool outputs(const Transfer& e) {
  return activations(e) && e.kind == Kind::send && e.peer > e.rank;
}
bool output_gradients(const Transfer& e) {
  return activations(e) && e.kind == Kind::send && e.peer < e.rank;
}

// Alters exchanges.
using Which = bool (*)(const Transfer&);

std::function<Alteration()> so_often(int times, Which which) {
  return [=] { return [=](Transfer& e) { return Change{.times = which(e) ? times : 1}; }; };
}
const auto left_out = [](Which which) { return so_often(0, which); };
const auto twice = [](Which which) { return so_often(2, which); };

std::function<Alteration()> before(Which which, void (*act)(Transfer&)) {
  return [=] {
    return [=](Transfer& e) {
      if (which(e)) act(e);
      return Change{};
    };
  };
}

std::function<Alteration()> after(Which which, void (*act)(const Transfer&)) {
  return [=] {
    return [=](Transfer& e) { return which(e) ? Change{.after = [act, e] { act(e); }} : Change{}; };
  };
}

void swap_first_pieces(const Transfer& e, const at::Tensor& all) {
  at::Tensor first = e.piece(all, 0), second = e.piece(all, 1);
  const at::Tensor kept = first.clone();
  first.copy_(second);
  second.copy_(kept);
}

// Identified by memory address: a slice of parameters does not move.
Alteration what_was_gathered_before() {
  return [seen = std::map<const void*, at::Tensor>()](Transfer& e) mutable {
    if (!parameters(e)) return Change{};
    at::Tensor& last = seen[e.input.const_data_ptr()];
    const at::Tensor now = e.input.clone();
    if (last.defined() && last.sizes() == now.sizes()) e.input = last;
    last = now;
    return Change{};
  };
}

Alteration copies_of_gathered() {
  using Copies = std::map<const void*, at::Tensor>;
  return [copies = std::make_shared<Copies>()](Transfer& e) {
    if (!parameters(e)) return Change{};
    return Change{.after = [copies, source = e.input.const_data_ptr(), all = e.output] {
      const MemoryScope scope(MemoryKind::parameters);
      (*copies)[source] = all.clone();
    }};
  };
}

Alteration outputs_of_the_one_before() {
  return [last = at::Tensor()](Transfer& e) mutable {
    if (!outputs(e)) return Change{};
    const at::Tensor now = e.input.clone();
    if (last.defined() && last.sizes() == now.sizes()) e.input = last;
    last = now;
    return Change{};
  };
}

// Selects jobs.
using Options = const JobOptions&;
using Shape = const MeshShape&;

bool data_ranks(Options, Shape mesh) { return mesh.data > 1; }
bool shared_out(Options o, Shape mesh) { return o.parallel.zero > 0 && mesh.data > 1; }
bool tensor(Options, Shape mesh) { return mesh.tensor > 1; }
bool pipeline(Options, Shape mesh) { return mesh.pipeline > 1; }
bool one_chunk(Options o, Shape mesh) { return mesh.pipeline > 1 && o.pipeline.chunks == 1; }
bool split_rows(Options o, Shape mesh) {
  return mesh.tensor > 1 && o.parallel.sequence && o.model.context % mesh.tensor == 0;
}
// Always clips: the gradients of the tiny models have norms of 0.4 to 1 in the first steps.
bool clipped(Options o) { return o.optim.clip > 0 && o.optim.clip <= 0.1; }
bool adapted(Options o) { return o.model.lora.rank > 0; }
bool by_whole_parameters(Options o) {
  return o.optim.name == OptimizerKind::lars || o.optim.name == OptimizerKind::lamb;
}

std::vector<Fault> make_faults() {
  return {
      // Data parallelism.
      {.name = "dropped-scale",
       .what = "gradients of data ranks are summed, never divided by their number",
       .caught_by = Check::parameters,
       .where = [](Options o, Shape mesh) { return mesh.data > 1 && !clipped(o); },  // undoes it
       .alteration =
           after(gradients, [](const Transfer& e) { at::Tensor(e.output).mul_(e.size); })},
      {.name = "lost-gradient",
       .what = "the gradients of the last data rank count as zero",
       .caught_by = Check::parameters,
       .where = data_ranks,
       .alteration = before(gradients,
                            [](Transfer& e) {
                              if (e.rank + 1 == e.size) e.summand().zero_();
                            })},
      {.name = "unawaited-sum",
       .what = "the update uses a rank's own gradients instead of their sum",
       .caught_by = Check::parameters,
       .where = data_ranks,
       .alteration = before(gradients, [](Transfer& e) { e.output = e.output.clone(); })},
      {.name = "rounded-gradients",
       .what = "gradients are rounded to bf16 before they are sent to data ranks",
       .caught_by = Check::parameters,
       .where = data_ranks,
       .alteration = before(gradients,
                            [](Transfer& e) {
                              at::Tensor all = e.summand();
                              all.copy_(all.to(at::kBFloat16));
                            })},
      {.name = "repeated-sum",
       .what = "gradients are summed over data ranks twice; one sum is thrown away",
       .caught_by = Check::bytes,
       .where = data_ranks,
       .alteration = twice(gradients)},

      // ZeRO.
      {.name = "swapped-owners",
       .what = "the first two owners get each other's slice of the gradients",
       .caught_by = Check::parameters,
       .where = shared_out,
       .alteration = before(owners_sums, [](Transfer& e) { swap_first_pieces(e, e.input); })},
      {.name = "swapped-ranks",
       .what = "a gather of parameters swaps the slices of two owners",
       .caught_by = Check::parameters,
       .where = shared_out,
       .alteration = after(parameters, [](const Transfer& e) { swap_first_pieces(e, e.output); })},
      {.name = "stale-parameters",
       .what = "a gather brings the parameters from before the update",
       .caught_by = Check::parameters,
       .where = [](Options o,
                   Shape mesh) { return shared_out(o, mesh) && o.zero.offload == Offload::none; },
       .alteration = [] { return what_was_gathered_before(); }},
      {.name = "kept-copy",
       .what = "parameters that were gathered for a layer are kept after its use",
       .caught_by = Check::memory,
       .where = [](Options o, Shape mesh) { return shared_out(o, mesh) && o.parallel.zero == 3; },
       .alteration = [] { return copies_of_gathered(); }},
      {.name = "lower-stage",
       .what = "the ZeRO stage below the requested one runs, which shards less",
       .caught_by = Check::memory,
       .where =
           [](Options o, Shape mesh) {
             return shared_out(o, mesh) && o.zero.offload == Offload::none &&
                    o.zero.shard == ShardOver::all;
           },
       .change = [](JobOptions& o) { --o.parallel.zero; }},
      {.name = "kept-in-memory",
       .what = "state that belongs on disk stays in memory",
       .caught_by = Check::memory,
       .where = [](Options o,
                   Shape mesh) { return shared_out(o, mesh) && o.zero.offload == Offload::disk; },
       .change = [](JobOptions& o) { o.zero.offload = Offload::none; }},

      // Norms to which every rank contributes.
      {.name = "missing-norm-sum",
       .what = "gradients are clipped by the norm of a rank's part, not of all",
       .caught_by = Check::parameters,
       .where =
           [](Options o, Shape mesh) {
             return clipped(o) && (shared_out(o, mesh) || mesh.pipeline > 1 || mesh.tensor > 1);
           },
       .alteration = left_out(norm)},
      {.name = "own-trust-ratio",
       .what = "LARS and LAMB take a parameter's norm from a rank's own slice",
       .caught_by = Check::parameters,
       .where =
           [](Options o, Shape mesh) {
             return shared_out(o, mesh) && mesh.tensor == 1 && by_whole_parameters(o);
           },
       .alteration = left_out(norms)},

      // Tensor parallelism.
      {.name = "unsummed-products",
       .what = "a rank uses its own summand of a split product",
       .caught_by = Check::parameters,
       .where = tensor,
       .alteration = left_out(products)},
      {.name = "swapped-rows",
       .what = "a gather of rows swaps those of two ranks",
       .caught_by = Check::parameters,
       .where = split_rows,
       .alteration = after(rows, [](const Transfer& e) { swap_first_pieces(e, e.output); })},
      {.name = "unsummed-layer-norms",
       .what = "gradients of norms and positions are those of a rank's own rows",
       .caught_by = Check::parameters,
       .where =
           [](Options o, Shape mesh) {
             return split_rows(o, mesh) && !by_whole_parameters(o) && !adapted(o);
           },
       .alteration = left_out(norms)},
      {.name = "unsummed-adaptations",
       .what = "gradients of a whole LoRA factor are those of a rank's part",
       .caught_by = Check::parameters,
       .where = [](Options o, Shape mesh) { return mesh.tensor > 1 && adapted(o); },
       .alteration = left_out(adaptations)},

      // Pipelines.
      {.name = "missing-tied-sum",
       .what = "gradients of a table that two stages share are not summed",
       .caught_by = Check::parameters,
       .where =
           [](Options o, Shape mesh) {
             return mesh.pipeline > 1 && o.model.tied && !adapted(o) &&
                    o.model.task.name != ModelTask::classify;  // its head has no table
           },
       .alteration = left_out(tied_gradients)},
      {.name = "late-activations",
       .what = "a stage gets the activations of the previous micro-batch",
       .caught_by = Check::parameters,
       .where = one_chunk,
       .alteration = [] { return outputs_of_the_one_before(); }},
      {.name = "cut-graph",
       .what = "no gradient comes back over the boundary of two stages",
       .caught_by = Check::parameters,
       .where = one_chunk,
       .alteration =
           before(output_gradients, [](Transfer& e) { e.input = e.input.clone().zero_(); })},
      {.name = "repeated-message",
       .what = "activations and their gradients are sent twice between two stages",
       .caught_by = Check::bytes,
       .where = pipeline,
       .alteration = twice(activations)},
      {.name = "another-schedule",
       .what = "1f1b runs instead of interleaved or zero-bubble",
       .caught_by = Check::bubble,
       .where =
           [](Options o, Shape mesh) {
             return mesh.pipeline > 1 &&
                    (o.pipeline.schedule == PipelineOrder::zero_bubble ||
                     (o.pipeline.schedule == PipelineOrder::interleaved && o.pipeline.chunks > 1));
           },
       .change =
           [](JobOptions& o) {
             o.pipeline.schedule = PipelineOrder::one_f_one_b;
             if (std::exchange(o.pipeline.chunks, 1) > 1) o.pipeline.stages.clear();
           }},
      {.name = "fewer-micro-batches",
       .what = "a pipeline runs half of the requested micro-batches",
       .caught_by = Check::bubble,
       .where = [](Options o,
                   Shape mesh) { return one_chunk(o, mesh) && o.train.micro_batches % 2 == 0; },
       .change = [](JobOptions& o) { o.train.micro_batches /= 2; }},

      // Anywhere.
      {.name = "single-precision",
       .what = "ranks compute in fp32 instead of fp64",
       .caught_by = Check::parameters,
       .where = [](Options, Shape mesh) { return mesh.ranks() > 1; },
       .change = [](JobOptions& o) { o.train.precision = Precision::fp32; }},
  };
}

}  // namespace

const char* name(Check check) {
  switch (check) {
    case Check::parameters:
      return "parameters";
    case Check::bytes:
      return "bytes";
    case Check::memory:
      return "memory";
    case Check::bubble:
      return "bubble";
  }
  return "";
}

// Parameter servers have their own connections, which an alteration does not see. Narrow types are
// compared by their losses, and a fault may stay within that bound.
bool Fault::concerns(const JobOptions& options, int world) const {
  if (options.server.count > 0 || options.train.precision != Precision::fp64) return false;
  const auto& parallel = options.parallel;
  const auto ranks = parallel.pipeline * parallel.tensor * std::max<std::int64_t>(1, parallel.data);
  if (parallel.data > 0 ? world != ranks : world % ranks != 0) return false;
  return where(options, mesh_of(parallel, world));
}

JobOptions Fault::changed(JobOptions options) const {
  if (change) change(options);
  return options;
}

std::shared_ptr<Communicator> Fault::alter(std::shared_ptr<Communicator> ranks) const {
  return alteration ? altered(std::move(ranks), alteration()) : ranks;
}

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> faults = make_faults();
  return faults;
}

const Fault* find_fault(std::string_view name) {
  const auto& all = all_faults();
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const Fault& fault) { return fault.name == name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace echelon
