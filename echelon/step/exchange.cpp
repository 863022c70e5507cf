#include "echelon/step/exchange.h"

#include <fmt/format.h>

namespace echelon {
namespace {

CommCall call_of(const Parcel& parcel) {
  std::string tag = to_string(parcel.purpose);
  if (parcel.told_apart) tag += fmt::format(" {}", parcel.part);
  return {.tag = std::move(tag), .algorithm = parcel.algorithm, .blocking = parcel.blocking};
}

class PlainExchange final : public Exchange {
 protected:
  Work begin_sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel) override {
    return ranks.all_reduce(slice, parcel.op, call_of(parcel));
  }
  Work begin_sum_to_owners(Communicator& ranks, const at::Tensor& own, const at::Tensor& all,
                           const Parcel& parcel) override {
    return ranks.reduce_scatter(own, all, parcel.op, call_of(parcel));
  }
  Work begin_gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
                    const Parcel& parcel) override {
    return ranks.all_gather(all, own, call_of(parcel));
  }
  Work begin_send(Communicator& ranks, const at::Tensor& slice, int to, std::uint64_t tag,
                  const Parcel& parcel) override {
    return ranks.send(slice, to, tag, call_of(parcel));
  }
  Work begin_receive(Communicator& ranks, const at::Tensor& slice, int from, std::uint64_t tag,
                     const Parcel& parcel) override {
    return ranks.receive(slice, from, tag, call_of(parcel));
  }
  void encode_push(const at::Tensor& slice, const Parcel&,
                   const std::function<void(const at::Tensor&)>& deliver) override {
    deliver(slice);
  }
};

}  // namespace

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::gradients:
      return "gradients";
    case Purpose::parameters:
      return "parameters";
    case Purpose::tied_gradients:
      return "tied gradients";
    case Purpose::activations:
      return "activations";
    case Purpose::push:
      return "push";
    case Purpose::loss:
      return "loss";
  }
  return "";
}

// A blocking call may do all of its work before it returns.
template <class Begin>
Work Exchange::counted(const at::Tensor& slice, const Parcel& parcel, const Begin& begin) {
  if (!parcel.blocking || !slice.is_cpu()) return begin();
  const auto start = WorkClock::Clock::now();
  Work work = begin();
  clock_.waited_since(start);
  return work;
}

Work Exchange::sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel) {
  return counted(slice, parcel, [&] { return begin_sum(ranks, slice, parcel); });
}

Work Exchange::sum_to_owners(Communicator& ranks, const at::Tensor& own, const at::Tensor& all,
                             const Parcel& parcel) {
  return counted(all, parcel, [&] { return begin_sum_to_owners(ranks, own, all, parcel); });
}

Work Exchange::gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
                      const Parcel& parcel) {
  return counted(all, parcel, [&] { return begin_gather(ranks, all, own, parcel); });
}

Work Exchange::send(Communicator& ranks, const at::Tensor& slice, int to, std::uint64_t tag,
                    const Parcel& parcel) {
  return counted(slice, parcel, [&] { return begin_send(ranks, slice, to, tag, parcel); });
}

Work Exchange::receive(Communicator& ranks, const at::Tensor& slice, int from, std::uint64_t tag,
                       const Parcel& parcel) {
  return counted(slice, parcel, [&] { return begin_receive(ranks, slice, from, tag, parcel); });
}

void Exchange::push(const at::Tensor& slice, const Parcel& parcel,
                    const std::function<void(const at::Tensor&)>& deliver) {
  encode_push(slice, parcel, deliver);
}

std::shared_ptr<Exchange> plain_exchange() { return std::make_shared<PlainExchange>(); }

}  // namespace echelon
