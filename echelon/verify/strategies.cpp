#include "echelon/verify/strategies.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "echelon/collective/call.h"
#include "echelon/plan/compute_type.h"
#include "echelon/train/trainer.h"
#include "echelon/verify/data.h"
#include "echelon/verify/model_forms.h"

namespace echelon {
namespace {

// Sums of a few dozen numbers of size 1 in another order, over five steps of AdamW.
constexpr double rounding = 1e-12;

}  // namespace

JobOptions tiny_job() {
  JobOptions options;
  options.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
  options.train.steps = 5;
  options.train.batch = 24;
  options.train.precision = Precision::fp64;
  options.optim.warmup = 2;
  options.comm.timeout = 60;
  return options;
}

at::ScalarType Strategy::type() const { return compute_type(options.train); }
std::uint64_t Strategy::element() const { return at::elementSize(type()); }
std::uint64_t Strategy::sum_element() const { return sums_in_fp32(options.train) ? 4 : element(); }

// Both round every activation, and a loss is the mean over the rows of a batch, which round
// independently: the rounding of a loss of about ln 32, divided by the root of their number.
// Leaving out the gradients of one rank moves it further (docs/precision.md).
double Strategy::bound() const {
  if (masters) return 0;
  if (!narrow()) return rounding;
  const double rows = double(fewest_target_rows(options));
  return 3.5 * (type() == at::kBFloat16 ? 0x1p-8 : 0x1p-11) / std::sqrt(rows);
}

JobOptions alone(const Strategy& strategy) {
  JobOptions options = strategy.options;
  options.parallel = {};
  options.pipeline = {};
  options.zero = {};
  options.server = {};
  options.model.recompute = Recompute::none;
  const bool exact = compute_type(options.train) == at::kDouble;
  if (exact) options.train.reduce = ReduceType::automatic;
  if (exact || options.model.dropout > 0) options.train.micro_batches = 1;
  return options;
}

std::string computation(JobOptions options) {
  const auto text = [](auto& section) { return to_toml(fields_of(section), Comments::no); };
  return text(options.model) + text(options.model.task) + text(options.train) + text(options.optim);
}

namespace {

Strategy tiny(std::string name) { return {.name = std::move(name), .options = tiny_job()}; }

void add_narrow(std::vector<Strategy>& all, bool two_hosts) {
  for (const auto type : {Precision::bf16, Precision::fp16})
    for (int stage = 0; stage <= 3; ++stage) {
      const auto name = stage == 0 ? std::string("data parallel") : fmt::format("ZeRO {}", stage);
      Strategy one = tiny(fmt::format("{}, {}", name, name_of(type)));
      one.algorithm = two_hosts ? Algorithm::ring : Algorithm::shared;
      one.options.train.precision = type;
      one.options.parallel.zero = stage;
      one.options.zero.group = 0;
      all.push_back(one);
      Strategy wide = one;
      wide.name += ", fp32 sums, 3 micro-batches";
      wide.options.train.reduce = ReduceType::fp32;
      wide.options.train.micro_batches = 3;
      all.push_back(wide);
      if (stage == 0) continue;
      wide.name += ", offload host";
      wide.options.zero.offload = Offload::host;
      wide.options.zero.piece = 0.02;
      all.push_back(wide);
      one.name += ", masters given the same gradients";
      one.masters = true;
      all.push_back(one);
    }
}

// The variants of every stage and optimiser.
const std::vector<std::pair<const char*, void (*)(JobOptions&, const std::string& folder)>>
    variations = {
        {"", [](JobOptions&, const std::string&) {}},
        {", accumulation over 3 micro-batches",
         [](JobOptions& o, const std::string&) { o.train.micro_batches = 3; }},
        {", clipping", [](JobOptions& o, const std::string&) { o.optim.clip = 0.01; }},
        {", untied", [](JobOptions& o, const std::string&) { o.model.tied = false; }},
        {", offload host",
         [](JobOptions& o, const std::string&) {
           o.zero.offload = Offload::host;
           o.zero.piece = 0.02;
         }},
        {", offload disk, accumulation, clipping",
         [](JobOptions& o, const std::string& folder) {
           o.zero.offload = Offload::disk;
           o.zero.offload_path = folder;
           o.zero.piece = 0.02;
           o.train.micro_batches = 3;
           o.optim.clip = 0.01;
         }},
};

void add_zero(std::vector<Strategy>& all, const std::string& folder, bool per_host) {
  for (int stage = 1; stage <= 3; ++stage)
    for (const auto optimizer :
         {OptimizerKind::sgd, OptimizerKind::adamw, OptimizerKind::lars, OptimizerKind::lamb})
      for (const auto& [name, vary] : variations) {
        Strategy one = tiny(fmt::format("ZeRO {}{}, {}{}", stage, per_host ? " within hosts" : "",
                                        name_of(optimizer), name));
        one.options.parallel.zero = stage;
        one.options.zero.group = 0;
        one.options.zero.shard = per_host ? ShardOver::host : ShardOver::all;
        one.options.optim.name = optimizer;
        if (one.options.optim.name == OptimizerKind::lars)
          one.options.optim.rate = 5;  // times optim.trust
        vary(one.options, folder);
        all.push_back(one);
      }
}

// Recompute and dropout, without ZeRO (stage 0) and in every stage.
void add_recompute(std::vector<Strategy>& all, Algorithm usual) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto cell = [&](const char* name, Recompute recompute, double dropout,
                          std::int64_t micro_batches) {
      Strategy one = tiny(fmt::format(
          "{}, {}", stage == 0 ? "data parallel" : fmt::format("ZeRO {}", stage), name));
      one.algorithm = usual;
      one.options.parallel.zero = stage;
      one.options.zero.group = 0;
      one.options.model.recompute = recompute;
      one.options.model.dropout = dropout;
      one.options.train.micro_batches = micro_batches;
      all.push_back(one);
    };
    cell("recompute full", Recompute::full, 0, 1);
    cell("recompute selective", Recompute::selective, 0, 1);
    cell("dropout", Recompute::none, 0.1, 1);
    cell("recompute full, dropout, accumulation", Recompute::full, 0.1, 3);
    cell("recompute selective, dropout, accumulation", Recompute::selective, 0.1, 3);
    if (stage == 0) continue;
    cell("recompute full, dropout, offload host", Recompute::full, 0.1, 1);
    all.back().options.zero.offload = Offload::host;
    all.back().options.zero.piece = 0.02;
  }
}

