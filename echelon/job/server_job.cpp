#include "echelon/job/server_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "echelon/base/error.h"
#include "echelon/comm/texts.h"
#include "echelon/job/data_check.h"
#include "echelon/job/option_difference.h"
#include "echelon/models/family.h"
#include "echelon/optim/schedule.h"
#include "echelon/plan/rules.h"
#include "echelon/plan/tuning.h"

namespace echelon {
namespace {

constexpr std::chrono::milliseconds a_moment{50};  // between checks of `stop`

std::vector<OwnedRange> even_ranges(const Stack& stack, std::size_t servers) {
  return cut_ranges(stack.values().numel(), std::vector<double>(servers, 1.0));
}

// Servers have only what trains.
void require_nothing_frozen(const JobOptions& options) {
  Stack stack = family_of(options.model).build(options.model);  // described, not allocated
  tune(stack, options.train, options.optim);
  const auto& all = stack.parameters();
  const auto frozen = std::ranges::find(all, false, &Parameter::trainable);
  if (frozen == all.end()) return;
  throw InvalidArgument(fmt::format(
      "the job has frozen parameters ({}), which a worker would not get from the servers: none can "
      "join it",
      options.model.lora.rank > 0 ? "model.lora" : "train.freeze"));
}

}  // namespace

ServerJob::ServerJob(const JobOptions& options, Communicator& ranks, const std::string& bind,
                     const Token& token, const DataFingerprint& data)
    : ServerJob(options, ranks, bind, token, data, options.train.steps, false) {}

ServerJob::ServerJob(const JobOptions& options, Communicator& ranks, const std::string& bind,
                     const Token& token, const DataFingerprint& data, std::int64_t end,
                     bool async_phase)
    : options_(options), ranks_(ranks), token_(token), roles_(options.server, ranks.size()) {
  check_share(options.train, roles_.workers());
  const int mine = roles_.server_of(ranks.rank());
  OptimOptions optim = options.optim;
  optim.rate = peak_rate(optim, options.train.batch);
  if (mine >= 0)
    server_ = std::make_unique<ParameterServer>(
        ParameterServer::Setup{
            .server = options.server,
            .optim = optim,
            .index = mine,
            .shares = roles_.workers(),
            .steps = options.train.steps,
            .end = end,
            .save_every = options.train.save_every,
            .timeout = options.comm.timeout,
            .name = roles_.name_of(mine),
            .first = roles_.name_of(0),
            .check_guest =
                [ours = to_toml(fields_of(options_), Comments::no), data,
                 options](const std::string& theirs) {
                  require_nothing_frozen(options);
                  for (const auto& one : differences(theirs, ours, Among::guests))
                    throw InvalidArgument(
                        fmt::format("the worker has {} = {} where the job has {}; give it the "
                                    "job's config.toml",
                                    one.key, one.mine, one.theirs));
                  check_guest_data(theirs, data);
                },
            .async_phase = async_phase},
        bind, options.net, token);
  const auto texts = gather_texts(ranks, server_ ? server_->address().text() : "", "servers");
  for (const auto& text : texts)
    if (!text.empty()) addresses_.push_back(parse_address(text));
  if (server_) server_->start(addresses_);
}

void join_servers(const std::string& addresses, const JobOptions& options,
                  const DataFingerprint& data, Trainer& trainer, const Stack& stack,
                  Ledger& ledger) {
  ServerWorker::Setup setup;
  for (std::size_t begin = 0; begin <= addresses.size();) {
    const auto end = std::min(addresses.find(',', begin), addresses.size());
    setup.servers.push_back(parse_address(addresses.substr(begin, end - begin)));
    begin = end + 1;
  }
  setup.ranges = even_ranges(stack, setup.servers.size());
  setup.name = fmt::format("a worker that joined (pid {})", ::getpid());
  setup.timeout = options.comm.timeout;
  setup.connect_timeout = 5;  // the job runs already
  JobOptions told = options;
  setup.options = with_fingerprint(to_toml(fields_of(told), Comments::no), data,
                                   options.train.allow_other_data);
  trainer.use_servers(std::move(setup), options.net, Token::find(), ServerPart::guest, ledger);
}

std::string ServerJob::addresses() const {
  std::string text;
  for (const auto& one : addresses_) text += (text.empty() ? "" : ",") + one.text();
  return text;
}

void ServerJob::attach(Trainer& trainer, const Stack& stack) {
  ServerWorker::Setup setup;
  setup.servers = addresses_;
  for (int i = 0; i < roles_.servers; ++i) setup.names.push_back(roles_.name_of(i));
  setup.ranges = even_ranges(stack, addresses_.size());
  setup.name = fmt::format("rank {} (pid {})", ranks_.rank(), ::getpid());
  setup.local = server_.get();
  setup.local_index = roles_.server_of(ranks_.rank());
  setup.timeout = options_.comm.timeout;
  try {
    trainer.use_servers(std::move(setup), options_.net, token_,
                        ranks_.rank() == 0 ? ServerPart::first : ServerPart::rank, ranks_.ledger());
  } catch (const Error& error) {
    // A server may have ended because another rank died: the ranks know which died first.
    meet(error.what());
    throw;
  }
}

void ServerJob::meet(const std::string& objection) {
  const auto objections = gather_texts(ranks_, objection, "servers");
  if (!objection.empty()) return;
  for (std::size_t rank = 0; rank < objections.size(); ++rank)
    if (!objections[rank].empty())
      throw PeerLost(
          fmt::format("rank {} could not reach the parameter servers: {}", rank, objections[rank]));
}

void ServerJob::serve(const std::atomic<bool>& stop) {
  const std::jthread watch([&](const std::stop_token& over) {
    while (!stop.load() && !over.stop_requested()) std::this_thread::sleep_for(a_moment);
    if (stop.load()) server_->stop();
  });
  wait();
}

void ServerJob::wait() {
  if (server_) server_->wait();
  if (server_)
    for (const auto& entry : server_->ledger().entries())
      ranks_.ledger().add(entry.operation, entry.tag, entry.algorithm, entry.link, entry.bytes,
                          entry.calls);
}

}  // namespace echelon
