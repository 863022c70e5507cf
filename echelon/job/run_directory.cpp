#include "echelon/job/run_directory.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numbers>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/log.h"

namespace echelon {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

void RunDirectory::require_new(const fs::path& runs, const std::string& name) {
  if (name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw InvalidArgument(fmt::format(
        "--name is {}; it must name one folder in {}/, without a slash", name, runs.string()));
  }
  const fs::path path = runs / name;
  if (!name.empty() && fs::exists(path))
    throw InvalidArgument(fmt::format("{} exists; choose another --name, or go on with --resume {}",
                                      path.string(), path.string()));
}

RunDirectory RunDirectory::create(const fs::path& runs, std::string name) {
  require_new(runs, name);
  if (name.empty()) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    const std::string stamp = fmt::format("{:%Y-%m-%d-%H%M%S}", local);
    // Two jobs may start in the same second: creating the folder decides, not a check before.
    std::error_code failed;
    fs::create_directories(runs, failed);
    name = stamp;
    for (int i = 2; !failed && !fs::create_directory(runs / name, failed); ++i)
      name = fmt::format("{}-{}", stamp, i);
    if (failed)
      throw Error(fmt::format("cannot make a folder in {}: {}", runs.string(), failed.message()));
    RunDirectory run(runs / name);
    run.lock();
    return run;
  }
  const fs::path path = runs / name;
  std::error_code error;
  fs::create_directories(runs, error);
  if (error)
    throw Error(fmt::format("cannot make the folder {}: {}", runs.string(), error.message()));
  if (!fs::create_directory(path, error))
    throw Error(fmt::format("cannot make the folder {}: {}", path.string(),
                            error ? error.message() : "another process just made it"));
  RunDirectory run(path);
  run.lock();
  return run;
}

RunDirectory RunDirectory::open(const fs::path& path) {
  if (!fs::is_directory(path))
    throw InvalidArgument(fmt::format("--resume: there is no run {}", path.string()));
  RunDirectory run(path);
  if (!fs::exists(run.config()) || !fs::exists(run.state())) {
    throw InvalidArgument(fmt::format(
        "--resume: {} holds no state to go on from; a run writes one when it ends or is interrupted, and with train.save_every",
        path.string()));
  }
  return run;
}

void RunDirectory::lock() {
  lock_.emplace(path_ / ".lock");
  if (!lock_->holder().empty())
    throw InvalidArgument(fmt::format("{} is in use by {}; wait until it has ended, or stop it",
                                      path_.string(), lock_->holder()));
  if (!lock_->enforced())
    log::warn(
        fmt::format("{} cannot be locked on its file system: make sure that no other job uses it",
                    path_.string()));
  std::uint64_t bytes = 0;
  for (const RunFile one : all_values<RunFile>) bytes += remove_abandoned(file(one));
  for (const auto& folder : {weights(), best()})
    for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "vocab.txt",
                             "vocab.json", "merges.txt", "added_tokens.json", "validation.json"})
      bytes += remove_abandoned(folder / name);
  if (bytes > 0)
    log::warn(fmt::format("{}: removed {} that a job had begun to write when it was killed",
                          path_.string(), human_bytes(bytes)));
}

