// How slices travel between ranks. Every gradient, gathered parameter, tied sum, activation and
// push to a parameter server goes through an Exchange together with its purpose: the slice goes in,
// the summed, gathered or delivered slice comes out. The plain one passes slices to the
// communicator as they are. One that encodes them first is another Exchange behind the same calls.
//
//   Work sum = exchange.sum(ranks, gradients, {.purpose = Purpose::gradients, .part = bucket});
//   …                              // compute meanwhile
//   exchange.wait(sum, device);    // counted
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/collective/ledger.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/work_clock.h"

namespace echelon {

enum class Purpose { gradients, parameters, tied_gradients, activations, push, pull, loss };
const char* to_string(Purpose purpose);  // the name in the ledger: "tied gradients"

// Describes a slice and how to send it.
struct Parcel {
  Purpose purpose;
  int part = -1;         // its bucket, group or layer; -1: not one of several
  int micro_batch = -1;  // for an activation
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  bool blocking = false;    // the caller waits immediately (CommCall::blocking)
  bool told_apart = false;  // the ledger counts each part separately: "gradients 3"
  bool here = false;        // of a push or a pull: the server is in this process
};
std::string tag_of(const Parcel& parcel);  // in the ledger: "gradients", told apart "gradients 3"
// A tag without the number of a part: "gradients" in both cases.
std::string_view without_part(std::string_view tag);

// A slice that was exchanged, for traces.
struct Exchanged {
  Purpose purpose = Purpose::loss;
  int part = -1;  // Parcel::part; of a push or a pull: the server
  Operation operation = Operation::send;
  bool here = false;                                 // within this process: nothing is sent
  std::size_t bytes = 0;                             // of the slice that all take part in
  std::chrono::steady_clock::time_point asked = {};  // when the step had it ready
  WorkSpan span = {};                                // when it ran
  // Seconds of its span in which the step waited, for this or for another exchange.
  double waited = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // All-reduce, in place, over all ranks.
  Work sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel);
  // Reduce-scatter: `all` is the same range on every rank, and `own` receives this rank's slice of
  // the sum.
  Work sum_to_owners(Communicator& ranks, const at::Tensor& own, const at::Tensor& all,
                     const Parcel& parcel);
  // All-gather: `all` receives the slices of all ranks, one after another.
  Work gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
              const Parcel& parcel);
  Work send(Communicator& ranks, const at::Tensor& slice, int to, std::uint64_t tag,
            const Parcel& parcel);
  Work receive(Communicator& ranks, const at::Tensor& slice, int from, std::uint64_t tag,
               const Parcel& parcel);
  // Pushes to a parameter server: calls `deliver` with the data to send, before it returns.
  void push(const at::Tensor& slice, const Parcel& parcel,
            const std::function<void(const at::Tensor&)>& deliver);

  // Pulls from a parameter server: calls `fetch` with the memory to fill, before it returns.
  void pull(const at::Tensor& slice, const Parcel& parcel,
            const std::function<void(const at::Tensor&)>& fetch);

  void wait(const Work& work, at::Device device);

  void begin_step();
  const WorkClock& clock() const { return clock_; }  // of this step

  // Records what is exchanged. The ledger then counts the parts of a purpose separately, with the
  // tags "gradients 0", "gradients 1", …
  void record(bool on) { recording_ = on; }
  bool records() const { return recording_; }
  // What this step has exchanged so far, in the order in which it was started. Not on GPUs, where
  // the host does not know when an exchange runs.
  std::vector<Exchanged> recorded() const;
  // What this rank has sent since this step began, if it records and has a ledger.
  std::vector<Ledger::Entry> sent() const;
  // The ledger of the communicator that it uses; null: none. It must outlive the steps.
  void set_ledger(const Ledger* ledger) { ledger_ = ledger; }

 protected:
  virtual Work begin_sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel) = 0;
  virtual Work begin_sum_to_owners(Communicator& ranks, const at::Tensor& own,
                                   const at::Tensor& all, const Parcel& parcel) = 0;
  virtual Work begin_gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
                            const Parcel& parcel) = 0;
  virtual Work begin_send(Communicator& ranks, const at::Tensor& slice, int to, std::uint64_t tag,
                          const Parcel& parcel) = 0;
  virtual Work begin_receive(Communicator& ranks, const at::Tensor& slice, int from,
                             std::uint64_t tag, const Parcel& parcel) = 0;
  virtual void encode_push(const at::Tensor& slice, const Parcel& parcel,
                           const std::function<void(const at::Tensor&)>& deliver) = 0;

 private:
  struct Record {
    Exchanged about;
    Work work;  // none: it is done
  };

  template <class Begin>
  Work counted(Operation operation, const at::Tensor& slice, const Parcel& parcel,
               const Begin& begin);
  void timed(const at::Tensor& slice, const Parcel& parcel, Operation operation,
             const std::function<void()>& call);

  void add(Record record);
  void add_wait(WorkSpan span);

  WorkClock clock_;
  bool recording_ = false;
  const Ledger* ledger_ = nullptr;
  std::vector<Ledger::Entry> sent_before_;  // this step
  mutable std::mutex mutex_;  // of records_ and waits_: slices are pushed by several threads
  std::vector<Record> records_;
  std::vector<WorkSpan> waits_;  // when the step waited
};

// Sends slices unchanged.
std::shared_ptr<Exchange> plain_exchange();

}  // namespace echelon
