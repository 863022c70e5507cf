// What a rank exchanges in a step, one row for each bucket, parameter group and server: its size,
// the algorithm and the link, the time that the cost model predicts, the time that it took, and how
// much of that overlapped computing. The first line says where the time of a step goes.
//
//   mean step 11.42 ms: 9.60 computing, 0.31 waiting, 1.12 update, 0.39 other
//   exchange             size  algorithm          link   predicted  measured hidden
//   gradients 0       1.0 MiB  shared             shared   0.21 ms   0.24 ms   98 %
//   gradients 1     768.0 KiB  shared             shared   0.16 ms   0.21 ms   12 %
//
// Numbers are means over the steps so far, except for the first, which also makes plans and
// allocates. exchanges.json has the same numbers, and what the rank sent (docs/formats.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/train/events.h"

namespace echelon {

class ExchangeTable {
 public:
  explicit ExchangeTable(std::shared_ptr<Communicator> ranks);

  void add(const StepReport& step);
  void add(const ExchangeReport& report);

  std::int64_t steps() const { return steps_; }
  std::string text() const;  // lines of at most 79 columns
  std::string json() const;

 private:
  using Key = std::tuple<std::int64_t, Purpose, Operation, int>;  // the first orders the rows
  struct Row {
    std::size_t bytes = 0;
    Algorithm algorithm = Algorithm::automatic;
    LinkKind link = LinkKind::shared;
    bool here = false;                           // in this process
    bool known = false;                          // the algorithm and the link
    double predicted = 0;                        // seconds of one; 0: unknown
    double seconds = 0, waited = 0, hidden = 0;  // of all
    std::int64_t times = 0;
    std::uint64_t sent = 0;  // bytes, of all
  };
  Row& row_of(const Exchanged& one);
  void count_sent(const std::vector<Ledger::Entry>& sent);
  void predict_waiting(const ExchangeReport& report);

  std::shared_ptr<Communicator> ranks_;
  std::map<Key, Row> rows_;
  std::map<std::tuple<Purpose, Operation, int>, std::int64_t> order_;
  // Reports of steps and of exchanges, less the first of each. They differ where other workers of
  // parameter servers complete steps.
  std::int64_t steps_ = 0, exchanges_ = 0;
  bool stepped_ = false, exchanged_ = false;  // the first one is left out
  double seconds_ = 0, compute_ = 0, exposed_ = 0, hidden_ = 0, update_ = 0;
  // Of all-reduces of gradients: how long the last one ran after backward, and how long it would
  // run if each took its predicted time.
  double after_ = 0, predicted_after_ = 0;
};

}  // namespace echelon