double RunDirectory::elapsed() const {
  return elapsed_before_ +
         std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void RunDirectory::rewind_metrics(std::int64_t step) {
  for (const RunFile one : {RunFile::metrics, RunFile::times}) {
    const fs::path path = file(one);
    if (!fs::exists(path)) continue;
    const std::string old = read_file(path);
    std::string kept;
    for (std::size_t at = 0, end; (end = old.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string line = old.substr(at, end - at);
      const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      const auto number = parsed.is_object() ? parsed.find("step") : parsed.end();
      if (number == parsed.end() || !number->is_number_integer() || *number > step) continue;
      kept += line + "\n";
      if (const auto it = parsed.find("elapsed_s"); it != parsed.end() && it->is_number())
        elapsed_before_ = *it;
    }
    write_file(path, kept);
  }
}

void RunDirectory::add_line(std::ofstream& out, RunFile name, const std::string& line) {
  const fs::path path = file(name);
  if (!out.is_open()) out.open(path, std::ios::app);
  out << line << '\n' << std::flush;  // a crash of this process loses no line
  if (!out) throw Error(with_errno("cannot write " + path.string()));
}

void RunDirectory::add_step(const StepReport& report, bool bytes) {
  ordered_json line = {{"step", report.step}, {"loss", report.loss}};
  if (bytes) line["bits_per_byte"] = report.loss / std::numbers::ln2;
  line["grad_norm"] = report.grad_norm;
  line["rate"] = report.rate;
  line["tokens"] = report.targets;
  if (report.loss_scale != 0) line["loss_scale"] = report.loss_scale;
  if (report.skipped) line["skipped"] = true;
  if (!report.ages.empty()) {
    line["ages"] = report.ages;
    line["batch"] = report.batch;
  }
  add_line(metrics_, RunFile::metrics, line.dump());
  // In a separate file, so that two runs of one seed have the same metrics to the byte.
  const auto ms = [](double seconds) { return std::round(seconds * 1e6) / 1e3; };
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const ordered_json time = {{"step", report.step},
                             {"time", ms(std::chrono::duration<double>(now).count()) / 1e3},
                             {"elapsed_s", ms(elapsed()) / 1e3},
                             {"step_ms", ms(report.seconds)},
                             {"compute_ms", ms(report.times.compute)},
                             {"exposed_ms", ms(report.times.exposed)},
                             {"hidden_ms", ms(report.times.hidden)},
                             {"update_ms", ms(report.times.update)},
                             {"data_ms", ms(report.times.data)}};
  add_line(times_, RunFile::times, time.dump());
}

void RunDirectory::add_validation(std::int64_t step, double loss, const Scores& scores) {
  ordered_json line = {{"step", step}, {"val_loss", loss}};
  for (const auto& [name, score] : scores) line["val_" + name] = score;
  add_line(metrics_, RunFile::metrics, line.dump());
}

void RunDirectory::add_best(std::int64_t step, const std::string& score, double value) {
  add_line(metrics_, RunFile::metrics,
           ordered_json{{"step", step}, {"best", {{score, value}}}}.dump());
}

void RunDirectory::add_stop(std::int64_t step, const std::string& why) {
  add_line(metrics_, RunFile::metrics, ordered_json{{"step", step}, {"stopped", why}}.dump());
}

void RunDirectory::write_plan(const std::string& json) const {
  write_file(file(RunFile::plan), json + "\n");
}

void RunDirectory::write_ledger(const std::string& json) const {
  write_file(file(RunFile::ledger), json);
}

void RunDirectory::write_memory(const MemoryForecast& forecast,
                                const std::vector<RankMemory>& ranks) const {
  const auto kinds = [](const MemoryUse& use) {
    ordered_json tensors;
    for (std::size_t i = 0; i < memory_kind_names.size(); ++i)
      tensors[memory_kind_names[i]] = use.bytes[i];
    return tensors;
  };
  const auto measured = [&](const RankMemory& one) {
    return ordered_json{{"rank", one.rank},
                        {"tensors_at_peak_bytes", kinds(one.tensors)},
                        {"tensors_peak_bytes", one.tensors.total()},
                        {"process_start_bytes", one.start},
                        {"process_peak_bytes", one.peak}};
  };
  ordered_json memory = measured(ranks[0]);
  memory["predicted_bytes"] = kinds(forecast.tensors);
  memory["predicted_host_bytes"] = forecast.host;
  memory["predicted_disk_bytes"] = forecast.disk;
  memory["ranks"] = ordered_json::array();
  for (const auto& one : ranks) memory["ranks"].push_back(measured(one));
  write_file(file(RunFile::memory), memory.dump(2) + "\n");
}

}  // namespace echelon