void add_data_parallel(std::vector<Strategy>& all, int world, bool two_hosts) {
  const auto cell = [&](const std::string& name, Algorithm algorithm, double mib) {
    Strategy one = tiny("data parallel, " + name);
    one.algorithm = algorithm;
    one.options.parallel.bucket_mib = mib;
    all.push_back(one);
  };
  auto algorithms = std::vector{Algorithm::ring,         Algorithm::bidirectional_ring,
                                Algorithm::direct,       Algorithm::recursive_doubling,
                                Algorithm::rabenseifner, Algorithm::server};
  if (two_hosts)
    algorithms.push_back(Algorithm::hierarchical);
  else
    algorithms.insert(algorithms.end(), {Algorithm::shared, Algorithm::shared_direct});
  for (const auto algorithm : algorithms) {
    cell(fmt::format("{}, a bucket a layer", name(algorithm)), algorithm, 1e-6);
    cell(fmt::format("{}, one bucket", name(algorithm)), algorithm, 100);
  }
  const Algorithm usual = two_hosts ? Algorithm::ring : Algorithm::shared;
  Strategy pieces = tiny("data parallel, accumulation over 3 micro-batches");
  pieces.algorithm = usual;
  pieces.options.train.micro_batches = 3;
  all.push_back(pieces);
  Strategy uneven = tiny("data parallel, weighted shares");
  uneven.algorithm = usual;
  const auto rest = uneven.options.train.batch - world;
  uneven.shares.assign(std::size_t(world), 1);  // one each, and the rest for two of them
  uneven.shares[0] += rest / 3;
  uneven.shares.back() += rest - rest / 3;
  all.push_back(uneven);
  uneven.name += ", dropout";
  uneven.options.model.dropout = 0.1;
  all.push_back(uneven);
  add_recompute(all, usual);
}

void add_servers(std::vector<Strategy>& all, int world) {
  for (int servers = 1; servers <= 3; ++servers) {
    for (const bool separate : {false, true}) {
      if (separate ? servers >= world : servers > world) continue;
      Strategy one =
          tiny(fmt::format("server sync, {} {}", servers, separate ? "separate" : "colocated"));
      one.options.server = {.count = servers,
                            .place = separate ? ServerPlace::separate : ServerPlace::colocated};
      all.push_back(one);
    }
  }
  Strategy bounded = tiny("server bounded with staleness 0, 1 separate");
  bounded.options.server = {
      .count = 1, .place = ServerPlace::separate, .mode = ServerMode::bounded, .staleness = 0};
  all.push_back(bounded);
  Strategy again = tiny("server sync, 1 colocated, recompute full, dropout");
  again.options.server = {.count = 1, .place = ServerPlace::colocated};
  again.options.model.recompute = Recompute::full;
  again.options.model.dropout = 0.1;
  all.push_back(again);
  Strategy adapted = tiny("server sync, 1 colocated, LoRA");
  adapted.options.server = {.count = 1, .place = ServerPlace::colocated};
  adapted.options.model.lora = {.rank = 2, .matrices = {"query", "value", "down"}};
  all.push_back(adapted);
  for (const auto& form : model_forms()) {
    if (form.family == tiny_job().model.family) continue;
    Strategy other = tiny(fmt::format("server sync, 1 colocated, {}", form.name));
    other.options.server = {.count = 1, .place = ServerPlace::colocated};
    other.options.model.family = form.family;
    form.shrink(other.options.model, 1);
    // Workers do not push rows of zeros. With so few tokens and so many samples, every worker's
    // share has every token and every position; and a BERT's tanh, unlike a DistilBERT's ReLU, has
    // a gradient everywhere.
    other.options.model.bert.token_types = BertOptions().token_types;
    other.options.model.vocab = 8;
    other.options.train.batch = 384;
    all.push_back(other);
  }
}

}  // namespace

std::vector<Strategy> replica_strategies(int world, int hosts, const std::string& folder) {
  std::vector<Strategy> all;
  add_data_parallel(all, world, hosts > 1);
  if (hosts == 1) add_servers(all, world);
  add_zero(all, folder, false);
  if (hosts > 1 && world % hosts == 0) add_zero(all, folder, true);
  add_narrow(all, hosts > 1);
  return all;
}

}  // namespace echelon
