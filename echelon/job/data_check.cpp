#include "echelon/job/data_check.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/texts.h"

namespace echelon {
namespace {

using nlohmann::json;

constexpr const char* guest_mark = "\n# data ";
constexpr const char* guest_allows = "\n# other data are allowed";

bool is_first(const Communicator* ranks) { return !ranks || ranks->rank() == 0; }

std::vector<std::string> everyones(Communicator* ranks, const std::string& mine) {
  return ranks ? gather_texts(*ranks, mine, "setup") : std::vector{mine};
}

// The same on all ranks.
struct Verdict {
  std::string objection;  // a sentence that says what to do; empty: none
  bool allowed = false;   // by any rank
};

Verdict verdict_on(const DataFingerprint& mine, const FormerData& former, Communicator* ranks,
                   bool allowed) {
  std::string to_run;
  if (is_first(ranks) && !former.run.empty()) {
    to_run = difference(mine, mine.source, former.data, former.run);
    if (!to_run.empty())
      to_run = fmt::format(
          "{} was trained on other data: {}; give its own with --data, with the run's "
          "data.validation and train.validate_every",
          former.run, to_run);
  }
  const json words = {{"data", to_json(mine)}, {"objection", to_run}, {"allowed", allowed}};
  std::vector<DataFingerprint> all;
  for (const auto& text :
       everyones(ranks, words.dump(-1, ' ', false, json::error_handler_t::replace))) {
    const json one = json::parse(text);
    if (all.empty()) to_run = one["objection"];
    if (one["allowed"]) allowed = true;
    all.push_back(fingerprint_of(one["data"]));
  }
  if (!to_run.empty()) return {to_run, allowed};
  for (std::size_t r = 1; r < all.size(); ++r)
    if (const auto how = difference(all[r], fmt::format("rank {}", r), all[0], "rank 0");
        !how.empty())
      return {fmt::format("ranks have different data: {} ({} and {}); give every rank the same",
                          how, all[r].source, all[0].source),
              allowed};
  return {};
}

// Reads in slices and synchronises after each: a rank with a slow disk makes the others wait, and
// no wait may be longer than comm.timeout.
void read_whole(JobData& data, Communicator* ranks, bool reads) {
  constexpr auto slice = std::chrono::milliseconds(500);
  auto to_say = is_first(ranks) ? Deadline::in(std::chrono::seconds(3)) : Deadline::never();
  for (bool all = false; !all;) {
    const bool done = !reads || data.read_for_digest(Deadline::in(slice));
    const auto texts = everyones(ranks, done ? "read" : "");
    all = std::none_of(texts.begin(), texts.end(), [](const auto& text) { return text.empty(); });
    if (all || !to_say.expired()) continue;
    fmt::print("data        reading all {} once, to compare every byte\n",
               human_bytes(std::uint64_t(data.fingerprint.training + data.fingerprint.validation)));
    std::fflush(stdout);
    to_say = Deadline::never();
  }
}

// If all have the same data: the first rank's checksums of blocks, for ranks that did not read it.
void take_first_sums(const JobData& data, Communicator& ranks) {
  const auto mine = data.text.sums();
  const at::Tensor sums = at::empty({std::int64_t(mine.size())}, at::kLong);
  std::memcpy(sums.data_ptr(), mine.data(), sums.nbytes());
  const at::Tensor there = sums.to(ranks.device());
  ranks.broadcast(there, 0, {.tag = "setup", .blocking = true}).wait();
  const at::Tensor first = there.cpu();
  const auto* begin = static_cast<const std::uint64_t*>(first.const_data_ptr());
  data.text.take_sums({begin, mine.size()});
}

}  // namespace

void require_no_objection(const std::string& objection, Communicator* ranks) {
  if (const auto first = everyones(ranks, objection).front(); !first.empty())
    throw InvalidArgument(first);
}

void require_same_data(JobData& data, const FormerData& former, Communicator* ranks, bool allowed) {
  const auto consider = [&] {
    const Verdict verdict = verdict_on(data.fingerprint, former, ranks, allowed);
    if (verdict.objection.empty()) return true;
    if (!verdict.allowed)
      throw InvalidArgument(verdict.objection + ", or --allow-other-data if that is meant");
    if (is_first(ranks)) log::warn(verdict.objection + "; --allow-other-data: the job goes on");
    return false;
  };
  const bool alike = consider();
  // One rank of a host reads for all ranks there that have the same files.
  const std::string own = ranks ? std::to_string(ranks->rank()) : "",
                    files = alike && ranks ? ranks->host() + " " + data.text.stamp() : own;
  const auto everyones_files = everyones(ranks, files);
  const auto reader = std::size_t(std::find(everyones_files.begin(), everyones_files.end(), files) -
                                  everyones_files.begin());
  const bool reads = !ranks || int(reader) == ranks->rank();
  read_whole(data, ranks, reads);
  if (!alike) return;
  const auto digests = everyones(ranks, reads ? data.fingerprint.digest : "");
  if (!reads) data.fingerprint.digest = digests[reader];
  const bool all_read = std::none_of(digests.begin(), digests.end(),
                                     [](const auto& digest) { return digest.empty(); });
  const bool same = consider();
  if (all_read) return;
  if (same) return take_first_sums(data, *ranks);
  if (!reads) data.fingerprint.digest.clear();
  read_whole(data, ranks, true);
}

std::string with_fingerprint(const std::string& toml, const DataFingerprint& data, bool allowed) {
  return toml + guest_mark + to_json(data) + (allowed ? guest_allows : "");
}

void check_guest_data(const std::string& text, const DataFingerprint& job) {
  if (job.tokeniser.empty()) return;
  const auto mark = text.rfind(guest_mark);
  if (mark == std::string::npos)
    throw InvalidArgument("the worker does not say what data it has; use the job's own version");
  const auto begin = mark + std::string_view(guest_mark).size();
  const auto data = fingerprint_of(text.substr(begin, text.find('\n', begin) - begin));
  const auto how = difference(data, "the worker", job, "the job");
  if (how.empty()) return;
  // The same text, split into training and validation at another place: another --data would not
  // help.
  const bool split = data.tokeniser == job.tokeniser && data.files == job.files &&
                     data.training != job.training &&
                     data.training + data.validation == job.training + job.validation;
  if (!text.ends_with(guest_allows))
    throw InvalidArgument(fmt::format(
        "the worker has other data than the job: {}; give it the job's {}, or --allow-other-data if "
        "that is meant",
        how, split ? "data.validation and train.validate_every" : "with --data"));
  log::warn(fmt::format("a worker that joins has other data: {}; --allow-other-data lets it", how));
}

}  // namespace echelon
