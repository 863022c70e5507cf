// Whether a job's forecast fits, and which change of options makes it fit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "echelon/base/block_file.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/process_memory.h"
#include "echelon/base/wrapped.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/plan/mesh_layout.h"
#include "echelon/plan/rules.h"

namespace echelon {
namespace {

constexpr double mib = 1024.0 * 1024.0;

// Why the job does not fit; empty if it fits.
std::string lack(const MemoryForecast& needs, const PlanOptions& options, int local) {
  const std::uint64_t budget = memory_budget(options.train, local);
  if (budget == 0) return {};
  const std::string most =
      human_bytes(budget) + (options.train.memory_mib > 0 ? " (train.memory_mib)" : "");
  if (needs.largest_group_bytes > budget)
    return fmt::format("the values and gradients of {} are {} in one piece, and a rank may take {}",
                       needs.largest_group, human_bytes(needs.largest_group_bytes), most);
  if (needs.on_device() > budget)
    return fmt::format("a rank needs {}, and may take {}", human_bytes(needs.on_device()), most);
  const std::uint64_t host = available_bytes() / std::uint64_t(std::max(1, local));
  if (host > 0 && needs.host > host)
    return fmt::format("a rank needs {} of the host's memory, and may take {}",
                       human_bytes(needs.host), human_bytes(host));
  return {};
}

// The options that differ, as arguments: "parallel.zero=2 model.recompute=full".
std::string changed(const PlanOptions& from, const PlanOptions& to) {
  std::string text;
  const auto add = [&](const char* key, const auto& before, const auto& after) {
    if (before != after) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, shown(after));
  };
  add("parallel.zero", from.parallel.zero, to.parallel.zero);
  add("model.recompute", from.model.recompute, to.model.recompute);
  add("train.micro_batches", from.train.micro_batches, to.train.micro_batches);
  add("zero.prefetch", from.zero.prefetch, to.zero.prefetch);
  add("zero.group", from.zero.group, to.zero.group);
  add("zero.scatter", from.zero.scatter, to.zero.scatter);
  add("zero.offload", from.zero.offload, to.zero.offload);
  add("server.count", from.server.count, to.server.count);
  add("server.staleness", from.server.staleness, to.server.staleness);
  if (to.zero.offload == Offload::disk && to.zero.offload_path.empty())
    text += " zero.offload_path=FOLDER";
  return text;
}

// The same options with more servers, each of which owns less, and with lower staleness, which
// leaves fewer gradients waiting.
std::vector<PlanOptions> more_servers(const std::vector<PlanOptions>& some, int ranks) {
  std::vector<PlanOptions> all;
  for (const auto& one : some) {
    const auto most = one.server.place == ServerPlace::separate ? ranks / 2 : ranks;
    for (const bool young : {false, true}) {
      if (young && (one.server.mode != ServerMode::bounded || one.server.staleness <= 1)) continue;
      PlanOptions next = one;
      if (young) {
        next.server.staleness = 1;
        all.push_back(next);
      }
      while (next.server.count < most) {
        next.server.count = std::min<std::int64_t>(most, 2 * next.server.count);
        all.push_back(next);
      }
    }
  }
  return all;
}

// Candidate changes, cheapest first. Sending gradients more often and higher ZeRO stages cost
// little, recomputation costs time, more micro-batches make each one less efficient, and offloading
// state costs most.
std::vector<PlanOptions> changes(const PlanOptions& options, int ranks) {
  std::vector<std::int64_t> micro_batches = {options.train.micro_batches};
  const auto most = options.train.batch / mesh_of(options.parallel, ranks).data;
  while (micro_batches.back() < most)
    micro_batches.push_back(std::min(most, micro_batches.back() * 2));
  std::vector<Recompute> recompute = {Recompute::none, Recompute::selective, Recompute::full};
  recompute.erase(recompute.begin(),
                  std::find(recompute.begin(), recompute.end(), options.model.recompute));
  PlanOptions shared = options;
  shared.parallel.zero = 1;
  const bool unshared =
      breaks("ZeRO and servers", shared, ranks) || breaks("ZeRO and sync", shared, ranks);
  const bool several = mesh_of(options.parallel, ranks).data > 1;
  const std::int64_t last = several && !unshared ? 3 : options.parallel.zero;

  std::vector<PlanOptions> all;
  PlanOptions next = options;
  for (const auto pieces : micro_batches)
    for (const auto& again : recompute)
      for (auto stage = options.parallel.zero; stage <= last; ++stage) {
        next.train.micro_batches = pieces;
        next.model.recompute = again;
        next.parallel.zero = stage;
        next.zero.scatter = options.zero.scatter;
        all.push_back(next);
        const bool once =
            options.zero.scatter == ScatterOption::step ||
            (options.zero.scatter == ScatterOption::automatic && options.parallel.pipeline > 1);
        if (!once || stage < 2 || pieces == 1) continue;
        next.zero.scatter = ScatterOption::micro_batch;
        all.push_back(next);
      }
  if (options.server.count > 0) {
    const auto servers = more_servers(all, ranks);
    all.insert(all.end(), servers.begin(), servers.end());
  }
  if (next.parallel.zero == 3) {
    next.zero.prefetch = next.zero.group = 0;
    all.push_back(next);
  }
  if (options.zero.offload != Offload::none || unshared) return all;
  for (const Offload tier : {Offload::host, Offload::disk}) {
    if (tier == Offload::host && options.train.device == DeviceKind::cpu) continue;
    next = options;
    next.zero.offload = tier;
    for (const auto pieces : {micro_batches.front(), micro_batches.back()})
      for (const auto& again : recompute)
        for (const int stage : several ? std::vector{3} : std::vector{2, 3}) {
          next.parallel.zero = std::max<std::int64_t>(stage, options.parallel.zero);
          next.model.recompute = again;
          next.train.micro_batches = pieces;
          all.push_back(next);
        }
  }
  return all;
}

std::optional<PlanOptions> first_that_fits(const PlanOptions& options, int ranks, int local) {
  for (const auto& change : changes(options, ranks))
    if (lack(forecast_memory(change, ranks, local), change, local).empty()) return change;
  return {};
}

}  // namespace

