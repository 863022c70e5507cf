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
  // Starts this rank's server, if it has one, and tells all ranks where the servers are. `bind` is
  // the numeric address to listen on.
  // A worker that joins must have the same `data`; empty: nobody looks.
  ServerJob(const JobOptions& options, Communicator& ranks, const std::string& bind,
            const Token& token, const DataFingerprint& data = {});

  // A spell up to step `end`, of ranks that otherwise reduce among themselves
  // (ParameterServer::Setup).
  static ServerJob spell(const JobOptions& options, Communicator& ranks, const std::string& bind,
                         const Token& token, std::int64_t end) {
    return {options, ranks, bind, token, {}, end, true};
  }

  const ServerRoles& roles() const { return roles_; }
  bool works() const { return roles_.works(ranks_.rank()); }

  std::string addresses() const;  // of the servers, "host:port,host:port"
  void attach(Trainer& trainer, const Stack& stack);
  // Every rank calls it once, those that work after attach(). Throws PeerLost where a rank died
  // before, or could not reach the servers: later a job may do without some of its workers, but it
  // begins with all.
  void all_have_come() { meet(""); }
  // Until the job's workers have left this rank's server. Throws what ended the job before its end.
  void wait();
  // The same for a rank that only serves: it ends the job after the present step once `stop` is
  // set.
  void serve(const std::atomic<bool>& stop);

  // What this rank's server, if it has one, tells the first worker of its memory.
  void report_memory(std::function<std::string()> words) {
    if (server_) server_->report_memory(std::move(words));
  }

  const ParameterServer* server() const { return server_.get(); }

 private:
  void meet(const std::string& objection);

  ServerJob(const JobOptions& options, Communicator& ranks, const std::string& bind,
            const Token& token, const DataFingerprint& data, std::int64_t end, bool spell);

  JobOptions options_;
  Communicator& ranks_;
  Token token_;
  ServerRoles roles_;
  std::unique_ptr<ParameterServer> server_;
  std::vector<Address> addresses_;
};

// Makes a trainer outside of the job one of its workers. The two have the same model, options and
// data; the job's token is this process's (ECHELON_TOKEN).
void join_servers(const std::string& addresses, const JobOptions& options,
                  const DataFingerprint& data, Trainer& trainer, const Stack& stack,
                  Ledger& ledger);

}  // namespace echelon
