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

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "echelon/comm/communicator.h"
#include "echelon/comm/work_clock.h"

namespace echelon {

enum class Purpose { gradients, parameters, tied_gradients, activations, push, loss };
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

  void wait(const Work& work, at::Device device) { clock_.wait(work, device); }

  void begin_step() { clock_.reset(); }
  const WorkClock& clock() const { return clock_; }  // of this step

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
  template <class Begin>
  Work counted(const at::Tensor& slice, const Parcel& parcel, const Begin& begin);

  WorkClock clock_;
};

// Sends slices unchanged.
std::shared_ptr<Exchange> plain_exchange();

}  // namespace echelon
