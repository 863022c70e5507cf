// A rank's part in a job with parameter servers: a server, a worker, or both.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/data/fingerprint.h"
#include "echelon/job/options.h"
#include "echelon/parallel/server/roles.h"
#include "echelon/parallel/server/server.h"
#include "echelon/train/trainer.h"

namespace echelon {

class ServerJob {
 public:
  // Starts this rank's server, if it has one, and sends the addresses of all servers to all ranks.
  // `bind` is the numeric address to listen on.
  // A worker that joins must have the same `data`; empty: not checked.
  ServerJob(const JobOptions& options, Communicator& ranks, const std::string& bind,
            const Token& token, const DataFingerprint& data = {});

  // For an asynchronous phase up to step `end` of a synchronous job (ParameterServer::Setup).
  static ServerJob async_phase(const JobOptions& options, Communicator& ranks,
                               const std::string& bind, const Token& token, std::int64_t end) {
    return {options, ranks, bind, token, {}, end, true};
  }

  const ServerRoles& roles() const { return roles_; }
  bool works() const { return roles_.works(ranks_.rank()); }

  std::string addresses() const;  // of the servers, "host:port,host:port"
  void attach(Trainer& trainer, const Stack& stack);
  // Every rank calls it once; workers call it after attach(). Throws PeerLost if a rank died before
  // or could not reach the servers: a job may lose workers later, but it starts with all.
  void all_have_come() { meet(""); }
  // Waits until the job's workers have left this rank's server. Throws the error that ended the job
  // early.
  void wait();
  // The same for a rank that is only a server: when `stop` is set, it ends the job after the
  // current step.
  void serve(const std::atomic<bool>& stop);

  // The memory that this rank's server, if it has one, reports to the first worker.
  void report_memory(std::function<std::string()> words) {
    if (server_) server_->report_memory(std::move(words));
  }

  const ParameterServer* server() const { return server_.get(); }

 private:
  void meet(const std::string& objection);

  ServerJob(const JobOptions& options, Communicator& ranks, const std::string& bind,
            const Token& token, const DataFingerprint& data, std::int64_t end, bool async_phase);

  JobOptions options_;
  Communicator& ranks_;
  Token token_;
  ServerRoles roles_;
  std::unique_ptr<ParameterServer> server_;
  std::vector<Address> addresses_;
};

// Makes a trainer outside of the job one of its workers. Both must have the same model, options and
// data, and the same token (ECHELON_TOKEN).
void join_servers(const std::string& addresses, const JobOptions& options,
                  const DataFingerprint& data, Trainer& trainer, const Stack& stack,
                  Ledger& ledger);

}  // namespace echelon
