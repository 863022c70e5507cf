#include "echelon/plan/server_forecast.h"

#include "echelon/plan/compute_type.h"

#include <algorithm>
#include <initializer_list>

#include "echelon/optim/optimizer.h"
#include "echelon/optim/slice_update.h"
#include "echelon/parallel/server/roles.h"
#include "echelon/parallel/server/slices.h"

namespace echelon {
namespace {

std::uint64_t& kind(MemoryUse& use, MemoryKind which) { return use.bytes[std::size_t(which)]; }

MemoryUse operator+(MemoryUse a, const MemoryUse& b) {
  for (std::size_t i = 0; i < a.bytes.size(); ++i) a.bytes[i] += b.bytes[i];
  return a;
}

MemoryUse largest(std::initializer_list<MemoryUse> all) {
  return *std::max_element(all.begin(), all.end(), [](const MemoryUse& a, const MemoryUse& b) {
    return a.total() < b.total();
  });
}

MemoryUse without(MemoryUse use, std::initializer_list<MemoryKind> kinds) {
  for (const auto one : kinds) kind(use, one) = 0;
  return use;
}

// The number of versions that workers may hold: none is older than the staleness bound.
std::int64_t versions(const ServerOptions& options, int workers) {
  const std::int64_t w = workers;
  return options.mode == ServerMode::async ? w : std::min(w, options.staleness + 1);
}

// A server's range, in bytes.
struct Served {
  std::uint64_t values = 0;  // as they are sent
  std::uint64_t wide = 0;    // one master or one optimiser state
  std::uint64_t states = 0;
  bool widens = false;  // gradients are sent in a narrower type

  Served(const PlanOptions& options, std::int64_t numel) {
    std::int64_t largest_part = 0;
    for (const auto& range :
         cut_ranges(numel, std::vector<double>(std::size_t(options.server.count), 1.0)))
      largest_part = std::max(largest_part, range.numel());
    const auto type = compute_type(options.train);
    values = std::uint64_t(largest_part) * at::elementSize(type);
    wide = std::uint64_t(largest_part) * at::elementSize(master_type(type));
    states = make_optimizer(options.optim)->state_names().size();
    widens = type != master_type(type);
  }

  MemoryUse between_steps() const {
    MemoryUse use;
    kind(use, MemoryKind::parameters) = values;
    kind(use, MemoryKind::optimizer) = (1 + states) * wide;
    return use;
  }
  // The state as it arrives over a connection, besides the optimiser's own.
  MemoryUse beginning() const {
    MemoryUse use;
    kind(use, MemoryKind::optimizer) = (1 + 2 * states) * wide;
    return use;
  }
  MemoryUse step(const ServerOptions& options, int workers) const {
    const bool sync = options.mode == ServerMode::sync;
    MemoryUse use = between_steps();
    // Each worker may be reading a different version while the next one is written.
    if (!sync)
      kind(use, MemoryKind::parameters) += std::uint64_t(versions(options, workers)) * values;
    kind(use, MemoryKind::gradients) = std::uint64_t(options.most_waiting(workers)) * values;
    if (widens) kind(use, MemoryKind::workspace) = 2 * wide;
    if (options.compensate > 0 && !sync) {  // values behind the gradients, and a few terms
      kind(use, MemoryKind::parameters) += std::uint64_t(workers) * values;
      kind(use, MemoryKind::workspace) += 4 * wide;
    }
    return use;
  }
};

}  // namespace

MemoryUse forecast_servers(const PlanOptions& options, int ranks, const MemoryUse& computing,
                           std::int64_t numel) {
  const ServerRoles roles(options.server, ranks);
  const Served served(options, numel);
  const MemoryUse step = without(computing, {MemoryKind::optimizer, MemoryKind::workspace}),
                  state = without(computing, {MemoryKind::activations, MemoryKind::workspace});
  const MemoryUse serving = served.step(options.server, roles.workers());
  if (roles.separate) return largest({step, state, serving, served.beginning()});
  return largest({step + serving, state + served.between_steps()});
}

MemoryUse forecast_async_phases(const PlanOptions& options, int ranks, const MemoryUse& computing,
                                std::int64_t numel) {
  PlanOptions phase = options;
  phase.server.count = ranks;
  phase.server.mode = ServerMode::bounded;
  phase.server.staleness = options.sync.allow_staleness;
  return computing + Served(phase, numel).step(phase.server, ranks);
}

MemoryUse forecast_guest(const MemoryUse& computing) {
  // A trainer is created with optimiser state and releases it when it joins.
  return largest({without(computing, {MemoryKind::optimizer, MemoryKind::workspace}),
                  without(computing, {MemoryKind::activations, MemoryKind::workspace})});
}

}  // namespace echelon