void require_memory(const PlanOptions& options, int ranks, int local, Role role) {
  const MemoryForecast needs = forecast_memory(options, ranks, local, role);
  const std::string missing = lack(needs, options, local);
  if (missing.empty()) return;
  if (role == Role::guest) throw InvalidArgument(missing + ": it cannot join the job here");
  const auto change = first_that_fits(options, ranks, local);
  throw InvalidArgument(fmt::format(
      "{}. {}", missing,
      change ? fmt::format("It would fit with {}", changed(options, *change))
             : std::string("Give a smaller model, a smaller batch or more ranks; echelon train "
                           "--dry-run shows what takes the memory")));
}

namespace {

// Eighty columns: a label, a column for each kind in the order of memory_kind_names, and the sum.
// Values are MiB; those too wide for their column are GiB or TiB with a letter behind.
constexpr std::size_t memory_labels = 24, memory_column = 8;
constexpr std::array<const char*, memory_kind_names.size()> memory_columns = {
    "params", "grads", "optim", "activ", "work", "comm"};

}  // namespace

std::string memory_head() {
  std::string line = fmt::format("{:<{}}", "memory (MiB)", memory_labels);
  for (const char* name : memory_columns) line += fmt::format("{:>{}}", name, memory_column);
  return line + fmt::format("{:>{}}", "total", memory_column);
}

std::string memory_row(const std::string& label, const MemoryUse& use) {
  std::string line = fmt::format("{:<{}}", "  " + label, memory_labels);
  const auto column = [](std::uint64_t bytes) {
    std::string text = fmt::format("{:.1f}", double(bytes) / mib);
    double unit = mib;
    for (const char* letter : {"G", "T", "P", "E"}) {
      if (text.size() < memory_column) break;
      unit *= 1024;
      text = fmt::format("{:.1f}{}", double(bytes) / unit, letter);
    }
    return fmt::format("{:>{}}", text, memory_column);
  };
  for (const auto bytes : use.bytes) line += column(bytes);
  return line + column(use.total());
}

ForecastReport report_forecast(const PlanOptions& options, int ranks, int local) {
  std::string text;
  const auto say = [&](const std::string& line) { text += wrapped("", line, 2); };
  const MemoryForecast needs = forecast_memory(options, ranks, local);
  const std::uint64_t budget = memory_budget(options.train, local);
  text +=
      fmt::format("{}\n{}\n", memory_head(), memory_row(name_of_forecast(ranks), needs.tensors));
  if (needs.host > 0) text += fmt::format("and in the host's memory {}\n", human_bytes(needs.host));
  if (needs.disk > 0)
    text += fmt::format("and on disk {}{}\n", human_bytes(needs.disk), ranks > 1 ? " a rank" : "");
  say(fmt::format("largest group of layers: {}, {} with its gradients", needs.largest_group,
                  human_bytes(needs.largest_group_bytes)));
  if (needs.disk > 0) {
    const std::string why = why_no_room(options.zero.offload_path,
                                        needs.disk * std::uint64_t(std::max(1, local)), ".slices");
    if (!why.empty()) {
      say(fmt::format("does not fit: zero.offload_path: {}", why));
      return {text, false};
    }
  }
  if (budget == 0) {
    const bool cuda = options.train.device == DeviceKind::cuda;
    say(cuda ? "cannot run here: there is no GPU; where there is one, compare with what it has free"
             : "there is no way to tell here what is free, and whether it fits");
    return {text, !cuda};
  }
  const std::string missing = lack(needs, options, local);
  if (missing.empty()) {
    text += fmt::format("fits: a rank may take {}\n", human_bytes(budget));
    return {text, true};
  }
  say(fmt::format("does not fit: {}", missing));
  if (const auto change = first_that_fits(options, ranks, local)) {
    text += fmt::format("it would fit with {}:\n{}\n", changed(options, *change),
                        memory_row("then", forecast_memory(*change, ranks, local).tensors));
  } else {
    say("no other stage, recompute, number of micro-batches or place of the state that was tried "
        "makes it fit: give a smaller model, a smaller batch or more ranks");
  }
  return {text, false};
}

}  // namespace echelon
